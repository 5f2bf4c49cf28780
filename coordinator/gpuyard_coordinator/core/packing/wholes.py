"""How many GPUs of a fleet are free in sets of one node, kept as nodes change."""

from collections import Counter
from dataclasses import dataclass, field

from gpuyard_coordinator.core.headroom import SET_GPUS, Headroom


@dataclass(slots=True)
class Wholes:
    """Each node counts by its GPUs and by how many of them are free as a whole."""

    _gpus: int = 0
    _by_gpus: Counter[int] = field(default_factory=Counter)
    """Nodes by how many GPUs they have."""
    _by_free: Counter[int] = field(default_factory=Counter)
    """Nodes by how many GPUs are free."""

    def enter(self, gpus: int, free: int) -> None:
        """A node is there."""
        self._count(gpus, free, 1)

    def leave(self, gpus: int, free: int) -> None:
        """A node that was entered so is not any more."""
        self._count(gpus, free, -1)

    def headroom(self, was: Headroom) -> Headroom:
        """The level after `was`, which stays where no node has several GPUs; no walk over nodes."""
        most = max((gpus for gpus, nodes in self._by_gpus.items() if nodes), default=0)
        size = min(SET_GPUS, most)
        if size < 2:
            return was
        sets = sum(nodes * (free // size) for free, nodes in self._by_free.items())
        return was.after(sets * size, self._gpus)

    def _count(self, gpus: int, free: int, sign: int) -> None:
        self._gpus += sign * gpus
        self._by_gpus[gpus] += sign
        self._by_free[free] += sign
