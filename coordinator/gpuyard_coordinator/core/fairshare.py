"""Weighted fair share: of equal tenants the one that had least for its weight goes first.

A tenant's share is its dominant one: the largest of its parts of the fleet's GPUs, CPUs and host
memory. It counts what it holds now and, `PAST` times, what it held on average of late; their sum
is divided by its weight. The fleet is all nodes that are ready.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuyard.model.node import NodeFacts
from gpuyard.model.states import NodeState
from gpuyard_coordinator.core import instances
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.history import SPAN_MS, Amounts, History, settled
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job, Node, Now

WHOLE_PPB: Final = 1_000_000_000
"""A share of everything."""
PAST: Final = 4
"""How much an average of late counts beside what is held now. Were they equal, a part that whole
GPUs round off in one's favour would stay so: four times as much evens out a quarter of a job."""
DEFAULT_PRIORITY: Final = 50
DEFAULT_WEIGHT: Final = 1


def rank_of(cluster: Cluster, job: Job) -> Rank:
    return Rank(priority_of(cluster.tenants.get(job.tenant)), job.priority)


def priority_of(document: Mapping[str, Any] | None) -> int:
    """Of a tenant among tenants."""
    priority = (document or {}).get("priority")
    return DEFAULT_PRIORITY if priority is None else priority


def settle(cluster: Cluster, tenant: str, now: Now) -> None:
    """Writes down what a tenant held until now; to be called before that changes."""
    cluster.history[tenant] = history_of(cluster, tenant, now)


def history_of(cluster: Cluster, tenant: str, now: Now) -> History:
    held = amounts(cluster.use.get(tenant) or Use())
    now_ms = cluster.clock_ms(now)
    history = cluster.history.get(tenant)
    return settled(History(until_ms=now_ms) if history is None else history, held, now_ms)


def amounts(use: Use) -> Amounts:
    return (use.milli, use.cpu_milli, use.memory_mib)


class _Counted(NamedTuple):
    """A node as it was counted last."""

    facts: NodeFacts
    generation: int
    state: NodeState
    adds: Amounts


@dataclass(slots=True)
class Fleet:
    """What all nodes that are ready have together, kept node by node."""

    whole: Amounts = (0, 0, 0)
    _nodes: dict[str, _Counted] = field(default_factory=dict)

    def count(self, name: str, node: Node | None) -> bool:
        """Counts a node as it is now, None for one that is gone; True if its inventory is another
        one than when it was counted last."""
        known = self._nodes.get(name)
        if known is not None and node is not None and _is_as_counted(node, known):
            return False
        before: Amounts = (0, 0, 0) if known is None else known.adds
        after: Amounts = (0, 0, 0)
        if node is None:
            self._nodes.pop(name, None)
        else:
            after = _capacity(node)
            self._nodes[name] = _Counted(node.facts, node.generation, node.state, after)
        gpus, cpus, memory = (
            whole - old + new for whole, old, new in zip(self.whole, before, after, strict=True)
        )
        self.whole = (gpus, cpus, memory)
        return node is None or known is None or node.generation != known.generation


def _is_as_counted(node: Node, known: _Counted) -> bool:
    is_same_inventory = node.facts is known.facts and node.generation == known.generation
    return is_same_inventory and node.state is known.state


def whole(cluster: Cluster) -> Amounts:
    """The fleet at once, by a look at every node."""
    each = [_capacity(node) for node in cluster.nodes.values()]
    return (sum(a[0] for a in each), sum(a[1] for a in each), sum(a[2] for a in each))


def _capacity(node: Node) -> Amounts:
    if node.state is not NodeState.READY:
        return (0, 0, 0)
    cpus, memory = node.facts["cpus"], node.facts["memory_mib"]
    gpus = len(instances.cards(node))
    return (gpus * WHOLE_GPU_MILLI, round((cpus or 0) * 1000), memory or 0)


def standing(held: Amounts, history: History, fleet: Amounts, weight: int) -> int:
    """How much a tenant has had for its weight, in parts per billion; the least goes first."""
    return (past_share(history, fleet) + dominant(held, fleet)) // weight


def past_share(history: History, fleet: Amounts) -> int:
    """`PAST` times the dominant share that a tenant held on average of late, in parts per
    billion."""
    gpus, cpus, memory = fleet
    return PAST * dominant(history.spent, (gpus * SPAN_MS, cpus * SPAN_MS, memory * SPAN_MS))


def dominant(parts: Amounts, whole: Amounts) -> int:
    """The largest of the parts of the whole, in parts per billion."""
    return max(_share(parts[0], whole[0]), _share(parts[1], whole[1]), _share(parts[2], whole[2]))


def weight_of(document: Mapping[str, Any] | None) -> int:
    return (document or {}).get("weight") or DEFAULT_WEIGHT


def _share(part: int, whole: int) -> int:
    return part * WHOLE_PPB // whole if whole else 0
