"""What keeps a job off a node or a GPU: each check beside its explanation.

A filter answers with the verdict code that the user is shown, or None where the node (or GPU)
would do. `explain` counts them over the fleet; the placer uses the same answers as masks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.model.node import GpuSample
from gpuyard.model.states import GpuHealth, NodeState, Scheduling
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import DOCUMENT_KIB, WHOLE_GPU_MILLI, Gpu, Node, Settings, Shape

V = VerdictCode
STALE_SAMPLE_S = 10.0
"""A reading older than this says nothing about what is free now: GPUs take no new work."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Why one node does not take a shape; numbers where a number is what binds."""

    node: str
    code: VerdictCode
    asked: int | None = None
    have: int | None = None


def node_block(node: Node) -> VerdictCode | None:
    """What keeps every job off a node, whatever it asks."""
    if node.state is NodeState.LOST:
        return V.NODE_LOST
    if node.scheduling is not Scheduling.OPEN:
        return V.NODE_CORDONED
    if node.state is not NodeState.READY or not node.is_proven:
        return V.NODE_UNREADY
    if node.is_stopping or node.is_adopting:
        return V.NODE_UNREADY
    return None


def gpu_block(gpu: Gpu, settings: Settings) -> VerdictCode | None:
    """What keeps every whole-GPU job off a device, apart from being granted."""
    if gpu.facts["mig"] is not None:
        return V.INSUFFICIENT_GPUS
    sample = gpu.sample
    health = sample["health"]["state"] if sample else GpuHealth.UNHEALTHY
    if health == GpuHealth.DIRTY:
        return V.GPU_DIRTY
    if sample is None or health != GpuHealth.HEALTHY:
        return V.GPU_UNHEALTHY
    foreign = _foreign_mib(sample)
    if foreign is None or foreign > settings.foreign_tolerated_mib:
        return V.FOREIGN_MEMORY
    return None


def _foreign_mib(sample: GpuSample) -> int | None:
    """Memory that others hold on a GPU without grants; None where nobody can tell.

    Where the driver lists no processes, all that is used is taken for theirs.
    """
    if sample["memory_foreign_mib"] is not None:
        return sample["memory_foreign_mib"]
    return None if sample["foreign"] else sample["memory_used_mib"]


def is_sampled(node: Node) -> bool:
    return node.sample_age_s is not None and node.sample_age_s <= STALE_SAMPLE_S


def free_gpus(node: Node, settings: Settings) -> list[str]:
    """UUIDs that a whole-GPU job could be granted now, in the order of their index."""
    if not is_sampled(node):
        return []
    return [
        uuid
        for uuid, gpu in node.gpus.items()
        if gpu.free_milli == WHOLE_GPU_MILLI and gpu_block(gpu, settings) is None
    ]


def find_ids(node: Node, gpu_ids: Iterable[str]) -> list[str] | None:
    """The UUIDs that indexes, UUIDs or unique prefixes of them name on a node; None if one
    names nothing, or two name the same device."""
    found: list[str] = []
    for text in gpu_ids:
        if text.isdigit():
            matches = [u for u, gpu in node.gpus.items() if gpu.facts["index"] == int(text)]
        else:
            prefix = text.lower()
            matches = [u for u in node.gpus if u.lower().startswith(prefix)]
            matches = [u for u in matches if u.lower() == prefix] or matches
        if len(matches) != 1 or matches[0] in found:
            return None
        found.append(matches[0])
    return found


def cpu_milli_free(node: Node) -> int | None:
    """None where the node did not say how many CPUs it has."""
    cpus = node.facts["cpus"]
    return None if cpus is None else round(cpus * 1000) - node.cpu_milli_used


def memory_mib_free(node: Node) -> int | None:
    memory = node.facts["memory_mib"]
    return None if memory is None else memory - node.memory_mib_used


def document_kib_free(node: Node) -> int:
    return DOCUMENT_KIB - node.document_kib_used


def room_block(node: Node, shape: Shape) -> NodeVerdict | None:
    """What of the node's CPUs, memory and document does not suffice. Unknown is never free."""
    cpus, memory = cpu_milli_free(node), memory_mib_free(node)
    if shape.cpu_milli and (cpus is None or cpus < shape.cpu_milli):
        return NodeVerdict(node.name, V.INSUFFICIENT_CPU, shape.cpu_milli, cpus)
    if shape.memory_mib and (memory is None or memory < shape.memory_mib):
        return NodeVerdict(node.name, V.INSUFFICIENT_MEMORY, shape.memory_mib, memory)
    if document_kib_free(node) < shape.document_kib:
        return NodeVerdict(node.name, V.NODE_DOCUMENT_FULL)
    return None


def why_not(node: Node, shape: Shape, settings: Settings) -> NodeVerdict | None:
    """Why a node does not take a shape now, the cause that binds first; None if it would."""
    if shape.node is not None and shape.node != node.name:
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    if node.name in shape.excluded:
        return NodeVerdict(node.name, V.NODE_UNREADY)
    if code := node_block(node):
        return NodeVerdict(node.name, code)
    if blocked := room_block(node, shape):
        return blocked
    return _why_no_gpus(node, shape, settings) if shape.wants_gpus else None


def _why_no_gpus(node: Node, shape: Shape, settings: Settings) -> NodeVerdict | None:
    free = free_gpus(node, settings)
    if shape.gpu_ids:
        named = find_ids(node, shape.gpu_ids)
        if named is None:
            return NodeVerdict(node.name, V.WHERE_MISMATCH)
        if set(named) <= set(free):
            return None
        return _blocked_gpus(node, named, asked=len(named), free=len(free), settings=settings)
    asked = max(len(node.gpus), 1) if shape.all_gpus else shape.gpus
    if len(free) >= asked:
        return None
    return _blocked_gpus(node, list(node.gpus), asked=asked, free=len(free), settings=settings)


def _blocked_gpus(
    node: Node, uuids: list[str], *, asked: int, free: int, settings: Settings
) -> NodeVerdict:
    """Names the fault of the GPUs where faults alone are what is missing."""
    if node.gpus and not is_sampled(node):
        return NodeVerdict(node.name, V.GPU_UNHEALTHY, asked, 0)
    faults = Counter(
        code
        for uuid in uuids
        if node.gpus[uuid].free_milli == WHOLE_GPU_MILLI
        and (code := gpu_block(node.gpus[uuid], settings))
    )
    if free + sum(faults.values()) >= asked and faults:
        code = min(faults, key=lambda c: (-faults[c], str(c)))
        return NodeVerdict(node.name, code, asked, free)
    return NodeVerdict(node.name, V.INSUFFICIENT_GPUS, asked, free)


def could_ever_run(cluster: Cluster, shape: Shape, *, even_lost: bool = True) -> bool:
    """True if some known node could hold the shape were it empty and well."""
    return any(
        _could_hold(node, shape)
        for node in cluster.nodes.values()
        if even_lost or node.state is not NodeState.LOST
    )


def _could_hold(node: Node, shape: Shape) -> bool:
    if node.name in shape.excluded:
        return False
    if shape.node is not None and shape.node != node.name:
        return False
    if shape.gpu_ids and find_ids(node, shape.gpu_ids) is None:
        return False
    whole = sum(gpu.facts["mig"] is None for gpu in node.gpus.values())
    if shape.gpus > whole or (shape.all_gpus and not whole):
        return False
    cpus, memory = node.facts["cpus"], node.facts["memory_mib"]
    is_cpu_enough = not shape.cpu_milli or (cpus is not None and cpus * 1000 >= shape.cpu_milli)
    is_memory_enough = not shape.memory_mib or (memory is not None and memory >= shape.memory_mib)
    return is_cpu_enough and is_memory_enough
