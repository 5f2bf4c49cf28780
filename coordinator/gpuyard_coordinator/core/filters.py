"""What keeps a job off a node or a GPU: each check beside its explanation.

A filter answers with the verdict code that the user is shown, or None where the node (or GPU)
would do. `explain` counts them over the fleet; the placer uses the same answers as masks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from gpuyard.model import where
from gpuyard.model.node import GpuSample
from gpuyard.model.states import GpuHealth, NodeState, Scheduling
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import instances, ledger, selection
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import DOCUMENT_KIB, WHOLE_GPU_MILLI, Gpu, Node, Settings

V = VerdictCode
STALE_SAMPLE_S: Final = 10.0
"""A reading older than this says nothing about what is free now: GPUs take no new work."""
FAILED_BEFORE: Final = "failed this job before"
"""The node is well for others: the job is kept off it while others could run it."""
NO_ADDRESS: Final = "its agent tells no address for gangs"
"""The node is well for others: its agent is older than gangs, or found no address."""
SILENT: Final = "suspect: silent"
PUT_ASIDE: Final = "failing"
"""As the node's own reason says it."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Why one node does not take a shape; numbers where a number is what binds, in the unit that
    a job asks in: GPUs, MiB, CPUs."""

    node: str
    code: VerdictCode
    asked: float | None = None
    have: float | None = None
    note: str | None = None
    """What is said instead of the code, where the code alone would mislead or say too little."""
    since: str | None = None
    """Since when that is so, where it is known, RFC 3339 UTC."""


def node_block(node: Node, tolerate: Sequence[str] = ()) -> VerdictCode | None:
    """What keeps a job off a node whatever it asks, but for the cordons that it tolerates.

    How the node is comes before what an operator ordered: a cordon that a job tolerates must not
    hide that the node is not well.
    """
    if node.state is NodeState.LOST:
        return V.NODE_LOST
    if is_down(node) or is_put_aside(node):
        return V.NODE_UNREADY
    is_cordoned = node.scheduling is Scheduling.CORDONED
    if node.scheduling is Scheduling.DRAINING or (
        is_cordoned and not where.tolerates(tolerate, node.scheduling_reason)
    ):
        return V.NODE_CORDONED
    return None


def is_down(node: Node) -> bool:
    """True where the node itself is not there or not ready, whatever was ordered of it."""
    if node.state is not NodeState.READY or not node.is_proven:
        return True
    return node.is_stopping or node.is_adopting or node.forgotten_by is not None


def is_put_aside(node: Node) -> bool:
    """True while jobs are kept off since job after job failed there; one at a time may try."""
    return node.aside is not None and not node.aside.takes_work


def gpu_block(gpu: Gpu, settings: Settings) -> VerdictCode | None:
    """What keeps every job off a device, apart from being granted."""
    if instances.is_split(gpu):
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


def weighs_alike(one: GpuSample | None, other: GpuSample | None) -> bool:
    """True where `gpu_block` surely finds the same in both."""
    if one is None or other is None or one["memory_foreign_mib"] is None:
        return False
    is_as_healthy = one["health"]["state"] == other["health"]["state"]
    return is_as_healthy and one["memory_foreign_mib"] == other["memory_foreign_mib"]


def _foreign_mib(sample: GpuSample) -> int | None:
    """Memory that others hold on a GPU without grants; None where nobody can tell.

    Where the driver lists no processes, all that is used is taken for theirs.
    """
    if sample["memory_foreign_mib"] is not None:
        return sample["memory_foreign_mib"]
    return None if sample["foreign"] else sample["memory_used_mib"]


def is_sampled(node: Node) -> bool:
    return node.sample_age_s is not None and node.sample_age_s <= STALE_SAMPLE_S


def takes_share(gpu: Gpu, shape: Shape, node: Node) -> bool:
    """True if a share may sit on this GPU beside what is there: other tenants' shares only where
    both sides allow it."""
    return all(may_share(shape, node.attempts[key][0].shape) for key in gpu.grants)


def may_share(one: Shape, other: Shape) -> bool:
    """True if shares of these may sit on one GPU."""
    is_open = one.is_shared_across_tenants and other.is_shared_across_tenants
    return one.tenant == other.tenant or is_open


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
        return NodeVerdict(
            node.name,
            V.INSUFFICIENT_CPU,
            shape.cpu_milli / 1000,
            None if cpus is None else cpus / 1000,
        )
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
        return NodeVerdict(node.name, V.NODE_UNREADY, note=FAILED_BEFORE)
    if code := node_block(node, shape.tolerate):
        since = node.last_beat_at if node.state is NodeState.SUSPECT else None
        return NodeVerdict(node.name, code, note=_note(node, code), since=since)
    if not may_join_gang(node, shape):
        return NodeVerdict(node.name, V.NODE_UNREADY, note=NO_ADDRESS)
    fits = selection.matching(node, shape)
    if fits is None:
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    if blocked := room_block(node, shape):
        return blocked
    return _why_no_gpus(node, shape, fits, settings) if shape.wants_gpus else None


def may_join_gang(node: Node, shape: Shape) -> bool:
    """False where a gang is asked for and the node's agent does not say how others reach it."""
    return shape.nodes == 1 or node.facts.get("address") is not None


def _note(node: Node, code: VerdictCode) -> str | None:
    """What the code alone does not tell of a node that takes no job."""
    if code is not V.NODE_UNREADY:
        return None
    if not is_down(node):
        return PUT_ASIDE
    return SILENT if node.state is NodeState.SUSPECT and node.last_beat_at else None


def takers(node: Node, shape: Shape, settings: Settings) -> list[str]:
    """GPUs that a shape could be granted now, in the order of their index; of a share each of them
    alone would do, of whole GPUs as many as it asks for."""
    return _takers(node, shape, selection.matching(node, shape) or frozenset(), settings)


def _takers(node: Node, shape: Shape, fits: frozenset[str], settings: Settings) -> list[str]:
    takes = _takes if shape.is_share else _is_free
    named = selection.find_ids(node, shape.gpu_ids) if shape.gpu_ids else node.gpus
    return [
        uuid
        for uuid in named or ()
        if uuid in fits and takes(node, node.gpus[uuid], shape, settings)
    ]


def fits_in_order(node: Node, fits: frozenset[str]) -> list[str]:
    return [uuid for uuid in node.gpus if uuid in fits]


def _is_free(node: Node, gpu: Gpu, shape: Shape, settings: Settings) -> bool:
    return (
        gpu.free_milli == WHOLE_GPU_MILLI
        and is_sampled(node)
        and not is_cordoned(gpu, shape)
        and gpu_block(gpu, settings) is None
    )


def _takes(node: Node, gpu: Gpu, shape: Shape, settings: Settings) -> bool:
    if not gpu.free_milli or not is_sampled(node) or is_cordoned(gpu, shape):
        return False
    return gpu_block(gpu, settings) is None and _has_share(node, gpu, shape)


def _has_share(node: Node, gpu: Gpu, shape: Shape) -> bool:
    granted = ledger.grant(gpu, shape)
    if granted is None or not ledger.has_room(granted, gpu.free_milli, ledger.free_mib(gpu)):
        return False
    return takes_share(gpu, shape, node)


def is_cordoned(gpu: Gpu, shape: Shape) -> bool:
    return gpu.cordon is not None and not where.tolerates(shape.tolerate, gpu.cordon.reason)


def _why_no_gpus(
    node: Node, shape: Shape, fits: frozenset[str], settings: Settings
) -> NodeVerdict | None:
    sort = {uuid for uuid, gpu in node.gpus.items() if instances.is_asked_for(gpu, shape)}
    if not fits and sort:
        return NodeVerdict(node.name, _why_not_those(node, shape, sort))
    free = _takers(node, shape, fits, settings)
    if shape.is_share:
        return None if free else _why_no_share(node, shape, fits, settings)
    named = selection.find_ids(node, shape.gpu_ids) if shape.gpu_ids else instances.cards(node)
    must = named if shape.gpu_ids or shape.all_gpus else []
    if named is None or must is None:
        return NodeVerdict(node.name, V.WHERE_MISMATCH)
    asked = max(len(must), 1) if shape.gpu_ids or shape.all_gpus else shape.gpus
    if not set(must) <= sort:
        return NodeVerdict(node.name, V.INSUFFICIENT_GPUS, asked, len(free))
    if not set(must) <= fits:
        return NodeVerdict(node.name, _why_not_those(node, shape, set(must)))
    if len(free) >= asked:
        return None
    pool = must or fits_in_order(node, fits)
    return _blocked_gpus(node, pool, shape, asked=asked, free=len(free), settings=settings)


def _why_not_those(node: Node, shape: Shape, uuids: set[str]) -> VerdictCode:
    """The lines of `where` keep those GPUs off, or else the tenant's models do."""
    if shape.models is None:
        return V.WHERE_MISMATCH
    fits = selection.matching(node, replace(shape, models=None)) or frozenset()
    is_enough = uuids <= fits if shape.gpu_ids or shape.all_gpus else bool(fits)
    return V.MODEL_NOT_ALLOWED if is_enough else V.WHERE_MISMATCH


def _why_no_share(
    node: Node, shape: Shape, fits: frozenset[str], settings: Settings
) -> NodeVerdict:
    """In MiB of one GPU where memory is what does not suffice, else in parts of a GPU."""
    gpus = [node.gpus[uuid] for uuid in fits_in_order(node, fits)]
    if gpus and not is_sampled(node):
        return NodeVerdict(node.name, V.GPU_UNHEALTHY)
    faults: Counter[VerdictCode] = Counter()
    left_mib, left_milli, asked_milli = 0, 0, _core_milli(shape)
    for gpu in gpus:
        if not gpu.free_milli:
            continue
        fault = V.NODE_CORDONED if is_cordoned(gpu, shape) else gpu_block(gpu, settings)
        if fault is not None:
            faults.update([fault] if _has_share(node, gpu, shape) else [])
        elif takes_share(gpu, shape, node):
            left_milli = max(left_milli, gpu.free_milli)
            left_mib = max(left_mib, ledger.most_share_mib(gpu))
    if faults:
        return NodeVerdict(node.name, _most_common(faults))
    if shape.share_mib is not None and left_mib < shape.share_mib:
        return NodeVerdict(node.name, V.INSUFFICIENT_GPU_MEMORY, shape.share_mib, left_mib)
    asked, have = asked_milli / WHOLE_GPU_MILLI, left_milli / WHOLE_GPU_MILLI
    return NodeVerdict(node.name, V.INSUFFICIENT_GPUS, asked, have)


def _core_milli(shape: Shape) -> int:
    """milli-GPU that a share asks for by its compute; 0 where it asks by memory alone."""
    percent = shape.share_core_percent
    return 0 if percent is None else ledger.percent_milli(percent)


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
        return NodeVerdict(node.name, _most_common(faults), asked, free)
    return NodeVerdict(node.name, V.INSUFFICIENT_GPUS, asked, free)


def _most_common(faults: Counter[VerdictCode]) -> VerdictCode:
    return min(faults, key=lambda code: (-faults[code], str(code)))


def could_ever_run(cluster: Cluster, shape: Shape, *, even_lost: bool = True) -> bool:
    """True if some known node could hold the shape were it empty and well; of a gang, as many as it
    asks for."""
    able = (
        node
        for node in cluster.nodes.values()
        if (even_lost or node.state is not NodeState.LOST) and could_hold(node, shape) is not None
    )
    return sum(1 for _ in islice(able, shape.nodes)) == shape.nodes


def could_hold(node: Node, shape: Shape) -> list[str] | None:
    """The GPUs among which a node would find a shape's, were it empty and well; None: never."""
    if node.name in shape.excluded or shape.node not in (None, node.name):
        return None
    fits = selection.matching(node, shape)
    if fits is None or not (_could_have_room(node, shape) and may_join_gang(node, shape)):
        return None
    whole = fits_in_order(node, fits)
    if shape.is_share:
        return [uuid for uuid in whole if ledger.grant(node.gpus[uuid], shape)] or None
    if shape.gpu_ids:
        named = selection.find_ids(node, shape.gpu_ids)
        return named if named is not None and set(named) <= set(whole) else None
    if shape.all_gpus:
        return whole if whole and len(whole) == len(instances.cards(node)) else None
    return whole if len(whole) >= shape.gpus else None


def _could_have_room(node: Node, shape: Shape) -> bool:
    cpus, memory = node.facts["cpus"], node.facts["memory_mib"]
    is_cpu_enough = not shape.cpu_milli or (cpus is not None and cpus * 1000 >= shape.cpu_milli)
    is_memory_enough = not shape.memory_mib or (memory is not None and memory >= shape.memory_mib)
    return is_cpu_enough and is_memory_enough and shape.document_kib <= DOCUMENT_KIB
