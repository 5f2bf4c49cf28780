"""The book of who holds what. Every grant is entered and taken out here and nowhere else."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from gpuyard.messages import GrantedGpu
from gpuyard_coordinator.core import instances
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import (
    WHOLE_GPU_MILLI,
    Attempt,
    AttemptRef,
    Gpu,
    Job,
    Meeting,
    Node,
)


def ref(job: Job, attempt: Attempt) -> AttemptRef:
    return (job.tenant, job.id, attempt.number)


def enter(cluster: Cluster, node: Node, job: Job, attempt: Attempt) -> None:
    """Books the grant, CPUs and memory of an attempt, or of one member of a gang's, on its node."""
    key = ref(job, attempt)
    use = cluster.use_of(job.tenant)
    use.running_jobs += not _holds_elsewhere(cluster, job, attempt)
    node.attempts[key] = (job, attempt)
    for granted in attempt.gpus:
        gpu = node.gpus.get(granted["uuid"])
        if gpu is not None:
            _enter_on(gpu, key, granted)
    attempt.gpu_memory_mib = sum([memory_of(node, granted) for granted in attempt.gpus])
    _count(node, use, job, attempt, 1)
    if (meeting := _meeting(job, attempt)) is not None:
        cluster.gang_ports.setdefault(meeting.address, set()).add(meeting.port)
    wanted_changed(node)
    cluster.nodes_changed.add(node.name)


def take_out(cluster: Cluster, node: Node, job: Job, attempt: Attempt) -> None:
    """Takes it out again; an attempt that holds nothing any more is no error."""
    key = ref(job, attempt)
    if node.attempts.pop(key, None) is None:
        return
    for granted in attempt.gpus:
        gpu = node.gpus.get(granted["uuid"])
        if gpu is not None and key in gpu.grants:
            gpu.free_milli += gpu.grants.pop(key)
            gpu.shared_mib -= granted["memory_mib"] or 0
    use = cluster.use_of(job.tenant)
    _count(node, use, job, attempt, -1)
    use.running_jobs -= not _holds_elsewhere(cluster, job, attempt)
    if (meeting := _meeting(job, attempt)) is not None:
        cluster.gang_ports[meeting.address].discard(meeting.port)
    if _is_limited(cluster, job.tenant):
        cluster.tenants_eased.add(job.tenant)
    wanted_changed(node)
    cluster.nodes_changed.add(node.name)


def _is_limited(cluster: Cluster, tenant: str) -> bool:
    limits = cluster.tenants.get(tenant, {}).get("limits") or {}
    return any(most is not None for most in limits.values())


@contextmanager
def as_if_ended(cluster: Cluster, jobs: Iterable[Job]) -> Iterator[None]:
    """Within it the books are as after the ends of these jobs; on leaving, as they were before.

    For what-ifs alone: nothing of it may be planned, stored or told.
    """
    with ExitStack() as undo:
        for job in jobs:
            held = (
                [part for part in job.last.parts if is_held(cluster, job, part)] if job.last else []
            )
            for attempt in held:
                _free_meanwhile(cluster, job, attempt, undo)
            if held:
                use = cluster.use_of(job.tenant)
                undo.callback(setattr, use, "running_jobs", use.running_jobs)
                use.running_jobs -= 1
        yield


def is_held(cluster: Cluster, job: Job, attempt: Attempt) -> bool:
    """True while the attempt, or this member of a gang's, is in the book of its node."""
    node = cluster.nodes.get(attempt.node)
    held = node.attempts.get(ref(job, attempt)) if node is not None else None
    return held is not None and held[1] is attempt


def _free_meanwhile(cluster: Cluster, job: Job, attempt: Attempt, undo: ExitStack) -> None:
    node, key = cluster.nodes[attempt.node], ref(job, attempt)
    for granted in attempt.gpus:
        if (gpu := node.gpus.get(granted["uuid"])) is not None:
            undo.callback(_restore_gpu, gpu, gpu.free_milli, gpu.shared_mib, gpu.grants)
            gpu.free_milli += gpu.grants[key]
            gpu.shared_mib -= granted["memory_mib"] or 0
            gpu.grants = {k: v for k, v in gpu.grants.items() if k != key}
    use = cluster.use_of(job.tenant)
    _count(node, use, job, attempt, -1)
    undo.callback(_count, node, use, job, attempt, 1)


def _holds_elsewhere(cluster: Cluster, job: Job, attempt: Attempt) -> bool:
    """True for a member of a gang of which another one holds: they count as one running job."""
    whole = job.last
    if attempt.rank is None or whole is None:
        return False
    return any(is_held(cluster, job, part) for part in whole.parts if part is not attempt)


def _meeting(job: Job, attempt: Attempt) -> Meeting | None:
    """What rank 0 of a gang holds beside its grant."""
    return job.last.meeting if attempt.rank == 0 and job.last is not None else None


@contextmanager
def as_if_held(node: Node, shape: Shape, uuids: Iterable[str]) -> Iterator[None]:
    """Within it these GPUs of the node, and CPUs and memory, are taken by one more job of a shape;
    for what-ifs alone."""
    granted = [(node.gpus[uuid], size) for uuid in uuids if (size := grant(node.gpus[uuid], shape))]

    def book(sign: int) -> None:
        for gpu, size in granted:
            gpu.free_milli -= sign * part_of(gpu, size)
            gpu.shared_mib += sign * (size["memory_mib"] or 0)
        node.cpu_milli_used += sign * shape.cpu_milli
        node.memory_mib_used += sign * shape.memory_mib
        node.document_kib_used += sign * shape.document_kib

    book(1)
    try:
        yield
    finally:
        book(-1)


def _enter_on(gpu: Gpu, key: AttemptRef, granted: GrantedGpu) -> None:
    gpu.grants[key] = part = part_of(gpu, granted)
    gpu.free_milli -= part
    gpu.shared_mib += granted["memory_mib"] or 0


def _restore_gpu(gpu: Gpu, free_milli: int, shared_mib: int, grants: dict[AttemptRef, int]) -> None:
    gpu.free_milli, gpu.shared_mib, gpu.grants = free_milli, shared_mib, grants


def _count(node: Node, use: Use, job: Job, attempt: Attempt, sign: int) -> None:
    """What an attempt takes beside its GPUs' own books."""
    shape = job.shape
    use.milli += sign * sum([granted["milli"] for granted in attempt.gpus])
    use.gpu_memory_mib += sign * attempt.gpu_memory_mib
    use.cpu_milli += sign * shape.cpu_milli
    use.memory_mib += sign * shape.memory_mib
    node.cpu_milli_used += sign * shape.cpu_milli
    node.memory_mib_used += sign * shape.memory_mib
    node.document_kib_used += sign * shape.document_kib


def grant(gpu: Gpu, shape: Shape) -> GrantedGpu | None:
    """What a job of this shape would hold of a GPU; None where its size cannot be told or is
    larger than the GPU, or where the device is not of the sort that is asked for.

    The size of a share is the larger of its two fractions. Memory that was not asked for by number
    is the same fraction as the compute; compute that was not asked for is not limited. A fraction
    of memory is rounded down to milli-GPU, so that shares which fill the memory fit together; that
    they take no more than there is, is for `has_room` to see to.
    """
    uuid, total = gpu.facts["uuid"], gpu.facts["memory_total_mib"]
    if not instances.is_asked_for(gpu, shape):
        return None
    if not shape.is_share:
        milli = instances.milli_of(gpu)
        return {"uuid": uuid, "milli": milli, "memory_mib": None, "core_percent": None}
    percent, memory = shape.share_core_percent, shape.share_mib
    if total is None or (memory is not None and memory > total):
        return None
    milli = 0 if percent is None else percent_milli(percent)
    core = None if percent is None else max(1, round(percent))
    if memory is None:
        memory = total * milli // WHOLE_GPU_MILLI
    else:
        milli = max(milli, memory * WHOLE_GPU_MILLI // total, 1)
    return {"uuid": uuid, "milli": milli, "memory_mib": memory, "core_percent": core}


def part_of(gpu: Gpu, granted: GrantedGpu) -> int:
    """What a grant takes of the device itself, in thousandths of it: of an instance everything."""
    return WHOLE_GPU_MILLI if instances.is_instance(gpu) else granted["milli"]


def free_mib(gpu: Gpu) -> int:
    """Memory that no share on a GPU holds; nothing where its size is not known."""
    return (gpu.facts["memory_total_mib"] or 0) - gpu.shared_mib


def has_room(granted: GrantedGpu, free_milli: int, free_mib: int) -> bool:
    """True if a GPU with so much left takes a grant."""
    return granted["milli"] <= free_milli and (granted["memory_mib"] or 0) <= free_mib


def most_share_mib(gpu: Gpu) -> int:
    """The largest share by memory that a GPU has room for now."""
    total = gpu.facts["memory_total_mib"] or 0
    by_milli = -(-(gpu.free_milli + 1) * total // WHOLE_GPU_MILLI) - 1
    return max(0, min(free_mib(gpu), by_milli)) if gpu.free_milli else 0


def percent_milli(percent: float) -> int:
    """milli-GPU of a percentage, rounded up; the inner rounding takes off what floats add."""
    return math.ceil(round(percent * WHOLE_GPU_MILLI / 100, 6))


def memory_of(node: Node, granted: GrantedGpu) -> int:
    """MiB of GPU memory that a grant counts for: of a whole GPU all of it."""
    if granted["memory_mib"] is not None:
        return granted["memory_mib"]
    gpu = node.gpus.get(granted["uuid"])
    return (gpu.facts["memory_total_mib"] or 0) if gpu is not None else 0


def wanted_changed(node: Node) -> None:
    node.revision += 1


def rebuild_gpus(node: Node) -> None:
    """The node's devices after its inventory changed; grants stay with the UUID they name."""
    node.masks.clear()
    known = {facts["uuid"]: facts for facts in node.facts["gpus"]}
    samples = {uuid: gpu.sample for uuid, gpu in node.gpus.items()}
    node.samples = None
    node.gpus = {
        uuid: Gpu(facts=facts, sample=samples.get(uuid), cordon=node.cordons.get(uuid))
        for uuid, facts in sorted(known.items(), key=lambda item: item[1]["index"])
    }
    for key, (_, attempt) in node.attempts.items():
        for granted in attempt.gpus:
            gpu = node.gpus.get(granted["uuid"])
            if gpu is not None:
                _enter_on(gpu, key, granted)
