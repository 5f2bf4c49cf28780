"""The smallest changes that would start a waiting job: of its request, by others' ends, of a node,
of its tenant's limits.

Every change offered was tried on the books first: with it, and it alone, the job could start now,
were no other waiting job before it; one that is `all_of` several says so. Work is bounded: at most
a few looks at each node.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from math import ceil, floor
from typing import Any, Final

from gpuyard.model.node import GpuSample
from gpuyard.model.quantities import counted
from gpuyard.model.states import Scheduling
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.why import Change
from gpuyard_coordinator.core import ends, explain, loosening, overtaking, quota, selection
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import Explanation
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.overtaking import Asked
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Gpu, Node, Now

V = VerdictCode
MOST_CHANGES: Final = 5
_NOT_OF_GPUS: Final = frozenset({V.INSUFFICIENT_CPU, V.INSUFFICIENT_MEMORY})
"""Codes whose numbers are not numbers of GPUs."""
_MOST_LIMITS: Final = 4
"""Of a tenant, that are raised together."""


def changes(cluster: Cluster, asked: Asked, found: Explanation, now: Now) -> list[Change]:
    """At most `MOST_CHANGES`: what the submitter can do, then what waiting does, then operators."""
    if found.code is V.WAITING_TURN:
        return []
    if asked.shape.nodes > 1:
        return list(_fewer_nodes(cluster, asked.shape))
    return list(islice(_changes(cluster, asked, found, now), MOST_CHANGES))


def _changes(cluster: Cluster, asked: Asked, found: Explanation, now: Now) -> Iterator[Change]:
    shape = asked.shape
    if found.code is V.QUOTA_EXCEEDED and found.hit is not None:
        yield from _within_the_limit(cluster, shape, found.hit)
        yield from ends.after_own(cluster, shape, found, now)
        yield from _raised_limits(cluster, shape, found.hit)
        return
    refusing = {name: verdict for name, verdict in found.nodes.items() if verdict is not None}
    yield from _smaller(cluster, shape, refusing)
    yield from loosening.fewer_lines(cluster, shape, refusing)
    yield from overtaking.overtake(cluster, asked, refusing, now)
    yield from overtaking.wait_for_holder(cluster, asked, refusing, now)
    yield from ends.after_others(cluster, shape, refusing, now)
    masked = [n for n, verdict in refusing.items() if verdict.code is V.QUOTA_ON_MODEL]
    hits = [explain.limit_on(cluster, cluster.nodes[name], shape) for name in masked]
    yield from _raised_limit(cluster, shape, [hit for hit in hits if hit is not None])
    yield from _more_models(cluster, shape, refusing)
    for name, verdict in refusing.items():
        yield from _at_node(cluster, cluster.nodes[name], shape, verdict)


def _starts(cluster: Cluster, shape: Shape) -> bool:
    takers = (n for n in cluster.nodes.values() if explain.fits(cluster, n, shape))
    return sum(1 for _ in islice(takers, shape.nodes)) == shape.nodes


def _fewer_nodes(cluster: Cluster, shape: Shape) -> Iterator[Change]:
    """The largest smaller gang that would start: what a smaller one lacks, a larger one lacks."""
    sizes = range(1, shape.nodes)
    too_many = bisect_left(sizes, True, key=lambda n: not _starts(cluster, replace(shape, nodes=n)))
    if too_many:
        to = sizes[too_many - 1]
        text = f"ask for {counted(to, 'nodes')}"
        yield {"kind": "ask_less", "field": "nodes", "to": to, "text": text}


def _smaller(cluster: Cluster, shape: Shape, refusing: dict[str, NodeVerdict]) -> Iterator[Change]:
    """The largest smaller request of each kind that some node takes now."""
    if shape.gpus or shape.all_gpus:
        of_gpus = {n: v for n, v in refusing.items() if v.code not in _NOT_OF_GPUS}
        yield from _largest(cluster, of_gpus, shape, None, _fewer_gpus)
    if shape.gpu_ids:
        count = len(shape.gpu_ids)
        if _starts(cluster, replace(shape, gpus=count, gpu_ids=())):
            text = f"ask for {_gpus(count)} without naming {'it' if count == 1 else 'them'}"
            yield {"kind": "any_gpus", "field": "gpus", "to": count, "text": text}
    if shape.share_mib is not None:
        yield from _largest(cluster, refusing, shape, V.INSUFFICIENT_GPU_MEMORY, _less_memory)
    if shape.share_core_percent is not None:
        yield from _largest(cluster, refusing, shape, V.INSUFFICIENT_GPUS, _less_compute)
    yield from _largest(cluster, refusing, shape, V.INSUFFICIENT_CPU, _fewer_cpus)
    yield from _largest(cluster, refusing, shape, V.INSUFFICIENT_MEMORY, _less_host_memory)


Smaller = Callable[[Shape, float], tuple[Shape, Change]]


def _largest(
    cluster: Cluster,
    refusing: dict[str, NodeVerdict],
    shape: Shape,
    code: VerdictCode | None,
    smaller: Smaller,
) -> Iterator[Change]:
    """Asks each node for what it says that it has, the one that has most first."""
    lacking = [v for v in refusing.values() if v.have and (code is None or v.code is code)]
    for verdict in sorted(lacking, key=lambda v: (-(v.have or 0), v.node)):
        less, change = smaller(shape, verdict.have or 0)
        if explain.fits(cluster, cluster.nodes[verdict.node], less):
            yield change
            return


def _fewer_gpus(shape: Shape, have: float) -> tuple[Shape, Change]:
    asked: Any = "all" if shape.all_gpus else shape.gpus
    return (
        replace(shape, gpus=floor(have), all_gpus=False),
        _ask_less("gpus", asked, floor(have), _gpus(floor(have), shape), is_least=floor(have) == 1),
    )


def _less_memory(shape: Shape, have: float) -> tuple[Shape, Change]:
    mib = floor(have)
    change = _ask_less("gpus.memory_mib", shape.share_mib, mib, f"{mib} MiB of a GPU")
    return replace(shape, share_mib=mib), change


def _less_compute(shape: Shape, have: float) -> tuple[Shape, Change]:
    percent = round(have * 100, 1)
    change = _ask_less(
        "gpus.core_percent", shape.share_core_percent, percent, f"{percent:g}% of a GPU"
    )
    return replace(shape, share_core_percent=percent), change


def _fewer_cpus(shape: Shape, have: float) -> tuple[Shape, Change]:
    less = replace(shape, cpu_milli=round(have * 1000))
    return less, _ask_less("cpus", shape.cpu_milli / 1000, have, counted(have, "CPUs"))


def _less_host_memory(shape: Shape, have: float) -> tuple[Shape, Change]:
    mib = floor(have)
    change = _ask_less("memory_mib", shape.memory_mib, mib, f"{mib} MiB of memory")
    return replace(shape, memory_mib=mib), change


def _ask_less(field: str, asked: Any, to: float, text: str, *, is_least: bool = False) -> Change:
    text = f"ask for {text}" if is_least else f"ask for {text} or fewer"
    return {"kind": "ask_less", "field": field, "asked": asked, "to": to, "text": text}


def _gpus(count: int, shape: Shape | None = None) -> str:
    if shape is not None and shape.mig is not None:
        return f"{count} of mig={shape.mig}"
    return counted(count, "GPUs")


def _within_the_limit(cluster: Cluster, shape: Shape, hit: quota.LimitHit) -> Iterator[Change]:
    """Fewer GPUs, where the limit leaves some."""
    left = floor(hit.max - hit.used)
    if hit.name in ("gpus", "per_job.max_gpus") and (shape.gpus > left > 0 or shape.all_gpus):
        less, change = _fewer_gpus(shape, left)
        if left > 0 and _starts(cluster, less):
            yield change


def _raised_limit(
    cluster: Cluster, shape: Shape, hits: Sequence[quota.LimitHit]
) -> Iterator[Change]:
    """The least raise of one limit that is enough by itself."""
    document = cluster.tenants.get(shape.tenant) or {}
    for hit in sorted(hits, key=lambda hit: hit.used + hit.asked - hit.max)[: ends.MOST_NODES]:
        with _as_if_applied(cluster, shape.tenant, _with_raise(document, hit)):
            is_enough = _starts(cluster, shape)
        if is_enough:
            yield _raise_of(hit)
            return


def _raised_limits(cluster: Cluster, shape: Shape, hit: quota.LimitHit) -> Iterator[Change]:
    """The least raises of all limits that bind, one after another, where that is enough."""
    document: dict[str, Any] = cluster.tenants.get(shape.tenant) or {}
    raises: list[Change] = []
    while len(raises) < _MOST_LIMITS:
        document = _with_raise(document, hit)
        raises.append(_raise_of(hit))
        with _as_if_applied(cluster, shape.tenant, document):
            is_enough = _starts(cluster, shape)
            other = None if is_enough else explain.binding_limit(cluster, shape)
        if is_enough:
            yield loosening.all_of(raises)
        if other is None:
            return
        hit = other


def _with_raise(document: dict[str, Any], hit: quota.LimitHit) -> dict[str, Any]:
    part, _, key = hit.name.rpartition(".")
    limits = {**document.get(part or "limits", {}), key: hit.max + _raise_by(hit)}
    return {**document, part or "limits": limits}


def _raise_by(hit: quota.LimitHit) -> float:
    return ceil(round((hit.used + hit.asked - hit.max) * 1000, 6)) / 1000


def _raise_of(hit: quota.LimitHit) -> Change:
    path, by = hit.name if "." in hit.name else f"limits.{hit.name}", _raise_by(hit)
    text = f"raise {path} of tenant {hit.tenant} by {by:.10g}"
    return {
        "kind": "raise_limit",
        "tenant": hit.tenant,
        "limit": hit.name,
        "by": by,
        "text": text,
    }


@contextmanager
def _as_if_applied(cluster: Cluster, tenant: str, document: dict[str, Any]) -> Iterator[None]:
    before = cluster.tenants[tenant]
    cluster.tenants[tenant] = document
    try:
        yield
    finally:
        cluster.tenants[tenant] = before


def _more_models(
    cluster: Cluster, shape: Shape, refusing: dict[str, NodeVerdict]
) -> Iterator[Change]:
    """A model that the tenant may not use and that would do."""
    offered: set[str] = set()
    for name, verdict in refusing.items():
        if verdict.code is not V.MODEL_NOT_ALLOWED:
            continue
        node = cluster.nodes[name]
        for gpu in node.gpus.values():
            model = gpu.facts["labels"].get("gpu-name")
            if not model or model in offered or selection.is_allowed_model(gpu, shape):
                continue
            offered.add(model)
            if explain.fits(cluster, node, replace(shape, models=(*(shape.models or ()), model))):
                text = f"add {model} to models of tenant {shape.tenant}"
                yield {
                    "kind": "allow_model",
                    "tenant": shape.tenant,
                    "model": model,
                    "text": text,
                }


def _at_node(cluster: Cluster, node: Node, shape: Shape, verdict: NodeVerdict) -> Iterator[Change]:
    if verdict.code is V.NODE_CORDONED:
        yield from _uncordon(cluster, node, shape)
    elif verdict.code is V.FOREIGN_MEMORY:
        yield from _end_foreign(cluster, node, shape)


def _uncordon(cluster: Cluster, node: Node, shape: Shape) -> Iterator[Change]:
    """Lifting the node's cordon, or that of one of its GPUs, where that alone would do."""
    if node.scheduling is not Scheduling.OPEN:
        with _as_if(node, "scheduling", Scheduling.OPEN):
            fits = explain.fits(cluster, node, shape)
        if fits:
            text = f"gpuyard uncordon {node.name}"
            yield {"kind": "uncordon", "node": node.name, "gpu": None, "text": text}
        return
    for uuid, gpu in node.gpus.items():
        with _as_if(gpu, "cordon", None):
            fits = explain.fits(cluster, node, shape)
        if fits:
            text = f"gpuyard uncordon {node.name} --gpu {uuid}"
            yield {"kind": "uncordon", "node": node.name, "gpu": uuid, "text": text}


def _end_foreign(cluster: Cluster, node: Node, shape: Shape) -> Iterator[Change]:
    for uuid, gpu in node.gpus.items():
        for process in gpu.sample["foreign"] if gpu.sample else ():
            with _as_if(gpu, "sample", _without(gpu, process["pid"])):
                fits = explain.fits(cluster, node, shape)
            if fits:
                yield {
                    "kind": "end_foreign",
                    "node": node.name,
                    "gpu": uuid,
                    "pid": process["pid"],
                    "text": f"end process {process['pid']} of {process['user'] or 'unknown'} on "
                    f"GPU {gpu.facts['index']} of {node.name}",
                }


def _without(gpu: Gpu, pid: int) -> GpuSample | None:
    """What a GPU would measure without a process; memory that nobody can tell stays unknown."""
    if gpu.sample is None:
        return None
    rest = [process for process in gpu.sample["foreign"] if process["pid"] != pid]
    sizes = [process["memory_mib"] for process in rest]
    memory = None if None in sizes else sum(size or 0 for size in sizes)
    return {**gpu.sample, "foreign": rest, "memory_foreign_mib": memory}


@contextmanager
def _as_if(thing: Node | Gpu, name: str, value: object) -> Iterator[None]:
    """Within it an attribute is another; for what-ifs alone."""
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        setattr(thing, name, before)
