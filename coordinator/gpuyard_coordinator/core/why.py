"""Why a job waits, in full (INTERFACES table D): per node, the limit that binds, smallest changes.

Every change offered was tried on the books first: with it, and it alone, the job would start now.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from gpuyard.model.states import JobState, NodeState, Scheduling
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views import LimitView, NodeFit, ReasonView, WhyView
from gpuyard_coordinator.core import filters, quota
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import binding_limit, explain
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job, Node, Settings, Shape

V = VerdictCode
MOST_CHANGES: Final = 5
Change = dict[str, Any]


def why(cluster: Cluster, job: Job) -> WhyView:
    """Table D of a job; one that does not wait has neither verdict nor changes."""
    view = why_shape(cluster, job.shape, since=job.queued_at)
    view["job"], view["state"] = job.id, str(job.state)
    if job.state is not JobState.QUEUED:
        view["verdict"], view["changes"] = None, []
    return view


def why_shape(cluster: Cluster, shape: Shape, *, since: str | None) -> WhyView:
    """Table D of a request that is no job yet."""
    found = {
        name: filters.why_not(node, shape, cluster.settings)
        for name, node in sorted(cluster.nodes.items())
    }
    code, message = explain(cluster, shape)
    counts = Counter(str(verdict.code) for verdict in found.values() if verdict is not None)
    hit = binding_limit(cluster, shape)
    return {
        "v": 1,
        "job": None,
        "state": None,
        "verdict": {
            "code": str(code),
            "message": message,
            "since": since,
            "counts": dict(counts),
            "limit": None if hit is None else _limit(hit),
            "impossible_now": not filters.could_ever_run(cluster, shape),
        },
        "nodes": [_fit(name, verdict) for name, verdict in found.items()],
        "changes": list(_changes(cluster, shape, found, hit))[:MOST_CHANGES],
    }


def _limit(hit: quota.LimitHit) -> LimitView:
    return {
        "scope": f"tenant {hit.tenant}",
        "name": hit.name,
        "used": hit.used,
        "asked": hit.asked,
        "max": hit.max,
    }


def _fit(name: str, verdict: NodeVerdict | None) -> NodeFit:
    reasons: list[ReasonView] = []
    if verdict is not None:
        reasons = [{"code": str(verdict.code), "asked": verdict.asked, "have": verdict.have}]
    return {"name": name, "fits": verdict is None, "reasons": reasons}


def _changes(
    cluster: Cluster,
    shape: Shape,
    found: dict[str, NodeVerdict | None],
    hit: quota.LimitHit | None,
) -> Iterator[Change]:
    if hit is not None:
        yield from _quota_changes(cluster, shape, hit, found)
        return
    yield from _smaller(cluster, shape)
    yield from _fewer_lines(cluster, shape)
    for name, verdict in found.items():
        if verdict is not None:
            yield from _at_node(cluster, cluster.nodes[name], shape, verdict)
    yield from _after_others(cluster, shape)


def _fits_somewhere(cluster: Cluster, shape: Shape) -> bool:
    return any(
        filters.why_not(node, shape, cluster.settings) is None for node in cluster.nodes.values()
    )


def _quota_changes(
    cluster: Cluster,
    shape: Shape,
    hit: quota.LimitHit,
    found: dict[str, NodeVerdict | None],
) -> Iterator[Change]:
    """Raising the limit, or a job of the tenant that makes room by its end."""
    if any(verdict is None for verdict in found.values()):
        by = hit.used + hit.asked - hit.max
        yield {
            "kind": "raise_limit",
            "tenant": hit.tenant,
            "limit": hit.name,
            "by": by,
            "text": f"raise limits.{hit.name} of tenant {hit.tenant} by {by:g}",
        }
    ask = quota.least_ask(shape)
    for job in _holders(cluster, hit.tenant):
        last = job.last
        held = sum(gpu["milli"] for gpu in last.gpus) if last else 0
        if hit.name != "gpus" or held >= ask.milli:
            yield _wait_for(job)
            return


def _holders(cluster: Cluster, tenant: str) -> list[Job]:
    jobs = (job for job in cluster.jobs.values() if job.tenant == tenant)
    held = [job for job in jobs if job.state is not JobState.QUEUED]
    return sorted(held, key=lambda job: (job.started_at or "~", job.submit_seq))


def _wait_for(job: Job) -> Change:
    text = f"wait for the end of job {job.id} of {job.user}"
    limit = job.spec.get("max_runtime")
    if limit and job.started_at:
        text += f" (started {job.started_at}, at most {limit})"
    return {"kind": "wait_for", "job": job.id, "tenant": job.tenant, "text": text}


def _smaller(cluster: Cluster, shape: Shape) -> Iterator[Change]:
    """The largest smaller request of one kind that fits now."""
    for count in range(shape.gpus - 1, 0, -1):
        if _fits_somewhere(cluster, replace(shape, gpus=count)):
            yield _ask_less("gpus", shape.gpus, count, f"ask for {count} GPUs")
            break
    if shape.share_mib:
        most = _largest_share(cluster, shape)
        if most and _fits_somewhere(cluster, replace(shape, share_mib=most)):
            text = f"ask for {most} MiB of a GPU"
            yield _ask_less("gpus.memory_mib", shape.share_mib, most, text)
    cpus = {filters.cpu_milli_free(node) or 0 for node in cluster.nodes.values()}
    for left in sorted((n for n in cpus if 0 < n < shape.cpu_milli), reverse=True):
        if _fits_somewhere(cluster, replace(shape, cpu_milli=left)):
            yield _ask_less(
                "cpus", shape.cpu_milli / 1000, left / 1000, f"ask for {left / 1000:g} CPUs"
            )
            break
    memory = {filters.memory_mib_free(node) or 0 for node in cluster.nodes.values()}
    for left in sorted((n for n in memory if 0 < n < shape.memory_mib), reverse=True):
        if _fits_somewhere(cluster, replace(shape, memory_mib=left)):
            yield _ask_less("memory_mib", shape.memory_mib, left, f"ask for {left} MiB of memory")
            break


def _ask_less(field: str, asked: float, to: float, text: str) -> Change:
    return {
        "kind": "ask_less",
        "field": field,
        "asked": asked,
        "to": to,
        "text": f"{text} or fewer",
    }


def _largest_share(cluster: Cluster, shape: Shape) -> int:
    verdicts = (filters.why_not(node, shape, cluster.settings) for node in cluster.nodes.values())
    return max(
        (v.have or 0 for v in verdicts if v and v.code is V.INSUFFICIENT_GPU_MEMORY), default=0
    )


def _fewer_lines(cluster: Cluster, shape: Shape) -> Iterator[Change]:
    """One line of `where`, or the node's name, without which it fits."""
    for condition in shape.where:
        rest = tuple(c for c in shape.where if c != condition)
        if _fits_somewhere(cluster, replace(shape, where=rest)):
            text = f"drop the line {condition}"
            yield {"kind": "drop_where", "line": str(condition), "text": text}
    if shape.node is not None and _fits_somewhere(cluster, replace(shape, node=None)):
        yield {"kind": "drop_node", "text": f"do not ask for node {shape.node}"}


def _at_node(cluster: Cluster, node: Node, shape: Shape, verdict: NodeVerdict) -> Iterator[Change]:
    """What somebody could do to this node alone."""
    if verdict.code is V.NODE_CORDONED:
        yield from _uncordon(node, shape, cluster.settings)
    elif verdict.code is V.FOREIGN_MEMORY:
        for gpu in node.gpus.values():
            for process in gpu.sample["foreign"] if gpu.sample else ():
                yield {
                    "kind": "end_foreign",
                    "node": node.name,
                    "gpu": gpu.facts["uuid"],
                    "pid": process["pid"],
                    "text": f"end process {process['pid']} of {process['user'] or 'unknown'} on "
                    f"GPU {gpu.facts['index']} of {node.name}",
                }


def _uncordon(node: Node, shape: Shape, settings: Settings) -> Iterator[Change]:
    """Lifting the node's cordon, or those of its GPUs, where that alone would do."""
    scheduling, node.scheduling = node.scheduling, Scheduling.OPEN
    try:
        fits_open = filters.why_not(node, shape, settings) is None
    finally:
        node.scheduling = scheduling
    if fits_open and scheduling is not Scheduling.OPEN:
        text = f"gpuyard uncordon {node.name}"
        yield {"kind": "uncordon", "node": node.name, "gpu": None, "text": text}
        return
    for gpu in node.gpus.values():
        cordon, gpu.cordon = gpu.cordon, None
        try:
            fits = cordon is not None and filters.why_not(node, shape, settings) is None
        finally:
            gpu.cordon = cordon
        if fits:
            uuid = gpu.facts["uuid"]
            text = f"gpuyard uncordon {node.name} --gpu {uuid}"
            yield {"kind": "uncordon", "node": node.name, "gpu": uuid, "text": text}


def _after_others(cluster: Cluster, shape: Shape) -> Iterator[Change]:
    """Jobs of one node whose ends make room: the fewest, found node by node."""
    best: list[Job] | None = None
    for node in cluster.nodes.values():
        if node.state is not NodeState.READY or not shape.wants_gpus or shape.is_share:
            continue
        jobs = _enough_holders(node, shape)
        if jobs is not None and (best is None or len(jobs) < len(best)):
            best = jobs
    if best is None:
        return
    if len(best) == 1:
        yield _wait_for(best[0])
        return
    names = ", ".join(job.id for job in best)
    yield {
        "kind": "wait_for",
        "jobs": [job.id for job in best],
        "text": f"wait for the ends of jobs {names}",
    }


def _enough_holders(node: Node, shape: Shape) -> list[Job] | None:
    """The fewest jobs of a node whose GPUs, with the free ones, are enough; None if none are."""
    fits = filters.matching(node, shape)
    if fits is None or filters.node_block(node, shape.tolerate):
        return None
    asked = len(fits) if shape.all_gpus else shape.gpus or len(shape.gpu_ids)
    if shape.gpu_ids:
        fits = frozenset(filters.find_ids(node, shape.gpu_ids) or ()) & fits
    free = sum(node.gpus[uuid].free_milli == WHOLE_GPU_MILLI for uuid in fits)
    held: Counter[str] = Counter()
    jobs: dict[str, Job] = {}
    for job, attempt in node.attempts.values():
        jobs[job.id] = job
        held[job.id] = sum(granted["uuid"] in fits for granted in attempt.gpus)
    chosen: list[Job] = []
    for id, count in sorted(held.items(), key=lambda item: (-item[1], item[0])):
        if free >= asked:
            break
        if count:
            free += count
            chosen.append(jobs[id])
    return chosen if chosen and free >= asked else None
