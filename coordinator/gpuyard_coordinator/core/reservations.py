"""Room that is kept for a job which comes first and cannot start yet, and who keeps off it.

A tenant holds at most one reservation for which it waits, so that an impossible wish of one holds
up nobody else's jobs on other nodes; beside it stand claims, for which jobs of lower rank are being
stopped. Whoever comes later in the order keeps off the node, unless it takes nothing that the
holder asks for or is over before the holder can start. Whoever comes before the holder does not: a
higher priority, or the job of a tenant who has had less; off claims keeps all that ranks no higher.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Order

HANDOVER_S: Final = 5.0
"""From the end of one attempt to the start of the next on its GPUs: report, commit, create."""
PULL_S: Final = 60.0
"""What an image takes to arrive where nobody knows better."""
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Reservation:
    """One node for one job, as many as it asks for for a gang; it ends with the job's start, the
    job, or the coming of a higher rank."""

    job: JobKey
    shape: Shape
    order: Order
    rank: Rank
    node: str
    start: float | None
    """When the job can start at the latest, monotonic; None: nobody knows."""
    start_at: str | None
    """The same, RFC 3339 UTC."""
    until: float
    """When it is thought over, monotonic: what was expected has not come."""
    is_claim: bool = False
    """Jobs are being stopped for it."""
    others: tuple[str, ...] = ()
    """Of a gang: the nodes of its other members."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node, *self.others)

    @property
    def text(self) -> str:
        which, their = f"node {self.node} is", "its"
        if self.others:
            which, their = f"nodes {', '.join(self.nodes[:_NAMED])} are", "their"
        if len(self.nodes) > _NAMED:
            which = f"{len(self.nodes)} nodes are"
        if self.start_at is None:
            return f"{which} kept for it as {their} jobs end"
        return f"{which} reserved for it: it starts about {self.start_at} at the latest"


@dataclass(slots=True)
class Reservations:
    by_job: dict[JobKey, Reservation] = field(default_factory=dict)
    by_node: dict[str, list[Reservation]] = field(default_factory=dict)
    waiting: dict[str, Reservation] = field(default_factory=dict)
    """By tenant its one reservation that is no claim."""
    _has_ended: bool = False

    def add(self, reservation: Reservation) -> None:
        self.by_job[reservation.job] = reservation
        for node in reservation.nodes:
            self.by_node.setdefault(node, []).append(reservation)
        if not reservation.is_claim:
            self.waiting[reservation.job[0]] = reservation

    def drop(self, job: JobKey) -> Reservation | None:
        """None for a job that holds none."""
        dropped = self.by_job.pop(job, None)
        if dropped is not None:
            self._has_ended = True
            for node in dropped.nodes:
                left = [other for other in self.by_node[node] if other.job != job]
                self.by_node[node] = left
                if not left:
                    del self.by_node[node]
            if not dropped.is_claim:
                del self.waiting[job[0]]
        return dropped

    def take_ends(self) -> bool:
        """True if a reservation ended since the last call: others may use its node."""
        has_ended, self._has_ended = self._has_ended, False
        return has_ended

    def kept_off(
        self, job: JobKey, shape: Shape, now: float, comes_first: Callable[[Reservation], bool]
    ) -> frozenset[str]:
        """Nodes that a job must leave to others, those whose reservations come before it; `now` is
        monotonic."""
        return frozenset(
            name for name in self.by_node if self.keeps_off(name, job, shape, now, comes_first)
        )

    def keeps_off(
        self,
        node: str,
        job: JobKey,
        shape: Shape,
        now: float,
        comes_first: Callable[[Reservation], bool],
    ) -> bool:
        """True if a job must leave a node to one whose reservation comes before it. On its own node
        it waits for those alone whose room was promised before its own was looked for."""
        for held in self.by_node.get(node, ()):
            if held.job == job:
                return False
            if _is_touched(held, shape, now) and comes_first(held):
                return True
        return False

    def touched(self, node: str, shape: Shape, now: float) -> list[Reservation]:
        """Those of a node for which a job there now is in the way, in the order they were made."""
        return [held for held in self.by_node.get(node, ()) if _is_touched(held, shape, now)]

    @contextmanager
    def set_aside(self, job: JobKey) -> Iterator[None]:
        """Within it a job's own reservation is none: for what-ifs of another request of it."""
        held = self.by_job.get(job)
        before = {node: self.by_node[node] for node in held.nodes} if held is not None else {}
        for node, all_of_node in before.items():
            self.by_node[node] = [other for other in all_of_node if other is not held]
        try:
            yield
        finally:
            self.by_node.update(before)

    def is_for_others(self, node: str, shape: Shape) -> bool:
        """True if a waiting job of another shape has the node reserved: it is what keeps a shape
        off a node that has room for it, since whoever ranks higher has its place by then."""
        held = self.by_node.get(node, ())
        return any(other.shape != shape and competes(shape, other.shape) for other in held)


def _is_touched(held: Reservation, shape: Shape, now: float) -> bool:
    return competes(shape, held.shape) and not _ends_before(held, shape, now)


def competes(one: Shape, other: Shape) -> bool:
    """True if both ask for something of the same kind."""
    return (
        (one.wants_gpus and other.wants_gpus and _may_share_devices(one, other))
        or bool(one.cpu_milli and other.cpu_milli)
        or bool(one.memory_mib and other.memory_mib)
    )


def _may_share_devices(one: Shape, other: Shape) -> bool:
    """False where one asks for a MIG profile and the other for GPUs, or for another profile."""
    return one.mig == other.mig or one.names_instances or other.names_instances


def _ends_before(held: Reservation, shape: Shape, now: float) -> bool:
    if held.start is None or shape.busy_s is None:
        return False
    return now + PULL_S + shape.busy_s + HANDOVER_S <= held.start
