"""The fewest ends of other jobs that let a waiting one start; see `changes`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final

from gpuyard.model.states import HOLDING_STATES
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.why import Change
from gpuyard_coordinator.core import explain, ledger
from gpuyard_coordinator.core.backfill import expected_end
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import Explanation
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.moments import later
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Node, Now

V = VerdictCode
MOST_NODES: Final = 32
"""Nodes whose jobs are looked at for ends that make room: those that lack least."""
_MOST_JOBS: Final = 64
_ROOM: Final = frozenset(
    {
        V.INSUFFICIENT_GPUS,
        V.INSUFFICIENT_GPU_MEMORY,
        V.INSUFFICIENT_CPU,
        V.INSUFFICIENT_MEMORY,
        V.NODE_DOCUMENT_FULL,
    }
)


def nearest(refusing: dict[str, NodeVerdict], most: int = MOST_NODES) -> list[NodeVerdict]:
    """The nodes that lack nothing but room, those that lack least first."""

    def lack(verdict: NodeVerdict) -> tuple[float, str]:
        asked = verdict.asked or 0
        return (asked - (verdict.have or 0)) / max(asked, 1), verdict.node

    return sorted((v for v in refusing.values() if v.code in _ROOM), key=lack)[:most]


def after_others(
    cluster: Cluster, shape: Shape, refusing: dict[str, NodeVerdict], now: Now
) -> Iterator[Change]:
    """The fewest jobs of one node whose ends make room on it; of as many those that end first."""
    best: list[Job] = []
    best_cost = (inf, inf)
    for verdict in nearest(refusing):
        node = cluster.nodes[verdict.node]
        holders = [job for job, _ in node.attempts.values()]
        least = _least_ends(verdict, shape, holders)
        first = min((expected_end(job, now) for job in holders), default=inf)
        if (least, first) >= best_cost:
            continue
        jobs = _enough(cluster, shape, holders, [node], now, least)
        if jobs is not None and (cost := (len(jobs), _last_end(jobs, now))) < best_cost:
            best, best_cost = jobs, cost
    if best:
        yield wait_for(best, best_cost[1], now)


def _least_ends(verdict: NodeVerdict, shape: Shape, holders: Sequence[Job]) -> int:
    """A number of ends below which a node surely has no room: by counting what each job holds of
    what is lacking, where that can be counted."""
    if verdict.asked is None or verdict.have is None or shape.is_share:
        return 1
    frees = _FREED.get(verdict.code)
    if frees is None:
        return 1
    lack, ends = verdict.asked - verdict.have, 0
    for freed in sorted((frees(job) for job in holders), reverse=True):
        if lack <= 0:
            break
        lack, ends = lack - freed, ends + 1
    return max(ends, 1)


_FREED: Final[dict[VerdictCode, Callable[[Job], float]]] = {
    V.INSUFFICIENT_GPUS: lambda job: len(job.last.gpus) if job.last else 0,
    V.INSUFFICIENT_CPU: lambda job: job.shape.cpu_milli / 1000,
    V.INSUFFICIENT_MEMORY: lambda job: job.shape.memory_mib,
}
"""At most so much of what a code counts is free after a job's end."""


def after_own(cluster: Cluster, shape: Shape, found: Explanation, now: Now) -> Iterator[Change]:
    """The tenant's own jobs whose ends take its use below the limit."""
    own = [job for job in cluster.jobs.values() if job.tenant == shape.tenant]
    holders = _first_to_end((job for job in own if job.state in HOLDING_STATES), now)
    names = {job.last.node for job in holders if job.last}
    names |= set([name for name, verdict in found.nodes.items() if verdict is None][:1])
    nodes = [node for name in sorted(names) if (node := cluster.nodes.get(name)) is not None]
    jobs = _enough(cluster, shape, holders, nodes, now)
    if jobs is not None:
        yield wait_for(jobs, _last_end(jobs, now), now)


def _first_to_end(jobs: Iterable[Job], now: Now) -> list[Job]:
    """As many as are looked at: of those whose end nobody knows the longest running first."""

    def place(job: Job) -> tuple[float, str, int]:
        return expected_end(job, now), job.started_at or "~", job.submit_seq

    return sorted(jobs, key=place)[:_MOST_JOBS]


def _last_end(jobs: Iterable[Job], now: Now) -> float:
    return max(expected_end(job, now) for job in jobs)


def _enough(
    cluster: Cluster,
    shape: Shape,
    jobs: Iterable[Job],
    nodes: Sequence[Node],
    now: Now,
    least: int = 1,
) -> list[Job] | None:
    """The fewest jobs after whose ends one of the nodes takes the shape: one, that which ends
    first, else those that hold most; None where not even all of them would do.

    Fewer than `least` are known not to be enough.
    """

    def is_enough(ended: Sequence[Job]) -> bool:
        with ledger.as_if_ended(cluster, ended):
            return any(explain.fits(cluster, node, shape) for node in nodes)

    by_end = _first_to_end(jobs, now)
    for job in by_end if least <= 1 else ():
        if is_enough([job]):
            return [job]
    chosen = sorted(by_end, key=lambda job: -_held(job))
    if not is_enough(chosen):
        return None
    for job in reversed(list(chosen)):
        if len(chosen) <= least:
            break
        fewer = [other for other in chosen if other is not job]
        chosen = fewer if is_enough(fewer) else chosen
    return chosen


def _held(job: Job) -> int:
    return sum(granted["milli"] for granted in job.last.gpus) if job.last else 0


def wait_for(jobs: Sequence[Job], end: float, now: Now, *, why: str = "") -> Change:
    """The change of waiting for these jobs, which are over at `end`, monotonic, at the latest."""
    at = None if end == inf else later(now.at, end - now.mono)
    if len(jobs) == 1:
        text = f"wait for the end of job {jobs[0].id} of {jobs[0].user}"
    else:
        text = f"wait for the ends of jobs {', '.join(job.id for job in jobs)}"
    text += f", {why}" if why else ""
    return {
        "kind": "wait_for",
        "jobs": [{"tenant": job.tenant, "id": job.id} for job in jobs],
        "expected_at": at,
        "text": text if at is None else f"{text}, until {at} at the latest",
    }
