"""The requests that are scored, as arrays: which of them the devices of a node take, CPUs aside."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.packing import plain
from gpuyard_coordinator.core.packing.states import Catalogue, Device
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
_NEVER: Final = 2 * WHOLE_GPU_MILLI
"""The size of a share on a kind that it may not use: larger than any rest."""
_NONE: Final = np.zeros(0, dtype=np.intp)


class ShareFits(NamedTuple):
    """Every share with every device that takes it: equally long, device by device."""

    device: Ints
    """Index among the devices asked about."""
    share: Ints
    """Index in `Rows.shares`."""
    rest: Ints
    """milli left of the device."""


class WholeFits(NamedTuple):
    """The others that fit, equally long."""

    whole: Ints
    """Index in `Rows.wholes`."""
    kind: int | None
    """Of all that they take; None where they take devices of several kinds or none at all."""
    asked: Ints
    """Devices that each takes."""
    taken: list[plain.Taken]
    """Which, where they are of several kinds."""


@dataclass(slots=True)
class Rows:
    """Requests by number, split into shares and the others, `wholes`, which may ask for no GPU."""

    catalogue: Catalogue
    rows: list[Shape]
    cpu_milli: NDArray[np.float64] = field(init=False)
    """By row."""
    shares: Ints = field(init=False)
    wholes: Ints = field(init=False)
    alls: list[int] = field(init=False)
    """Rows that take all of a node's GPUs."""
    _gpus: Ints = field(init=False)
    _is_all: Bools = field(init=False)
    _sizes: list[Ints] = field(default_factory=list)
    """By kind: the size of each share in milli."""
    _memories: list[Ints] = field(default_factory=list)
    """By kind: the memory of each share in MiB."""
    _allowed: list[Bools] = field(default_factory=list)
    """By kind: which wholes may use it."""
    _welcome: dict[int, Bools] = field(default_factory=dict)
    """By guests: which shares may join them."""

    def __post_init__(self) -> None:
        rows = self.rows
        self.cpu_milli = np.array([float(row.cpu_milli) for row in rows])
        self.alls = [number for number, row in enumerate(rows) if row.all_gpus]
        is_share = np.array([row.is_share for row in rows], dtype=bool)
        self.shares, self.wholes = is_share.nonzero()[0], (~is_share).nonzero()[0]
        self._gpus = np.array([rows[i].gpus for i in self.wholes], dtype=np.intp)
        self._is_all = np.array([rows[i].all_gpus for i in self.wholes], dtype=bool)

    def fitting_shares(self, devices: Sequence[Device]) -> ShareFits:
        self._learn_kinds()
        if not devices or not len(self.shares):
            return ShareFits(_NONE, _NONE, _NONE)
        sizes = np.array([self._sizes[device.kind] for device in devices])
        rests = np.array([[device.milli] for device in devices]) - sizes
        fits = rests >= 0
        for index, device in enumerate(devices):
            if device.guests:
                fits[index] &= self._welcome_by(device.guests)
            if device.mib >= 0:
                fits[index] &= self._memories[device.kind] <= device.mib
        which, shares = fits.nonzero()
        return ShareFits(which, shares, rests[which, shares])

    def fitting_wholes(self, gpus: int, devices: Sequence[Device]) -> WholeFits:
        """Those that fit a node with so many GPUs, of which these have room."""
        self._learn_kinds()
        free = [device for device in devices if device.milli == WHOLE_GPU_MILLI]
        asked = np.where(self._is_all, max(gpus, 1), self._gpus)
        fits = asked <= len(free)
        if not free:
            found = fits.nonzero()[0]
            return WholeFits(found, None, asked[found], [])
        if (kind := free[0].kind) == free[-1].kind:
            found = (fits & (self._allowed[kind] | (asked == 0))).nonzero()[0]
            return WholeFits(found, kind, asked[found], [])
        numbers, taken = list[int](), list[plain.Taken]()
        for index in fits.nonzero()[0].tolist():
            row = self.rows[self.wholes[index]]
            chosen = plain.whole_devices(self.catalogue, gpus, devices, row)
            if chosen is not None:
                numbers.append(index)
                taken.append(chosen)
        found = np.array(numbers, dtype=np.intp)
        return WholeFits(found, None, asked[found], taken)

    def grants_on(self, kind: int) -> tuple[bytes, ...]:
        """What tells how the rows may use a kind."""
        self._learn_kinds()
        columns = self._sizes[kind], self._memories[kind], self._allowed[kind]
        return tuple(column.tobytes() for column in columns)

    def _welcome_by(self, guests: int) -> Bools:
        welcome = self._welcome.get(guests)
        if welcome is None:
            answers = [self.catalogue.is_welcome(self.rows[i], guests) for i in self.shares]
            welcome = self._welcome[guests] = np.array(answers, dtype=bool)
        return welcome

    def _learn_kinds(self) -> None:
        for kind in range(len(self._sizes), len(self.catalogue.kinds)):
            grants = [self.catalogue.grants(row)[kind] for row in self.rows]
            sizes = [grants[i][0] or _NEVER for i in self.shares]
            memories = [grants[i][1] for i in self.shares]
            self._sizes.append(np.array(sizes, dtype=np.intp))
            self._memories.append(np.array(memories, dtype=np.intp))
            self._allowed.append(np.array([grants[i][0] > 0 for i in self.wholes], dtype=bool))
