"""Where a job goes. The placer is incremental: it hears which nodes changed, never scans for them.

`BestFit` places a job on the node that is left with the fewest free GPUs, ties by name, so that
large requests keep whole nodes; a share on a GPU that is shared already if one takes it, and
there on the fullest of its node.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core import filters, ledger, quota, selection
from gpuyard_coordinator.core.linking import best_linked
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node, Settings, Shape


@dataclass(frozen=True, slots=True)
class Placement:
    node: str
    gpus: tuple[str, ...]
    """UUIDs, in the order of their index."""


class Placer(Protocol):
    """What the planner asks. A placement it returns is reserved until `node_changed` is called."""

    def node_changed(self, node: Node) -> None:
        """Looks at a node anew: it joined, its grants, health, labels or state changed."""

    def node_removed(self, name: str) -> None: ...

    def place(self, shape: Shape, left: quota.Left | None = None) -> Placement | None:
        """The best place for one job of a shape now, or None; costs no walk over the fleet
        unless something other than its number of GPUs binds, or it has preferences.

        `left` is what its tenant may still be granted.
        """

    def release(self, shape: Shape, placement: Placement) -> None:
        """Takes back a reservation of `place`, the last one first."""

    def take_growth(self) -> bool:
        """True if room grew since the last call, so that a refused shape may fit now."""


@dataclass(slots=True)
class _Room:
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
    free: int = 0
    """GPUs that are free as a whole; the level that the room is filed under."""
    is_shared: bool = False
    """True if a GPU has room beside what is granted of it."""
    jobs_left: int | None = None
    """How many more jobs it takes: one where they try it again; None: as many as fit."""

    def count_free(self) -> int:
        return sum(milli == WHOLE_GPU_MILLI for milli in self.free_milli.values())


@dataclass(slots=True)
class BestFit:
    settings: Settings
    _rooms: dict[str, _Room] = field(default_factory=dict)
    _by_free: dict[int, list[str]] = field(default_factory=dict)
    """Names of nodes by their number of free GPUs, each list sorted."""
    _shared: list[str] = field(default_factory=list)
    """Names of nodes with a GPU of which a part is granted, sorted."""
    _grew: bool = False

    def node_changed(self, node: Node) -> None:
        old = self._rooms.get(node.name)
        self._take_out(node.name)
        if filters.node_block(node, ("cordon",)) is not None:
            return
        is_sampled = filters.is_sampled(node)
        usable = {
            uuid: gpu
            for uuid, gpu in node.gpus.items()
            if is_sampled and filters.gpu_block(gpu, self.settings) is None
        }
        room = _Room(
            node=node,
            free_milli={uuid: gpu.free_milli for uuid, gpu in usable.items()},
            free_mib={uuid: ledger.free_mib(gpu) for uuid, gpu in usable.items()},
            cpu_milli=filters.cpu_milli_free(node),
            memory_mib=filters.memory_mib_free(node),
            document_kib=filters.document_kib_free(node),
            generation=node.generation,
            is_cordoned=node.scheduling is Scheduling.CORDONED,
            jobs_left=None if node.aside is None else 1,
            cordons=(node.scheduling, node.scheduling_reason, *sorted(node.cordons.items())),
        )
        self._put_in(room)
        self._grew = self._grew or old is None or _has_grown(old, room)

    def node_removed(self, name: str) -> None:
        self._take_out(name)

    def take_growth(self) -> bool:
        grew, self._grew = self._grew, False
        return grew

    def place(self, shape: Shape, left: quota.Left | None = None) -> Placement | None:
        placement = None
        if shape.is_share and not shape.prefer:
            placement = self._best(shape, left, opens=False)
        placement = placement or self._best(shape, left, opens=True)
        if placement is not None:
            self._book(shape, placement, -1)
        return placement

    def _best(self, shape: Shape, left: quota.Left | None, *, opens: bool) -> Placement | None:
        """Without `opens` a share finds room only on GPUs that are shared already."""
        best: tuple[int, Placement] | None = None
        for room in self._candidates(shape, self._shared if not opens else None):
            chosen = _choose(room, shape, left, opens=opens) if _has_room(room, shape) else None
            if chosen is None:
                continue
            liked = selection.preference(room.node, shape, chosen) if shape.prefer else 0
            if best is None or liked > best[0]:
                best = (liked, Placement(room.node.name, tuple(chosen)))
            if liked == len(shape.prefer):
                break
        return best[1] if best is not None else None

    def release(self, shape: Shape, placement: Placement) -> None:
        self._book(shape, placement, 1)

    def _candidates(self, shape: Shape, among: list[str] | None) -> Iterator[_Room]:
        """Rooms that may do: those named, or from the one with the fewest free GPUs up, each level
        by name."""
        if shape.node is not None:
            names = iter([shape.node] if shape.node in self._rooms else [])
        elif among is not None:
            names = iter(among)
        else:
            least = len(shape.gpu_ids) or shape.gpus or int(shape.all_gpus)
            levels = sorted(level for level in self._by_free if level >= least)
            names = (name for level in levels for name in self._by_free[level])
        for name in names:
            room = self._rooms[name]
            if name not in shape.excluded and not (
                room.is_cordoned and filters.node_block(room.node, shape.tolerate)
            ):
                yield room

    def _book(self, shape: Shape, placement: Placement, sign: int) -> None:
        room = self._rooms[placement.node]
        self._take_out(placement.node)
        for uuid in placement.gpus:
            granted = ledger.grant(room.node.gpus[uuid], shape)
            if granted is not None:
                room.free_milli[uuid] += sign * granted["milli"]
                room.free_mib[uuid] += sign * (granted["memory_mib"] or 0)
            guests = room.guests.setdefault(uuid, [])
            if sign < 0:
                guests.append(shape)
            else:
                guests.remove(shape)
        if room.cpu_milli is not None:
            room.cpu_milli += sign * shape.cpu_milli
        if room.memory_mib is not None:
            room.memory_mib += sign * shape.memory_mib
        room.document_kib += sign * shape.document_kib
        if room.jobs_left is not None:
            room.jobs_left += sign
        self._put_in(room)

    def _put_in(self, room: _Room) -> None:
        room.free = room.count_free()
        self._rooms[room.node.name] = room
        insort(self._by_free.setdefault(room.free, []), room.node.name)
        room.is_shared = any(0 < milli < WHOLE_GPU_MILLI for milli in room.free_milli.values())
        if room.is_shared:
            insort(self._shared, room.node.name)

    def _take_out(self, name: str) -> None:
        room = self._rooms.pop(name, None)
        if room is None:
            return
        names = self._by_free[room.free]
        del names[bisect_left(names, name)]
        if not names:
            del self._by_free[room.free]
        if room.is_shared:
            del self._shared[bisect_left(self._shared, name)]


def _has_grown(old: _Room, new: _Room) -> bool:
    return (
        any(milli > old.free_milli.get(uuid, -1) for uuid, milli in new.free_milli.items())
        or (new.cpu_milli or 0) > (old.cpu_milli or 0)
        or (new.memory_mib or 0) > (old.memory_mib or 0)
        or new.document_kib > old.document_kib
        or new.generation != old.generation
        or new.cordons != old.cordons
    )


def _has_room(room: _Room, shape: Shape) -> bool:
    if shape.cpu_milli and (room.cpu_milli is None or room.cpu_milli < shape.cpu_milli):
        return False
    if shape.memory_mib and (room.memory_mib is None or room.memory_mib < shape.memory_mib):
        return False
    return room.document_kib >= shape.document_kib and room.jobs_left != 0


def _choose(room: _Room, shape: Shape, left: quota.Left | None, *, opens: bool) -> list[str] | None:
    """The devices of a room that a shape would get, or None."""
    fits = selection.matching(room.node, shape)
    if fits is None:
        return None
    if not shape.wants_gpus:
        return []
    gpus = room.node.gpus
    usable = [u for u in room.free_milli if u in fits and not filters.is_cordoned(gpus[u], shape)]
    if shape.is_share:
        if not opens:
            usable = [uuid for uuid in usable if room.free_milli[uuid] < WHOLE_GPU_MILLI]
        return _choose_share(room, shape, usable, left)
    free = [uuid for uuid in usable if room.free_milli[uuid] == WHOLE_GPU_MILLI]
    chosen = _choose_whole(room.node, shape, free)
    if chosen is None or left is None or left.takes(quota.ask_of(room.node, shape, chosen)):
        return chosen
    chosen = quota.cheapest(room.node, shape, chosen if shape.gpu_ids else free)
    return chosen if left.takes(quota.ask_of(room.node, shape, chosen)) else None


def _choose_whole(node: Node, shape: Shape, free: list[str]) -> list[str] | None:
    if shape.gpu_ids:
        named = selection.find_ids(node, shape.gpu_ids)
        return named if named is not None and set(named) <= set(free) else None
    if shape.all_gpus:
        return free if free and len(free) == len(node.gpus) else None
    if len(free) < shape.gpus:
        return None
    liked = selection.gpu_preference(node, shape) if shape.prefer else {}
    for least in sorted(set(liked.values()), reverse=True):
        pool = [uuid for uuid in free if liked[uuid] >= least]
        if len(pool) >= shape.gpus:
            return best_linked(pool, shape.gpus, node.facts["links"])
    return best_linked(free, shape.gpus, node.facts["links"])


def _choose_share(
    room: _Room, shape: Shape, usable: list[str], left: quota.Left | None
) -> list[str] | None:
    """The best liked GPU that takes the share, of those the fullest; ties by index."""
    liked = selection.gpu_preference(room.node, shape) if shape.prefer else {}
    best: tuple[tuple[int, int], str] | None = None
    for uuid in usable:
        gpu, free_milli = room.node.gpus[uuid], room.free_milli[uuid]
        granted = ledger.grant(gpu, shape)
        if granted is None or not ledger.has_room(granted, free_milli, room.free_mib[uuid]):
            continue
        guests = room.guests.get(uuid, ())
        is_welcome = all(filters.may_share(shape, guest) for guest in guests)
        if not is_welcome or not filters.takes_share(gpu, shape, room.node):
            continue
        if left is not None and not left.takes(quota.ask_of(room.node, shape, [uuid])):
            continue
        rank = (-liked.get(uuid, 0), free_milli)
        if best is None or rank < best[0]:
            best = (rank, uuid)
    return None if best is None else [best[1]]
