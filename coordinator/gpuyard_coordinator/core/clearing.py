"""How many ends of jobs on a node, in a given order, make room there: a what-if on the books.

Counting GPUs, CPUs and memory tells at little cost how many it takes at least; what it takes indeed
is tried on the books from there on.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core import explain, filters, instances, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Job, Node, Shape


@dataclass(frozen=True, slots=True)
class Site:
    """A node on which room is looked for, with what is not in its books."""

    cluster: Cluster
    node: Node
    planned: Sequence[tuple[Shape, tuple[str, ...]]] = ()
    """Placements of this plan: shapes and their GPUs."""
    promised: Sequence[Shape] = ()
    """What is to start here before."""
    doomed: Collection[JobKey] = frozenset()
    """Jobs that this plan stops."""

    @property
    def stopping(self) -> list[Job]:
        """Jobs that are asked to end, or will be."""
        attempts = self.node.attempts.values()
        return [job for job, held in attempts if held.stop is not None or job.key in self.doomed]


def least(site: Site, shape: Shape, jobs: Sequence[Job]) -> int | None:
    """A number of first ones of `jobs` whose ends are surely needed; None: all would not do."""
    shapes = [*site.promised, shape]
    gpus = sum(_gpus(site.node, each) for each in shapes)
    gpus -= sum(gpu.free_milli == WHOLE_GPU_MILLI for gpu in site.node.gpus.values())
    cpu_milli = sum(each.cpu_milli for each in shapes)
    cpu_milli -= (filters.cpu_milli_free(site.node) or 0) if cpu_milli else 0
    memory_mib = sum(each.memory_mib for each in shapes)
    memory_mib -= (filters.memory_mib_free(site.node) or 0) if memory_mib else 0
    for count, job in enumerate(jobs):
        if gpus <= 0 and cpu_milli <= 0 and memory_mib <= 0:
            return count
        gpus -= len(job.last.gpus) if job.last else 0
        cpu_milli -= job.shape.cpu_milli
        memory_mib -= job.shape.memory_mib
    return len(jobs) if gpus <= 0 and cpu_milli <= 0 and memory_mib <= 0 else None


def needed(site: Site, shape: Shape, jobs: Sequence[Job]) -> int | None:
    """The least number of first ones of `jobs` after whose ends the node takes the shape, and
    before it what is promised there; None where not even all would do."""
    first = least(site, shape, jobs)
    counts = range(first, len(jobs) + 1) if first is not None else range(0)
    return next((count for count in counts if suffices(site, shape, jobs[:count])), None)


def suffices(site: Site, shape: Shape, ended: Sequence[Job]) -> bool:
    """True if the node takes the shape after these ends."""
    cluster, node = site.cluster, site.node
    with ExitStack() as undo:
        undo.enter_context(ledger.as_if_ended(cluster, ended))
        for planned, uuids in site.planned:
            undo.enter_context(ledger.as_if_held(node, planned, uuids))
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


def _gpus(node: Node, shape: Shape) -> int:
    """Whole GPUs, or instances, that a shape takes of a node."""
    return len(instances.cards(node)) if shape.all_gpus else shape.gpus or len(shape.gpu_ids)
