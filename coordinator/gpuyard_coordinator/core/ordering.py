"""Who goes next: priority, then age. Waiting jobs are grouped by shape, each group sorted."""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.state import Job, Order, Shape


@dataclass(slots=True)
class Queue:
    """Waiting jobs. Adding, removing and asking for a position cost a binary search."""

    by_shape: dict[Shape, list[Order]] = field(default_factory=dict)
    fresh: set[Shape] = field(default_factory=set)
    """Shapes that got a job since the planner last took them."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Jobs that wait, by tenant."""
    parked: set[JobKey] = field(default_factory=set)
    """Jobs that wait for a time and not for room: no planner sees them."""
    _all: list[Order] = field(default_factory=list)

    def add(self, job: Job) -> None:
        insort(self.by_shape.setdefault(job.shape, []), job.order)
        insort(self._all, job.order)
        self.waiting[job.tenant] += 1
        self.fresh.add(job.shape)

    def park(self, job: Job) -> None:
        """Counts a job as waiting and keeps it from the planner, until it is added."""
        self.discard(job)
        self.parked.add(job.key)
        self.waiting[job.tenant] += 1

    def discard(self, job: Job) -> None:
        """Takes a job out; one that does not wait is no error."""
        if job.key in self.parked:
            self.parked.discard(job.key)
            self.waiting[job.tenant] -= 1
            return
        orders = self.by_shape.get(job.shape, [])
        if _remove(orders, job.order):
            _remove(self._all, job.order)
            self.waiting[job.tenant] -= 1
            if not orders:
                del self.by_shape[job.shape]
                self.fresh.discard(job.shape)

    def position(self, job: Job) -> int | None:
        """Jobs before this one plus 1; None for a job that does not wait for room."""
        index = bisect_left(self._all, job.order)
        is_there = index < len(self._all) and self._all[index] == job.order
        return index + 1 if is_there else None

    def __len__(self) -> int:
        return len(self._all)


def _remove(orders: list[Order], order: Order) -> bool:
    index = bisect_left(orders, order)
    if index < len(orders) and orders[index] == order:
        del orders[index]
        return True
    return False
