"""Why a job waits: the filters' answers counted over the fleet, in kubectl's manner."""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from gpuyard.model.quantities import counted
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.why import Unit
from gpuyard_coordinator.core import filters, gang_ports, instances, quota
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Node

V = VerdictCode
UNITS: Final[dict[VerdictCode, Unit]] = {
    V.INSUFFICIENT_GPU_MEMORY: "MiB",
    V.INSUFFICIENT_CPU: "CPUs",
    V.INSUFFICIENT_MEMORY: "MiB",
}
"""What a code counts where it is not GPUs."""
_WITH_NUMBERS: Final = frozenset({V.INSUFFICIENT_GPUS, *UNITS})
MOST_LOOKS: Final = 10_000
"""Nodes looked at for one answer or one turn; more would hold up the beats behind it."""
PAGE_LOOKS: Final = 2_000
"""The same for one page of a list, since a list has many."""
KEPT_S: Final = 1.0
"""A burst of equal jobs on a full yard is explained once in this time, not once per job."""
_MOST_KEPT: Final = 1000


@dataclass(slots=True)
class Explanation:
    code: VerdictCode
    message: str
    hit: quota.LimitHit | None
    """The tenant's limit that binds, on all nodes or on those that would do otherwise."""
    is_impossible: bool
    """True where no known node could ever hold the job."""
    nodes: dict[str, NodeVerdict | None]


def explain(cluster: Cluster, shape: Shape) -> tuple[VerdictCode, str]:
    """(code, message) for a queued job of this shape.

    The code is the cause met on most nodes among those nearest to fitting; the message counts
    every cause: `0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus (asked 4, most free 2)`.
    """
    if hit := binding_limit(cluster, shape):
        return V.QUOTA_EXCEEDED, _quota_words(hit, shape)
    found = verdicts(cluster, shape)
    code, message = _words(cluster, shape, found, filters.could_ever_run(cluster, shape))
    return code, message + _note(cluster, shape, code)


def code_in_steps(
    cluster: Cluster, shape: Shape, nodes_at_once: int
) -> Generator[None, None, VerdictCode]:
    """Returns the code of `explain`, and yields after every so many nodes, so that the yard may go
    on in between; then the answer is of no one moment."""
    if binding_limit(cluster, shape) is not None:
        return V.QUOTA_EXCEEDED
    found: dict[str, NodeVerdict | None] = {}
    for number, name in enumerate(list(cluster.nodes), 1):
        # One that went away meanwhile counts no more.
        if (node := cluster.nodes.get(name)) is not None:
            found[name] = why_not(cluster, node, shape)
        if number % nodes_at_once == 0:
            yield
    there = {name: verdict for name, verdict in found.items() if name in cluster.nodes}
    return _code(cluster, shape, there)


def explain_fully(cluster: Cluster, shape: Shape) -> Explanation:
    """The same with each node's answer."""
    hit = binding_limit(cluster, shape)
    # A limit that binds whatever the node is no node's fault.
    found = verdicts(cluster, shape, is_limited=hit is None)
    is_possible = filters.could_ever_run(cluster, shape)
    if hit is not None:
        is_impossible = hit.is_impossible or not is_possible
        return Explanation(V.QUOTA_EXCEEDED, _quota_words(hit, shape), hit, is_impossible, found)
    code, message = _words(cluster, shape, found, is_possible)
    message += _note(cluster, shape, code)
    masked = (
        limit_on(cluster, cluster.nodes[name], shape)
        for name, verdict in found.items()
        if verdict is not None and verdict.code is V.QUOTA_ON_MODEL
    )
    hits = [hit for hit in masked if hit is not None]
    nearest = min(hits, key=lambda hit: hit.used + hit.asked - hit.max, default=None)
    return Explanation(code, message, nearest, not is_possible, found)


@dataclass(slots=True)
class Words:
    """Explanations for one answer or one turn: each shape once, while there is time."""

    cluster: Cluster
    most_looks: int = MOST_LOOKS
    _told: dict[Shape, tuple[str, str] | None] = field(default_factory=dict)
    _looks: int = 0

    def of(self, shape: Shape) -> tuple[str, str] | None:
        """(code, message); None where too many nodes were looked at before."""
        if shape not in self._told:
            self._told[shape] = None
            if self._looks < self.most_looks:
                self._looks += max(len(self.cluster.nodes), 1)
                code, message = explain(self.cluster, shape)
                self._told[shape] = (str(code), message)
        return self._told[shape]


@dataclass(slots=True)
class RecentWords:
    """Explanations that are taken again for `KEPT_S`, so they may be as old as that."""

    _kept: dict[Shape, tuple[float, tuple[str, str]]] = field(default_factory=dict)

    def of(self, shape: Shape, words: Words, now: float) -> tuple[str, str] | None:
        """(code, message) at a monotonic time; None where `words` has none."""
        kept = self._kept.get(shape)
        if kept is not None and now - kept[0] <= KEPT_S:
            return kept[1]
        found = words.of(shape)
        if found is not None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[shape] = (now, found)
        return found


def verdicts(
    cluster: Cluster, shape: Shape, *, is_limited: bool = True
) -> dict[str, NodeVerdict | None]:
    """Every node's answer, by name."""
    nodes = [cluster.nodes[name] for name in sorted(cluster.nodes)]
    return {node.name: why_not(cluster, node, shape, is_limited=is_limited) for node in nodes}


def why_not(
    cluster: Cluster, node: Node, shape: Shape, *, is_limited: bool = True
) -> NodeVerdict | None:
    """Why a node does not take a shape now; None if it would. `is_limited`: its tenant's limits
    count, by what the GPUs would be that it grants there."""
    verdict = filters.why_not(node, shape, cluster.settings)
    if verdict is None and is_limited and (hit := limit_on(cluster, node, shape)) is not None:
        note = f"{V.QUOTA_ON_MODEL} ({hit.name} is {hit.max:g})"
        return NodeVerdict(node.name, V.QUOTA_ON_MODEL, note=note)
    if verdict is None and cluster.reservations.is_for_others(node.name, shape):
        return NodeVerdict(node.name, V.RESERVED_FOR_OTHER)
    return verdict


def fits(cluster: Cluster, node: Node, shape: Shape) -> bool:
    """True if a node would take the shape now, or one member of a gang, and its tenant's limits
    allow it."""
    return limit_anywhere(cluster, shape) is None and why_not(cluster, node, shape) is None


def limit_on(cluster: Cluster, node: Node, shape: Shape) -> quota.LimitHit | None:
    """The limit that even the cheapest GPUs which a node would grant now exceed."""
    document = cluster.tenants.get(shape.tenant)
    if not quota.depends_on_place(document, shape):
        return None
    free = filters.takers(node, shape, cluster.settings)
    ask = quota.ask_of(node, shape, quota.cheapest(node, shape, free)).times(shape.nodes)
    return quota.limit_hit(shape.tenant, document, _use(cluster, shape), ask)


def binding_limit(cluster: Cluster, shape: Shape) -> quota.LimitHit | None:
    """The tenant's limit that keeps one more job of this shape waiting, whatever the nodes say."""
    hit = limit_anywhere(cluster, shape)
    document = cluster.tenants.get(shape.tenant)
    if hit is not None or not quota.depends_on_place(document, shape):
        return hit
    asks = [
        quota.ask_of(node, shape, quota.cheapest(node, shape, gpus))
        for node in cluster.nodes.values()
        if (gpus := filters.could_hold(node, shape))
    ]
    if not asks:
        return None
    least = quota.Ask(min(a.milli for a in asks), min(a.gpu_memory_mib for a in asks))
    whole = least.times(shape.nodes)
    return quota.limit_hit(shape.tenant, document, _use(cluster, shape), whole)


def limit_anywhere(cluster: Cluster, shape: Shape) -> quota.LimitHit | None:
    """The limit that the request alone exceeds; no node is looked at."""
    document = cluster.tenants.get(shape.tenant)
    return quota.limit_hit(shape.tenant, document, _use(cluster, shape), quota.least_ask(shape))


def _use(cluster: Cluster, shape: Shape) -> Use:
    return cluster.use.get(shape.tenant) or Use()


def _quota_words(hit: quota.LimitHit, shape: Shape) -> str:
    if not hit.is_impossible:
        return hit.text
    if shape.all_gpus:
        # What `all` asks for is up to the node.
        return f"{hit.text}: no known node that could hold it has less"
    return f"{hit.text}; more than it may ever have"


def _note(cluster: Cluster, shape: Shape, code: VerdictCode) -> str:
    return "" if code is V.WAITING_TURN else instances.note(cluster, shape)


def _words(
    cluster: Cluster, shape: Shape, found: dict[str, NodeVerdict | None], is_possible: bool
) -> tuple[VerdictCode, str]:
    reasons = [verdict for verdict in found.values() if verdict is not None]
    total = len(found)
    code = _code(cluster, shape, found)
    if code is V.WAITING_TURN:
        return code, f"{total - len(reasons)}/{total} nodes fit: its turn is next"
    if not found:
        return code, "0/0 nodes fit: no node has joined the yard yet"
    if shape.nodes > 1:
        return code, _gang_words(cluster, shape, reasons, total, is_possible)
    message = f"0/{total} nodes fit: {_causes(reasons)}"
    if not is_possible:
        message += "; no known node could ever hold it"
    return code, message


def _code(cluster: Cluster, shape: Shape, found: dict[str, NodeVerdict | None]) -> VerdictCode:
    """What the answers of nodes come to."""
    codes = Counter(verdict.code for verdict in found.values() if verdict is not None)
    fitting = len(found) - codes.total()
    if fitting >= shape.nodes and _may_meet(cluster, shape, found):
        return V.WAITING_TURN
    if not found:
        return V.NODE_UNREADY
    return V.GANG_INCOMPLETE if shape.nodes > 1 else _binding(codes)


def _may_meet(cluster: Cluster, shape: Shape, found: dict[str, NodeVerdict | None]) -> bool:
    """False for a gang where no node that fits has a port left."""
    fitting = (name for name, verdict in found.items() if verdict is None)
    return shape.nodes == 1 or gang_ports.meeting_node(cluster, fitting) is not None


def _gang_words(
    cluster: Cluster, shape: Shape, reasons: list[NodeVerdict], total: int, is_possible: bool
) -> str:
    """`2 of 4 nodes fit: 1 node_cordoned, 1 insufficient_gpus (asked 8, most free 2)`."""
    message = f"{total - len(reasons)} of {shape.nodes} nodes fit"
    if total - len(reasons) >= shape.nodes:
        return f"{message}: none of them has a port left at which gangs meet"
    message += f": {_causes(reasons)}" if reasons else ""
    if not is_possible:
        could = sum(filters.could_hold(n, shape) is not None for n in cluster.nodes.values())
        message += f"; only {counted(could, 'known nodes')} could ever hold a member"
    return message


def _causes(reasons: list[NodeVerdict]) -> str:
    """Counted, the rarest first."""
    told = Counter((verdict.note or f"{verdict.code}", verdict.code) for verdict in reasons)
    ordered = sorted(told, key=lambda cause: (told[cause], cause))
    return ", ".join(
        f"{told[what, code]} {what}{_since(what, reasons)}{_numbers(code, reasons)}"
        for what, code in ordered
    )


def _since(what: str, reasons: list[NodeVerdict]) -> str:
    """Of nodes that differ in it the first."""
    first = min((v.since for v in reasons if v.note == what and v.since), default=None)
    return "" if first is None else f" since {first}"


def _binding(counts: Counter[VerdictCode]) -> VerdictCode:
    """The cause to name first: one about room beats one about the node as such."""
    near = {code: n for code, n in counts.items() if code in _WITH_NUMBERS}
    pool = near or dict(counts)
    return min(pool, key=lambda code: (-pool[code], str(code)))


def _numbers(code: VerdictCode, reasons: list[NodeVerdict]) -> str:
    if code not in _WITH_NUMBERS:
        return ""
    same = [v for v in reasons if v.code is code]
    asked, have = max(v.asked or 0 for v in same), max(v.have or 0 for v in same)
    if code not in UNITS:
        return f" (asked {asked:.7g}, most free {have:.7g})"
    return f" (asked {counted(asked, UNITS[code])}, most free {counted(have, UNITS[code])})"
