"""What is free on one node, and which of its devices a job gets there; the same for all placers."""

from dataclasses import dataclass, field

from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core import filters, instances, ledger, quota, selection
from gpuyard_coordinator.core.linking import best_linked
from gpuyard_coordinator.core.shapes import Shape, without_nodes
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node, Settings


@dataclass(slots=True)
class Room:
    """What is free on one node that takes work at all."""

    node: Node
    free_milli: dict[str, int]
    """By UUID, of the GPUs that are well, cordoned ones too; in the order of their index."""
    free_mib: dict[str, int]
    """Memory that no share holds, of the same."""
    cpu_milli: int | None
    memory_mib: int | None
    document_kib: int
    generation: int
    """Of the inventory: GPUs asked for by index may be others in a new one."""
    is_cordoned: bool
    cordons: tuple[object, ...] = ()
    """What keeps jobs off that do not tolerate it."""
    guests: dict[str, list[Shape]] = field(default_factory=dict)
    """Shares reserved in this plan, by UUID."""
    reserved: int = 0
    """Jobs in this plan."""

    @classmethod
    def of(cls, node: Node, settings: Settings) -> "Room | None":
        """None for a node that takes no work."""
        if filters.node_block(node, ("cordon",)) is not None:
            return None
        usable = {}
        if filters.is_sampled(node):
            usable = {
                uuid: gpu
                for uuid, gpu in node.gpus.items()
                if filters.gpu_block(gpu, settings) is None
            }
        return cls(
            node=node,
            free_milli={uuid: gpu.free_milli for uuid, gpu in usable.items()},
            free_mib={uuid: ledger.free_mib(gpu) for uuid, gpu in usable.items()},
            cpu_milli=filters.cpu_milli_free(node),
            memory_mib=filters.memory_mib_free(node),
            document_kib=filters.document_kib_free(node),
            generation=node.generation,
            is_cordoned=node.scheduling is Scheduling.CORDONED,
            cordons=cordons_of(node),
        )

    def has_grown(self, old: "Room | None") -> bool:
        """True if a job may fit here that did not before."""
        return old is None or (
            any(milli > old.free_milli.get(uuid, -1) for uuid, milli in self.free_milli.items())
            or (self.cpu_milli or 0) > (old.cpu_milli or 0)
            or (self.memory_mib or 0) > (old.memory_mib or 0)
            or self.document_kib > old.document_kib
            or self.generation != old.generation
            or self.cordons != old.cordons
        )

    @property
    def takes_more(self) -> bool:
        """False for a node on trial that has its one job."""
        return self.node.aside is None or not self.reserved

    def is_closed_to(self, shape: Shape) -> bool:
        """True if an operator's cordon of the node keeps a shape off."""
        return self.is_cordoned and filters.node_block(self.node, shape.tolerate) is not None

    def guests_of(self, uuid: str) -> list[Shape]:
        """Whose shares are on a GPU, reserved ones too; or who has all of it."""
        held = [self.node.attempts[ref][0].shape for ref in self.node.gpus[uuid].grants]
        return held + self.guests.get(uuid, [])

    def book(self, shape: Shape, uuids: tuple[str, ...], sign: int) -> None:
        """Enters a reservation with -1, takes it out with 1."""
        if shape.gpus or not shape.is_share:
            for uuid in uuids:
                self.free_milli[uuid] += sign * WHOLE_GPU_MILLI
        else:
            self._book_share(shape, uuids[0], sign)
        self.reserved -= sign
        if self.cpu_milli is not None:
            self.cpu_milli += sign * shape.cpu_milli
        if self.memory_mib is not None:
            self.memory_mib += sign * shape.memory_mib
        self.document_kib += sign * shape.document_kib

    def choose(self, shape: Shape, left: quota.Left | None = None) -> list[str] | None:
        """The devices that a shape would get here, or None."""
        fits = selection.matching(self.node, shape)
        if fits is None:
            return None
        if not shape.wants_gpus:
            return []
        gpus = self.node.gpus
        usable = [
            uuid
            for uuid in self.free_milli
            if uuid in fits and not filters.is_cordoned(gpus[uuid], shape)
        ]
        if shape.is_share:
            return self._choose_share(shape, usable, left)
        free = [uuid for uuid in usable if self.free_milli[uuid] == WHOLE_GPU_MILLI]
        chosen = _choose_whole(self.node, shape, free)
        if chosen is None or left is None or left.takes(quota.ask_of(self.node, shape, chosen)):
            return chosen
        chosen = quota.cheapest(self.node, shape, chosen if shape.gpu_ids else free)
        return chosen if left.takes(quota.ask_of(self.node, shape, chosen)) else None

    def _book_share(self, shape: Shape, uuid: str, sign: int) -> None:
        granted = ledger.grant(self.node.gpus[uuid], shape)
        if granted is not None:
            self.free_milli[uuid] += sign * granted["milli"]
            self.free_mib[uuid] += sign * (granted["memory_mib"] or 0)
        guests = self.guests.setdefault(uuid, [])
        shape = without_nodes(shape, frozenset())  # each member of a gang was kept off other nodes
        if sign < 0:
            guests.append(shape)
        else:
            guests.remove(shape)

    def _choose_share(
        self, shape: Shape, usable: list[str], left: quota.Left | None
    ) -> list[str] | None:
        """The best liked GPU that takes the share, of those the fullest; ties by index."""
        liked = selection.gpu_preference(self.node, shape) if shape.prefer else {}
        best: tuple[tuple[int, int], str] | None = None
        for uuid in usable:
            gpu, free_milli = self.node.gpus[uuid], self.free_milli[uuid]
            granted = ledger.grant(gpu, shape)
            if granted is None or not ledger.has_room(granted, free_milli, self.free_mib[uuid]):
                continue
            if not all(filters.may_share(shape, guest) for guest in self.guests_of(uuid)):
                continue
            if left is not None and not left.takes(quota.ask_of(self.node, shape, [uuid])):
                continue
            rank = (-liked.get(uuid, 0), free_milli)
            if best is None or rank < best[0]:
                best = (rank, uuid)
        return None if best is None else [best[1]]


def cordons_of(node: Node) -> tuple[object, ...]:
    """What an operator ordered of a node and its GPUs."""
    return (node.scheduling, node.scheduling_reason, *sorted(node.cordons.items()))


def _choose_whole(node: Node, shape: Shape, free: list[str]) -> list[str] | None:
    if shape.gpu_ids:
        named = selection.find_ids(node, shape.gpu_ids)
        return named if named is not None and set(named) <= set(free) else None
    if shape.all_gpus:
        return free if free and len(free) == len(instances.cards(node)) else None
    if len(free) < shape.gpus:
        return None
    liked = selection.gpu_preference(node, shape) if shape.prefer else {}
    for least in sorted(set(liked.values()), reverse=True):
        pool = [uuid for uuid in free if liked[uuid] >= least]
        if len(pool) >= shape.gpus:
            return best_linked(pool, shape.gpus, node.facts["links"])
    return best_linked(free, shape.gpus, node.facts["links"])
