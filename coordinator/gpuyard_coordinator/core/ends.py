"""The fewest ends of other jobs that let a waiting one start; see `changes`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from gpuyard.model.quantities import format_days, parse_duration_s
from gpuyard.model.states import HOLDING_STATES
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import explain, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import Explanation
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.state import Job, Node, Shape

V = VerdictCode
Change = dict[str, Any]
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


def after_others(
    cluster: Cluster, shape: Shape, refusing: dict[str, NodeVerdict]
) -> Iterator[Change]:
    """The fewest jobs of one node whose ends make room on it."""

    def lack(verdict: NodeVerdict) -> tuple[float, str]:
        asked = verdict.asked or 0
        return (asked - (verdict.have or 0)) / max(asked, 1), verdict.node

    lacking = sorted((v for v in refusing.values() if v.code in _ROOM), key=lack)
    best: list[Job] | None = None
    for verdict in lacking[:MOST_NODES]:
        node = cluster.nodes[verdict.node]
        holders = [job for job, _ in node.attempts.values()]
        least = _least_ends(verdict, shape, holders)
        if best is not None and least >= len(best):
            continue
        jobs = _enough(cluster, shape, holders, [node], least)
        if jobs is not None and (best is None or len(jobs) < len(best)):
            best = jobs
        if best is not None and len(best) == 1:
            break
    if best is not None:
        yield _wait_for(best)


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


def after_own(cluster: Cluster, shape: Shape, found: Explanation) -> Iterator[Change]:
    """The tenant's own jobs whose ends take its use below the limit."""
    own = [job for job in cluster.jobs.values() if job.tenant == shape.tenant]
    holders = _longest_first(job for job in own if job.state in HOLDING_STATES)
    names = {job.last.node for job in holders if job.last}
    names |= set([name for name, verdict in found.nodes.items() if verdict is None][:1])
    nodes = [node for name in sorted(names) if (node := cluster.nodes.get(name)) is not None]
    jobs = _enough(cluster, shape, holders, nodes)
    if jobs is not None:
        yield _wait_for(jobs)


def _longest_first(jobs: Iterable[Job]) -> list[Job]:
    """As many as are looked at."""
    return sorted(jobs, key=lambda job: (job.started_at or "~", job.submit_seq))[:_MOST_JOBS]


def _enough(
    cluster: Cluster, shape: Shape, jobs: Iterable[Job], nodes: Sequence[Node], least: int = 1
) -> list[Job] | None:
    """The fewest jobs after whose ends one of the nodes takes the shape: one, the longest running
    first, else those that hold most; None where not even all of them would do.

    Fewer than `least` are known not to be enough.
    """

    def is_enough(ended: Sequence[Job]) -> bool:
        with ledger.as_if_ended(cluster, ended):
            return any(explain.fits(cluster, node, shape) for node in nodes)

    by_age = _longest_first(jobs)
    for job in by_age if least <= 1 else ():
        if is_enough([job]):
            return [job]
    chosen = sorted(by_age, key=lambda job: -_held(job))
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


def _wait_for(jobs: Sequence[Job]) -> Change:
    change: Change = {
        "kind": "wait_for",
        "jobs": [{"tenant": job.tenant, "id": job.id} for job in jobs],
    }
    if len(jobs) > 1:
        return change | {"text": f"wait for the ends of jobs {', '.join(job.id for job in jobs)}"}
    (job,) = jobs
    text = f"wait for the end of job {job.id} of {job.user}"
    limit = job.spec.get("max_runtime")
    if limit and job.started_at:
        text += f" (started {job.started_at}, at most {format_days(parse_duration_s(limit))})"
    return change | {"text": text}
