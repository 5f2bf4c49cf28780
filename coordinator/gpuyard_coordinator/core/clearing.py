"""How many ends of jobs on a node, in a given order, make room there: a what-if on the books.

What the plan has placed so far holds its room as well, although it is not in the books yet.

Counting GPUs, CPUs and memory tells at little cost how many it takes at least; what it takes indeed
is tried on the books from there on.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core import explain, filters, instances, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job, Node


@dataclass(frozen=True, slots=True)
class Planned:
    """What this plan has placed on a node: a job, or one member of a gang."""

    shape: Shape
    gpus: tuple[str, ...]


Holder = Job | Planned
"""Whose end makes room on a node."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node on which room is looked for, with what is not in its books."""

    cluster: Cluster
    node: Node
    planned: Sequence[Planned] = ()
    promised: Sequence[Shape] = ()
    """What is to start here before."""
    doomed: Collection[JobKey] = frozenset()
    """Jobs that this plan stops."""

    @property
    def stopping(self) -> list[Job]:
        """Jobs that are asked to end, or will be."""
        attempts = self.node.attempts.values()
        return [job for job, held in attempts if held.stop is not None or job.key in self.doomed]


def least(site: Site, shape: Shape, jobs: Sequence[Holder]) -> int | None:
    """A number of first ones of `jobs` whose ends are surely needed; None: all would not do."""
    shapes = [*site.promised, shape]
    gpus = sum(_gpus(site.node, each) for each in shapes) - _whole_gpus_free(site)
    shapes += [planned.shape for planned in site.planned]
    cpu_milli = sum(each.cpu_milli for each in shapes)
    cpu_milli -= (filters.cpu_milli_free(site.node) or 0) if cpu_milli else 0
    memory_mib = sum(each.memory_mib for each in shapes)
    memory_mib -= (filters.memory_mib_free(site.node) or 0) if memory_mib else 0
    for count, job in enumerate(jobs):
        if gpus <= 0 and cpu_milli <= 0 and memory_mib <= 0:
            return count
        gpus -= _gpus_held(job)
        cpu_milli -= job.shape.cpu_milli
        memory_mib -= job.shape.memory_mib
    return len(jobs) if gpus <= 0 and cpu_milli <= 0 and memory_mib <= 0 else None


def needed(site: Site, shape: Shape, jobs: Sequence[Holder]) -> int | None:
    """The least number of first ones of `jobs` after whose ends the node takes the shape, and
    before it what is promised there; None where not even all would do."""
    first = least(site, shape, jobs)
    counts = range(first, len(jobs) + 1) if first is not None else range(0)
    return next((count for count in counts if suffices(site, shape, jobs[:count])), None)


def suffices(site: Site, shape: Shape, ended: Sequence[Holder]) -> bool:
    """True if the node takes the shape after these ends."""
    cluster, node = site.cluster, site.node
    with ExitStack() as undo:
        running = [job for job in ended if isinstance(job, Job)]
        undo.enter_context(ledger.as_if_ended(cluster, running))
        for planned in site.planned:
            if not any(planned is each for each in ended):
                undo.enter_context(ledger.as_if_held(node, planned.shape, planned.gpus))
        for promised in site.promised:
            if not _takes(cluster, node, promised):
                return False
            free = filters.takers(node, promised, cluster.settings)
            uuids = tuple(free[: _gpus(node, promised) or int(promised.is_share)])
            undo.enter_context(ledger.as_if_held(node, promised, uuids))
        return _takes(cluster, node, shape)


def _takes(cluster: Cluster, node: Node, shape: Shape) -> bool:
    """By its room and its tenant's limits; whether it is reserved is not asked."""
    if filters.why_not(node, shape, cluster.settings) is not None:
        return False
    return explain.limit_on(cluster, node, shape) is None


def _whole_gpus_free(site: Site) -> int:
    taken = {uuid for planned in site.planned for uuid in planned.gpus}
    gpus = site.node.gpus.items()
    return sum(gpu.free_milli == WHOLE_GPU_MILLI and uuid not in taken for uuid, gpu in gpus)


def _gpus_held(holder: Holder) -> int:
    if isinstance(holder, Planned):
        return len(holder.gpus)
    return len(holder.last.gpus) if holder.last else 0


def _gpus(node: Node, shape: Shape) -> int:
    """Whole GPUs, or instances, that a shape takes of a node."""
    return len(instances.cards(node)) if shape.all_gpus else shape.gpus or len(shape.gpu_ids)
