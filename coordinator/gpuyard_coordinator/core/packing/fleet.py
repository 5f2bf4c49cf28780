"""The nodes as packing sees them: their rooms in the order of their names, and their keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core import filters, instances, selection
from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.linking import best_linked
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.rooms import Room, cordons_of
from gpuyard_coordinator.core.packing.states import NOWHERE, Catalogue, Device, Key, whole_device
from gpuyard_coordinator.core.packing.wholes import Wholes
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu, Node, Settings

MASKS_KEPT: Final = 128
"""Sets of lines and tolerations of which it is remembered which nodes they leave."""


@dataclass(slots=True)
class Member:
    """A known node; without a room it takes no work."""

    name: str
    room: Room | None = None
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    """The node's own: another one where its inventory changed."""
    cordons: tuple[object, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)
    """By UUID, of all its GPUs but those that are split into MIG instances."""
    kind: int | None = None
    """That of them all; None where they are of several or there are none."""
    guests: dict[str, int] = field(default_factory=dict)
    """By UUID, where shares are on a GPU: whose, by their number in the catalogue."""
    plain: frozenset[str] = frozenset()
    """UUIDs of the GPUs that are neither cordoned nor MIG instances nor split into some."""
    cards: frozenset[str] = frozenset()
    """Of these those that the fleet has counted: none while it takes no work."""
    free: int = 0
    """How many of the counted ones were free as a whole."""
    number: int = -1
    """Its place in the order of names; -1 until the fleet is sorted."""

    def key(self, alike: Sequence[int] = ()) -> Key:
        """`alike` names the kind that stands for another one; that of the last ones for itself."""
        room = self.room
        if room is None or not room.takes_more:
            return NOWHERE
        devices = tuple(sorted(self.devices(room, alike)))
        return Key(max(0, room.cpu_milli or 0), len(room.node.gpus), devices)

    def devices(self, room: Room, alike: Sequence[int] = ()) -> list[Device]:
        """Those with room, in the order of their index."""
        kinds = self.kinds
        if self.kind is not None and self.kind < len(alike) and alike[self.kind] != self.kind:
            kinds = dict.fromkeys(kinds, alike[self.kind])
        return [
            whole_device(kinds[uuid])
            if milli == WHOLE_GPU_MILLI
            else self._shared(room, uuid, kinds[uuid], milli)
            for uuid, milli in room.free_milli.items()
            if milli > 0
        ]

    def find(self, taken: tuple[Device, ...]) -> list[str]:
        """UUIDs of devices of the key, in the order of their index: of several free ones the best
        linked, else the first of their like."""
        room = self.room
        if room is None or not taken:
            return []
        if len(taken) == 1:
            return [self._first(room, taken[0])]
        free = [u for u, milli in room.free_milli.items() if milli == WHOLE_GPU_MILLI]
        if self.kind is not None:
            return best_linked(free, len(taken), room.node.facts["links"])
        wanted = Counter(device.kind for device in taken)
        found: list[str] = []
        for kind, count in wanted.items():
            alike = [uuid for uuid in free if self.kinds[uuid] == kind]
            found += best_linked(alike, count, room.node.facts["links"])
        return found if len(wanted) == 1 else [uuid for uuid in free if uuid in found]

    def _first(self, room: Room, device: Device) -> str:
        """The first GPU that is such a device; of one kind another may stand for it."""
        of_kind = self.kind is None
        for uuid, milli in room.free_milli.items():
            if milli == device.milli and (not of_kind or self.kinds[uuid] == device.kind):
                if milli == WHOLE_GPU_MILLI:
                    return uuid
                if self._shared(room, uuid, device.kind, milli) == device:
                    return uuid
        raise AssertionError(f"{self.name} has no {device}")

    def _shared(self, room: Room, uuid: str, kind: int, milli: int) -> Device:
        mib, total = room.free_mib[uuid], room.node.gpus[uuid].facts["memory_total_mib"] or 0
        is_short = mib * WHOLE_GPU_MILLI < milli * total
        return Device(kind, milli, mib if is_short else -1, self.guests.get(uuid, 0))


@dataclass(slots=True)
class Fleet:
    settings: Settings
    catalogue: Catalogue = field(default_factory=Catalogue)
    members: dict[str, Member] = field(default_factory=dict)
    ordered: list[Member] = field(default_factory=list)
    """By name; a member's `number` is its index."""
    memory_mib: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Left, by number."""
    document_kib: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Left, by number."""
    is_sorted: bool = True
    """False once a node came or went: numbers are then of no use."""
    devices: Counter[Kind] = field(default_factory=Counter)
    """Of the known nodes, whether they take work or not; without cordons."""
    booked: int = 0
    """Reservations that were entered since whoever reads it set it to 0."""
    _wholes: Wholes = field(default_factory=Wholes)
    _moved: set[str] = field(default_factory=set)
    """Nodes that are to be counted anew in it."""
    _masks: dict[Shape, NDArray[np.bool_]] = field(default_factory=dict)
    _last_mask: tuple[Shape | None, NDArray[np.bool_]] = (None, np.zeros(0, dtype=bool))

    def look_at(self, node: Node) -> tuple[Member, bool]:
        """The node as it is now; True if a job may fit there that did not before."""
        member = self.members.get(node.name)
        if member is None:
            member = self.members[node.name] = Member(node.name)
            self._wholes.enter(0, 0)
            self.is_sorted = False
        room = Room.of(node, self.settings)
        has_grown = room is not None and room.has_grown(member.room)
        cordons = cordons_of(node) if room is None else room.cordons
        is_other = member.gpus is not node.gpus or member.cordons != cordons
        member.room, member.guests = room, self._guests(node)
        if is_other:
            member.gpus, member.cordons = node.gpus, cordons
            self._take_inventory(member, node)
        self._moved.add(member.name)
        if self.is_sorted:
            self._note(member)
            if is_other or has_grown:
                for mask, blocked in self._masks.items():
                    blocked[member.number] = _is_blocked(member, mask)
        return member, has_grown

    def drop(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None:
            self.devices.subtract(self._plain_kinds(member))
            self._wholes.leave(len(member.cards), member.free)
            self.is_sorted = False

    def sort(self) -> None:
        """Numbers the nodes anew."""
        self.ordered = [self.members[name] for name in sorted(self.members)]
        self.memory_mib = np.zeros(len(self.ordered), dtype=np.int64)
        self.document_kib = np.zeros(len(self.ordered), dtype=np.int64)
        for number, member in enumerate(self.ordered):
            member.number = number
            self._note(member)
        self._masks.clear()
        self._last_mask = (None, np.zeros(0, dtype=bool))
        self.is_sorted = True

    def book(self, member: Member, shape: Shape, uuids: tuple[str, ...], sign: int) -> None:
        """Enters a reservation with -1, takes it out with 1."""
        room = member.room
        if room is None:
            return
        room.book(shape, uuids, sign)
        self._moved.add(member.name)
        if sign < 0:
            self.booked += 1
        if not shape.gpus and shape.is_share:
            if sign > 0:
                member.guests.pop(uuids[0], None)
            joining = [shape] if sign < 0 else room.guests_of(uuids[0])
            for guest in joining:
                self._join(member.guests, uuids[0], guest)
        self._note(member)

    def headroom(self, was: Headroom) -> Headroom:
        """As `Wholes.headroom`; looks only at nodes that changed since the last call."""
        for name in self._moved & self.members.keys():
            self._count_anew(self.members[name])
        self._moved.clear()
        return self._wholes.headroom(was)

    def blocked(self, mask: Shape) -> NDArray[np.bool_]:
        """By number: True where the node's labels or its cordon keep shapes of a `mask_of` off; to
        be read only."""
        if mask is self._last_mask[0]:
            return self._last_mask[1]
        blocked = self._masks.get(mask)
        if blocked is None:
            if len(self._masks) >= MASKS_KEPT:
                self._masks.clear()
            answers = [_is_blocked(member, mask) for member in self.ordered]
            blocked = self._masks[mask] = np.array(answers, dtype=bool)
        self._last_mask = (mask, blocked)
        return blocked

    def _take_inventory(self, member: Member, node: Node) -> None:
        labels = selection.labels_of(node)
        self.devices.subtract(self._plain_kinds(member))
        member.kinds = {
            uuid: self.catalogue.kind_number(gpu, labels)
            for uuid, gpu in node.gpus.items()
            if not instances.is_split(gpu)
        }
        self.devices.update(self._plain_kinds(member))
        kinds = set(member.kinds.values())
        member.kind = kinds.pop() if len(kinds) == 1 else None
        member.plain = frozenset(
            uuid for uuid, number in member.kinds.items() if self._is_plain(number)
        )

    def _is_plain(self, kind: int) -> bool:
        known = self.catalogue.kinds[kind]
        return known.cordon is None and known.profile is None

    def _count_anew(self, member: Member) -> None:
        """How many of its GPUs are free as a whole, whatever was counted before."""
        room = member.room
        self._wholes.leave(len(member.cards), member.free)
        is_open = room is not None and not room.is_cordoned
        member.cards, member.free = member.plain if is_open else frozenset(), 0
        if room is not None:
            milli = room.free_milli
            member.free = sum(milli.get(uuid) == WHOLE_GPU_MILLI for uuid in member.cards)
        self._wholes.enter(len(member.cards), member.free)

    def _plain_kinds(self, member: Member) -> list[Kind]:
        kinds = [self.catalogue.kinds[number] for number in member.kinds.values()]
        return [kind if kind.cordon is None else replace(kind, cordon=None) for kind in kinds]

    def _note(self, member: Member) -> None:
        room = member.room
        self.memory_mib[member.number] = (room.memory_mib or 0) if room else 0
        self.document_kib[member.number] = room.document_kib if room else -1

    def _guests(self, node: Node) -> dict[str, int]:
        guests: dict[str, int] = {}
        for uuid, gpu in node.gpus.items():
            if 0 < gpu.free_milli < WHOLE_GPU_MILLI:
                for ref in gpu.grants:
                    self._join(guests, uuid, node.attempts[ref][0].shape)
        return guests

    def _join(self, guests: dict[str, int], uuid: str, shape: Shape) -> None:
        guests[uuid] = self.catalogue.joined(guests.get(uuid, 0), shape)


def mask_of(shape: Shape) -> Shape:
    """What of a shape decides which nodes keep it off whatever room they have."""
    return Shape(
        gpus=int(shape.wants_gpus),
        where=shape.where,
        models=shape.models if shape.where else None,
        tolerate=shape.tolerate,
        nodes=min(shape.nodes, 2),
    )


def _is_blocked(member: Member, mask: Shape) -> bool:
    room = member.room
    if room is None or room.is_closed_to(mask) or not filters.may_join_gang(room.node, mask):
        return True
    return bool(mask.where) and selection.matching(room.node, mask) is None
