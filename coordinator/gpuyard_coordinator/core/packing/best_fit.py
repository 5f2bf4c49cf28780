"""Best fit, to compare with: the node that is left with the fewest free GPUs, ties by name.

Large requests keep whole nodes that way; a share goes on a GPU that is shared already if one takes
it, and there on the fullest of its node.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard_coordinator.core import quota, selection
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.placer import Placement
from gpuyard_coordinator.core.packing.rooms import Room
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node, Settings, Shape


@dataclass(slots=True)
class BestFit:
    settings: Settings
    _rooms: dict[str, Room] = field(default_factory=dict)
    _free: dict[str, int] = field(default_factory=dict)
    """GPUs that are free as a whole, by node."""
    _by_free: dict[int, list[str]] = field(default_factory=dict)
    """Names of nodes by their number of free GPUs, each list sorted."""
    _shared: list[str] = field(default_factory=list)
    """Names of nodes with a GPU of which a part is granted, sorted."""
    _grew: bool = False

    def node_changed(self, node: Node) -> None:
        old = self._take_out(node.name)
        room = Room.of(node, self.settings)
        if room is not None:
            self._put_in(room)
            self._grew = self._grew or room.has_grown(old)

    def node_removed(self, name: str) -> None:
        self._take_out(name)

    def take_growth(self) -> bool:
        grew, self._grew = self._grew, False
        return grew

    def price(self, mix: Mix) -> None:
        """Best fit knows no mix."""

    def prepare(self, mix: Mix) -> Iterator[None]:
        return iter(())

    def memory(self) -> dict[str, Any]:
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """All it knows are the nodes."""

    def place(
        self, shape: Shape, left: quota.Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
        """Ties go by name alone: the policy that is compared with knows no images."""
        placement = None
        if shape.is_share and not shape.prefer:
            placement = self._best(shape, left, opens=False)
        placement = placement or self._best(shape, left, opens=True)
        if placement is not None:
            self._book(shape, placement, -1)
        return placement

    def has_places(self, shape: Shape) -> bool:
        return len(self._rooms) >= shape.nodes

    def release(self, shape: Shape, placement: Placement) -> None:
        self._book(shape, placement, 1)

    def _best(self, shape: Shape, left: quota.Left | None, *, opens: bool) -> Placement | None:
        """Without `opens` a share finds room only on GPUs that are shared already."""
        best: tuple[int, Placement] | None = None
        for room in self._candidates(shape, self._shared if not opens else None):
            chosen = room.choose(shape, left, opens=opens) if room.has_room(shape) else None
            if chosen is None:
                continue
            liked = selection.preference(room.node, shape, chosen) if shape.prefer else 0
            if best is None or liked > best[0]:
                best = (liked, Placement(room.node.name, tuple(chosen)))
            if liked == len(shape.prefer):
                break
        return best[1] if best is not None else None

    def _candidates(self, shape: Shape, among: list[str] | None) -> Iterator[Room]:
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
            if name not in shape.excluded and not room.is_closed_to(shape):
                yield room

    def _book(self, shape: Shape, placement: Placement, sign: int) -> None:
        room = self._take_out(placement.node)
        if room is not None:
            room.book(shape, placement.gpus, sign)
            self._put_in(room)

    def _put_in(self, room: Room) -> None:
        name, rests = room.node.name, room.free_milli.values()
        self._rooms[name] = room
        self._free[name] = free = sum(milli == WHOLE_GPU_MILLI for milli in rests)
        insort(self._by_free.setdefault(free, []), name)
        if any(0 < milli < WHOLE_GPU_MILLI for milli in rests):
            insort(self._shared, name)

    def _take_out(self, name: str) -> Room | None:
        room = self._rooms.pop(name, None)
        if room is None:
            return None
        free = self._free.pop(name)
        names = self._by_free[free]
        del names[bisect_left(names, name)]
        if not names:
            del self._by_free[free]
        index = bisect_left(self._shared, name)
        if index < len(self._shared) and self._shared[index] == name:
            del self._shared[index]
        return room
