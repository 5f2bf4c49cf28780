"""Where a job goes. The placer is incremental: it hears which nodes changed, never scans for them.

`BestFit` places a job on the node that is left with the fewest free GPUs, ties by name, so that
large requests keep whole nodes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuyard.model.node import GpuLink
from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.state import Node, Settings, Shape

_LINK_WORTH = {"nvlink": 8.0, "pcie": 4.0, "numa": 2.0, "system": 1.0}


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

    def place(self, shape: Shape) -> Placement | None:
        """The best place for one job of a shape now, or None; costs no walk over the fleet
        unless the shape's CPUs or memory bind."""

    def take_growth(self) -> bool:
        """True if room grew since the last call, so that a refused shape may fit now."""


@dataclass(slots=True)
class _Room:
    """What is free on one node that takes work at all."""

    node: Node
    free: list[str]
    cpu_milli: int | None
    memory_mib: int | None
    document_kib: int
    total: int
    generation: int
    """Of the inventory: GPUs asked for by index may be others in a new one."""


@dataclass(slots=True)
class BestFit:
    settings: Settings
    _rooms: dict[str, _Room] = field(default_factory=dict)
    _by_free: dict[int, list[str]] = field(default_factory=dict)
    """Names of nodes by their number of free GPUs, each list sorted."""
    _grew: bool = False

    def node_changed(self, node: Node) -> None:
        old = self._rooms.get(node.name)
        self._take_out(node.name)
        if filters.node_block(node) is not None:
            return
        room = _Room(
            node=node,
            free=filters.free_gpus(node, self.settings),
            cpu_milli=filters.cpu_milli_free(node),
            memory_mib=filters.memory_mib_free(node),
            document_kib=filters.document_kib_free(node),
            total=len(node.gpus),
            generation=node.generation,
        )
        self._put_in(room)
        self._grew = self._grew or old is None or _has_grown(old, room)

    def node_removed(self, name: str) -> None:
        self._take_out(name)

    def take_growth(self) -> bool:
        grew, self._grew = self._grew, False
        return grew

    def place(self, shape: Shape) -> Placement | None:
        for room in self._candidates(shape):
            chosen = _choose(room, shape)
            if chosen is not None and _has_room(room, shape):
                self._reserve(room, shape, chosen)
                return Placement(room.node.name, tuple(chosen))
        return None

    def _candidates(self, shape: Shape) -> Iterator[_Room]:
        """Rooms that may do, from the one with the fewest free GPUs up, each level by name."""
        if shape.node is not None:
            room = self._rooms.get(shape.node)
            if room is not None and shape.node not in shape.excluded:
                yield room
            return
        least = len(shape.gpu_ids) or shape.gpus or int(shape.all_gpus)
        for free in sorted(level for level in self._by_free if level >= least):
            for name in self._by_free[free]:
                if name not in shape.excluded:
                    yield self._rooms[name]

    def _reserve(self, room: _Room, shape: Shape, chosen: Sequence[str]) -> None:
        self._take_out(room.node.name)
        taken = set(chosen)
        room.free = [uuid for uuid in room.free if uuid not in taken]
        if room.cpu_milli is not None:
            room.cpu_milli -= shape.cpu_milli
        if room.memory_mib is not None:
            room.memory_mib -= shape.memory_mib
        room.document_kib -= shape.document_kib
        self._put_in(room)

    def _put_in(self, room: _Room) -> None:
        self._rooms[room.node.name] = room
        insort(self._by_free.setdefault(len(room.free), []), room.node.name)

    def _take_out(self, name: str) -> None:
        room = self._rooms.pop(name, None)
        if room is None:
            return
        names = self._by_free[len(room.free)]
        del names[bisect_left(names, name)]
        if not names:
            del self._by_free[len(room.free)]


def _has_grown(old: _Room, new: _Room) -> bool:
    return (
        not set(new.free) <= set(old.free)
        or (new.cpu_milli or 0) > (old.cpu_milli or 0)
        or (new.memory_mib or 0) > (old.memory_mib or 0)
        or new.document_kib > old.document_kib
        or new.generation != old.generation
    )


def _has_room(room: _Room, shape: Shape) -> bool:
    if shape.cpu_milli and (room.cpu_milli is None or room.cpu_milli < shape.cpu_milli):
        return False
    if shape.memory_mib and (room.memory_mib is None or room.memory_mib < shape.memory_mib):
        return False
    return room.document_kib >= shape.document_kib


def _choose(room: _Room, shape: Shape) -> list[str] | None:
    """The devices of a room that a shape would get, or None."""
    if shape.gpu_ids:
        named = filters.find_ids(room.node, shape.gpu_ids)
        return named if named is not None and set(named) <= set(room.free) else None
    if shape.all_gpus:
        return list(room.free) if room.total and len(room.free) == room.total else None
    if len(room.free) < shape.gpus:
        return None
    return best_linked(room.free, shape.gpus, room.node.facts["links"])


def best_linked(free: Sequence[str], count: int, links: Sequence[GpuLink]) -> list[str]:
    """`count` of the free GPUs with the best links among them; by index where links say nothing.

    Greedy from every first device: exact for pairs, near enough beyond, and cheap.
    """
    if count <= 1 or count == len(free) or not links:
        return list(free[:count])
    worth: dict[tuple[str, str], float] = {}
    for link in links:
        value = _LINK_WORTH.get(link["kind"], 0.0) + (link["links"] or 0) / 100
        worth[link["a"], link["b"]] = worth[link["b"], link["a"]] = value
    best: list[str] = []
    best_value = -1.0
    for first in free:
        chosen, value = _grow(first, free, count, worth)
        if value > best_value + 1e-9:
            best, best_value = chosen, value
    order = {uuid: index for index, uuid in enumerate(free)}
    return sorted(best, key=order.__getitem__)


def _grow(
    first: str, free: Sequence[str], count: int, worth: dict[tuple[str, str], float]
) -> tuple[list[str], float]:
    chosen, total = [first], 0.0
    gains = {uuid: worth.get((first, uuid), 0.0) for uuid in free if uuid != first}
    while len(chosen) < count:
        uuid = max(gains, key=gains.__getitem__)
        total += gains.pop(uuid)
        chosen.append(uuid)
        for other in gains:
            gains[other] += worth.get((uuid, other), 0.0)
    return chosen, total
