"""What keeps a job off a node or a GPU: each check beside its explanation.

A filter answers with the verdict code that the user is shown, or None where the node (or GPU)
would do. `explain` counts them over the fleet; the placer uses the same answers as masks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpuyard.model import where
from gpuyard.model.node import GpuSample
from gpuyard.model.states import GpuHealth, NodeState, Scheduling
from gpuyard.model.verdicts import VerdictCode
from gpuyard.model.where import Condition
from gpuyard_coordinator.core import ledger
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


def node_block(node: Node, tolerate: Sequence[str] = ()) -> VerdictCode | None:
    """What keeps a job off a node whatever it asks, but for the cordons that it tolerates."""
    if node.state is NodeState.LOST:
        return V.NODE_LOST
    if node.scheduling is Scheduling.DRAINING:
        return V.NODE_CORDONED
    is_cordoned = node.scheduling is Scheduling.CORDONED
    if is_cordoned and not where.tolerates(tolerate, node.scheduling_reason):
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
        if gpu.free_milli == WHOLE_GPU_MILLI
        and gpu.cordon is None
        and gpu_block(gpu, settings) is None
    ]


def matching(node: Node, shape: Shape) -> frozenset[str] | None:
    """UUIDs that meet the job's lines and its tenant's models; None if the node itself fails a
    line, or if the job asks for no GPU and none meets its `gpu-*` lines."""
    mask = (shape.where, shape.models)
    if mask not in node.masks:
        node.masks[mask] = _matching(node, shape)
    found = node.masks[mask]
    has_gpu_lines = any(where.is_per_gpu(condition) for condition in shape.where)
    if found is not None and not found and has_gpu_lines and not shape.wants_gpus:
        return None
    return found


def _matching(node: Node, shape: Shape) -> frozenset[str] | None:
    labels = where.node_view(
        node.facts["labels"], node.name, driver_version=node.facts["driver_version"]
    )
    per_gpu = [condition for condition in shape.where if where.is_per_gpu(condition)]
    if not all(where.holds(c, labels) for c in shape.where if c not in per_gpu):
        return None
    return frozenset(
        uuid
        for uuid, gpu in node.gpus.items()
        if is_allowed_model(gpu, shape)
        and _holds_all(per_gpu, where.gpu_view(labels, gpu.facts["labels"], uuid))
    )


def _holds_all(conditions: Iterable[Condition], labels: Mapping[str, str]) -> bool:
    return all(where.holds(condition, labels) for condition in conditions)


def is_allowed_model(gpu: Gpu, shape: Shape) -> bool:
    name = gpu.facts["labels"].get("gpu-name", "")
    return shape.models is None or any(fnmatchcase(name, glob) for glob in shape.models)


def preference(node: Node, shape: Shape) -> int:
    """How many lines of `prefer` hold on a node; a `gpu-*` line if it holds on any GPU."""
    labels = where.node_view(
        node.facts["labels"], node.name, driver_version=node.facts["driver_version"]
    )
    views = [where.gpu_view(labels, gpu.facts["labels"], u) for u, gpu in node.gpus.items()]
    return sum(
        any(where.holds(c, view) for view in views)
        if where.is_per_gpu(c)
        else where.holds(c, labels)
        for c in shape.prefer
    )


def takes_share(gpu: Gpu, shape: Shape, node: Node) -> bool:
    """True if a share may sit on this GPU beside what is there: other tenants' shares only where
    both sides allow it."""
    return all(may_share(shape, node.attempts[key][0].shape) for key in gpu.grants)


def may_share(one: Shape, other: Shape) -> bool:
    """True if shares of these may sit on one GPU."""
    is_open = one.is_shared_across_tenants and other.is_shared_across_tenants
    return one.tenant == other.tenant or is_open


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
    if code := node_block(node, shape.tolerate):
        return NodeVerdict(node.name, code)
    if matching(node, shape) is None:
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    if blocked := room_block(node, shape):
        return blocked
    return _why_no_gpus(node, shape, settings) if shape.wants_gpus else None


def _why_no_gpus(node: Node, shape: Shape, settings: Settings) -> NodeVerdict | None:
    fits = matching(node, shape) or frozenset()
    if not fits and node.gpus:
        return NodeVerdict(node.name, _why_none_fits(node, shape))
    if shape.is_share:
        return _why_no_share(node, shape, fits, settings)
    named = find_ids(node, shape.gpu_ids) if shape.gpu_ids else list(node.gpus)
    if named is None or (shape.gpu_ids and not set(named) <= fits):
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    if shape.all_gpus and set(named) != fits:
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    asked = len(named) if shape.gpu_ids or shape.all_gpus else shape.gpus
    pool = [uuid for uuid in named if uuid in fits]
    free = [uuid for uuid in pool if _is_free(node, node.gpus[uuid], shape, settings)]
    if len(free) >= max(asked, 1):
        return None
    return _blocked_gpus(node, pool, shape, asked=asked, free=len(free), settings=settings)


def _why_none_fits(node: Node, shape: Shape) -> VerdictCode:
    """The lines of `where` keep every GPU off, or else the tenant's models do."""
    without_models = matching(node, replace(shape, models=None))
    return V.MODEL_NOT_ALLOWED if without_models else V.WHERE_MISMATCH


def _is_free(node: Node, gpu: Gpu, shape: Shape, settings: Settings) -> bool:
    return (
        is_sampled(node)
        and gpu.free_milli == WHOLE_GPU_MILLI
        and not is_cordoned(gpu, shape)
        and gpu_block(gpu, settings) is None
    )


def is_cordoned(gpu: Gpu, shape: Shape) -> bool:
    return gpu.cordon is not None and not where.tolerates(shape.tolerate, gpu.cordon.reason)


def _why_no_share(
    node: Node, shape: Shape, fits: frozenset[str], settings: Settings
) -> NodeVerdict | None:
    """Shares are asked for and answered in MiB of one GPU, or in milli-GPU where only a fraction
    was asked for."""
    most = asked = 0
    for uuid in fits:
        gpu = node.gpus[uuid]
        granted = ledger.grant(gpu, shape)
        total = gpu.facts["memory_total_mib"] or 0
        asked = shape.share_mib or (granted["milli"] if granted else 0)
        is_open = is_sampled(node) and not is_cordoned(gpu, shape)
        if not is_open or gpu_block(gpu, settings) or not takes_share(gpu, shape, node):
            continue
        if granted is not None and granted["milli"] <= gpu.free_milli:
            return None
        left = gpu.free_milli * total // WHOLE_GPU_MILLI if shape.share_mib else gpu.free_milli
        most = max(most, left)
    if shape.share_mib:
        return NodeVerdict(node.name, V.INSUFFICIENT_GPU_MEMORY, asked, most)
    return NodeVerdict(node.name, V.INSUFFICIENT_GPUS, 1, 0)


def _blocked_gpus(
    node: Node, uuids: list[str], shape: Shape, *, asked: int, free: int, settings: Settings
) -> NodeVerdict:
    """Names the fault of the GPUs where faults alone are what is missing."""
    if node.gpus and not is_sampled(node):
        return NodeVerdict(node.name, V.GPU_UNHEALTHY, asked, 0)
    faults: Counter[VerdictCode] = Counter()
    for gpu in (node.gpus[uuid] for uuid in uuids):
        if gpu.free_milli == WHOLE_GPU_MILLI:
            code = V.NODE_CORDONED if is_cordoned(gpu, shape) else gpu_block(gpu, settings)
            faults.update([code] if code else [])
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
    if node.name in shape.excluded or shape.node not in (None, node.name):
        return False
    fits = matching(node, shape)
    if fits is None:
        return False
    if shape.gpu_ids and not set(find_ids(node, shape.gpu_ids) or ("none",)) <= fits:
        return False
    whole = sum(node.gpus[uuid].facts["mig"] is None for uuid in fits)
    if shape.gpus > whole or (shape.all_gpus and not whole):
        return False
    if shape.is_share and not any(ledger.grant(node.gpus[uuid], shape) for uuid in fits):
        return False
    cpus, memory = node.facts["cpus"], node.facts["memory_mib"]
    is_cpu_enough = not shape.cpu_milli or (cpus is not None and cpus * 1000 >= shape.cpu_milli)
    is_memory_enough = not shape.memory_mib or (memory is not None and memory >= shape.memory_mib)
    return is_cpu_enough and is_memory_enough
