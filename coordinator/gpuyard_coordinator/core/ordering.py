"""Who goes next: priority, then whose tenant has had least for its weight, then age.

Within a tenant it is priority, then age. Waiting jobs are grouped by shape, each group sorted.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuyard.model.ids import JobKey
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Order


class Rank(NamedTuple):
    """A job's priority. The larger rank goes first, whatever its tenant has had, and may preempt a
    smaller one."""

    tenant: int
    job: int


class Parked(NamedTuple):
    """What keeps a waiting job from the planner, and for how many jobs it counts."""

    code: VerdictCode
    weight: int = 1


@dataclass(slots=True)
class Queue:
    """Waiting jobs. Adding, removing and asking for a position cost a binary search."""

    by_shape: dict[Shape, list[Order]] = field(default_factory=dict)
    fresh: set[Shape] = field(default_factory=set)
    """Shapes that got a job since the planner last took them."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Jobs that wait, by tenant."""
    parked: dict[JobKey, Parked] = field(default_factory=dict)
    """Jobs that wait for something else than room: no planner sees them."""
    moved: set[JobKey] = field(default_factory=set)
    """Jobs that were parked, or are so no more, since the planner last looked."""
    _all: list[Order] = field(default_factory=list)

    def add(self, job: Job) -> None:
        insort(self.by_shape.setdefault(job.shape, []), job.order)
        insort(self._all, job.order)
        self.waiting[job.tenant] += 1
        self.fresh.add(job.shape)

    def add_all(self, jobs: Iterable[Job]) -> None:
        """As `add` for each, by sorting once."""
        shapes = set()
        for job in jobs:
            order = job.order
            self.by_shape.setdefault(job.shape, []).append(order)
            self._all.append(order)
            self.waiting[job.tenant] += 1
            shapes.add(job.shape)
        for shape in shapes:
            self.by_shape[shape].sort()
        self._all.sort()
        self.fresh |= shapes

    def park(self, job: Job, code: VerdictCode, weight: int = 1) -> None:
        """Counts a job as waiting and keeps it from the planner, until it is added."""
        self.discard(job)
        self.parked[job.key] = Parked(code, weight)
        self.moved.add(job.key)
        self.waiting[job.tenant] += weight

    def discard(self, job: Job) -> None:
        """Takes a job out; one that does not wait is no error."""
        if (parked := self.parked.pop(job.key, None)) is not None:
            self.moved.add(job.key)
            self.waiting[job.tenant] -= parked.weight
            return
        orders, order = self.by_shape.get(job.shape, []), job.order
        if _remove(orders, order):
            _remove(self._all, order)
            self.waiting[job.tenant] -= 1
            if not orders:
                del self.by_shape[job.shape]
                self.fresh.discard(job.shape)

    def position(self, job: Job) -> int | None:
        """Jobs of larger priority or more age plus 1; None for a job that does not wait for room.

        Of several tenants that is not the order in which they start: see `lineup`.
        """
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


Place = tuple[int, int, int, int, str]
"""Of a job among all, the smallest first: its tenant's priority and its own, both negative, what
its tenant has had for its weight, its age, its id."""


@dataclass(slots=True)
class Turns:
    """Whose turn it is: tenant by tenant in the order of their places, each with its first job.

    Each step costs a heap's logarithm. Whoever is given something moves back behind those who have
    less now; the others keep their places, since nothing of theirs changed.
    """

    queue: Queue
    place_of: Callable[[Order], Place]
    """As of the moment of the call."""
    _tenants: list[tuple[Place, str]] = field(default_factory=list)
    _heads: dict[str, list[tuple[Order, int, Shape]]] = field(default_factory=dict)
    """By tenant a heap of the first jobs of its shapes, each with its index in its shape."""
    _given: set[Order] = field(default_factory=set)
    """Jobs that have their places and are in the queue until that is committed."""

    def open(self, shapes: Iterable[Shape]) -> None:
        """Begins anew with the waiting jobs of these shapes that were not given a place yet."""
        self._heads.clear()
        for shape in shapes:
            if (head := self._head(shape, 0)) is not None:
                self._heads.setdefault(shape.tenant, []).append(head)
        for heads in self._heads.values():
            heapq.heapify(heads)
        self._tenants = [(self._place(tenant), tenant) for tenant in self._heads]
        heapq.heapify(self._tenants)

    def first(self) -> tuple[Order, Shape] | None:
        """The job whose turn it is; None once no job is left."""
        return self._first() if self._tenants else None

    def give(self) -> None:
        """It has its place now: next of its shape is the one behind it."""
        order, _ = self._first()
        self._given.add(order)
        self.advance()

    def advance(self) -> None:
        """It waits on: next of its shape is the one behind it."""
        heads = self._heads[self._tenants[0][1]]
        _, index, shape = heads[0]
        head = self._head(shape, index + 1)
        if head is not None:
            heapq.heapreplace(heads, head)
        else:
            heapq.heappop(heads)
        self._move()

    def close(self) -> None:
        """It has no place, and so has no other of its shape."""
        heapq.heappop(self._heads[self._tenants[0][1]])
        self._move()

    def _first(self) -> tuple[Order, Shape]:
        order, _, shape = self._heads[self._tenants[0][1]][0]
        return order, shape

    def _head(self, shape: Shape, index: int) -> tuple[Order, int, Shape] | None:
        """The first job of a shape from an index on that was given nothing yet."""
        orders = self.queue.by_shape.get(shape, [])
        while index < len(orders):
            if orders[index] not in self._given:
                return orders[index], index, shape
            index += 1
        return None

    def _move(self) -> None:
        tenant = self._tenants[0][1]
        if len(self._tenants) == 1 and self._heads[tenant]:
            return
        if self._heads[tenant]:
            heapq.heapreplace(self._tenants, (self._place(tenant), tenant))
        else:
            heapq.heappop(self._tenants)

    def _place(self, tenant: str) -> Place:
        return self.place_of(self._heads[tenant][0][0])
