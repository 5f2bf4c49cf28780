"""Why a job waits: the filters' answers counted over the fleet, in kubectl's manner."""

from collections import Counter

from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import filters, quota
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.state import Shape

V = VerdictCode
_WITH_NUMBERS = frozenset(
    {V.INSUFFICIENT_GPUS, V.INSUFFICIENT_GPU_MEMORY, V.INSUFFICIENT_CPU, V.INSUFFICIENT_MEMORY}
)
_UNITS = {V.INSUFFICIENT_CPU: 1000}


def explain(cluster: Cluster, shape: Shape) -> tuple[VerdictCode, str]:
    """(code, message) for a queued job of this shape.

    The code is the cause met on most nodes among those nearest to fitting; the message counts
    every cause: `0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus (asked 4, most free 2)`.
    """
    if hit := binding_limit(cluster, shape):
        return V.QUOTA_EXCEEDED, hit.text
    verdicts = [
        verdict
        for node in cluster.nodes.values()
        if (verdict := filters.why_not(node, shape, cluster.settings)) is not None
    ]
    total = len(cluster.nodes)
    if len(verdicts) < total:
        return V.WAITING_TURN, f"{total - len(verdicts)}/{total} nodes fit: its turn is next"
    if not verdicts:
        return V.NODE_UNREADY, "0/0 nodes fit: no node has joined the yard yet"
    counts = Counter(verdict.code for verdict in verdicts)
    ordered = sorted(counts, key=lambda code: (counts[code], str(code)))
    parts = [f"{counts[code]} {code}{_numbers(code, verdicts)}" for code in ordered]
    message = f"0/{total} nodes fit: {', '.join(parts)}"
    if not filters.could_ever_run(cluster, shape):
        message += "; no known node could ever hold it"
    return _binding(counts), message


def binding_limit(cluster: Cluster, shape: Shape) -> quota.LimitHit | None:
    """The tenant's limit that keeps one more job of this shape waiting, whatever the nodes say."""
    document = cluster.tenants.get(shape.tenant)
    use = cluster.use_of(shape.tenant)
    return quota.limit_hit(shape.tenant, document, use, quota.least_ask(shape))


def _binding(counts: Counter[VerdictCode]) -> VerdictCode:
    """The cause to name first: one about room beats one about the node as such."""
    near = {code: n for code, n in counts.items() if code in _WITH_NUMBERS}
    pool = near or dict(counts)
    return min(pool, key=lambda code: (-pool[code], str(code)))


def _numbers(code: VerdictCode, verdicts: list[NodeVerdict]) -> str:
    if code not in _WITH_NUMBERS:
        return ""
    same = [v for v in verdicts if v.code is code]
    scale = _UNITS.get(code, 1)
    asked = max(v.asked or 0 for v in same) / scale
    have = max((v.have or 0) for v in same) / scale
    return f" (asked {asked:g}, most free {have:g})"
