"""What packing sees of a node, interned: nodes in one state share everything computed for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.packing.kinds import Kind, kind_of
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu

INFEASIBLE: Final = 2**30
"""The score of a place that does not take a job."""


class Device(NamedTuple):
    """A GPU that takes work, with room on it."""

    kind: int
    milli: int
    """Left of it."""
    mib: int = -1
    """Memory that no share holds, where it is less than the same part of all as `milli` is; -1
    where it is not: memory then binds at most a share that takes all of the rest."""
    guests: int = 0
    """Whose shares are on it, by their number in the catalogue; 0 for nobody's."""


@lru_cache(maxsize=1024)
def whole_device(kind: int) -> Device:
    """A GPU that is free, as most are."""
    return Device(kind, WHOLE_GPU_MILLI)


class Guests(NamedTuple):
    """Whose shares are on a GPU, as far as it decides who may join."""

    tenant: str | None
    """None for those of several."""
    is_open: bool
    """True if all of them let other tenants in."""

    def take(self, shape: Shape) -> bool:
        is_open = self.is_open and shape.is_shared_across_tenants
        return self.tenant == shape.tenant or is_open

    def joined(self, shape: Shape) -> "Guests":
        tenant = shape.tenant if self.tenant == shape.tenant else None
        return Guests(tenant, self.is_open and shape.is_shared_across_tenants)


class Key(NamedTuple):
    """A node as packing sees it, without its memory, which decides what fits and nothing else."""

    cpu_milli: int
    """Left; never negative."""
    gpus: int
    """All of the node's GPUs, those included that take no work; -1 for no place at all."""
    devices: tuple[Device, ...]
    """Sorted; those without room left out."""


NOWHERE: Final = Key(0, -1, ())
"""A node that takes no work."""


@dataclass(slots=True, eq=False)
class State:
    key: Key
    scores: NDArray[np.int32]
    """By row: the best score of a job on a node in this state, or `INFEASIBLE`."""
    choices: NDArray[np.int16]
    """By row: the index in the key of the device that a share takes."""
    after: dict[int, "Step"] = field(default_factory=dict)
    """By row: what placing there does, where it was done before."""


class Step(NamedTuple):
    """A placement on a node in some state: the devices that it takes, and what is left."""

    taken: tuple[Device, ...]
    state: State
    is_certain: bool
    """False where memory of a shared GPU may bind then, of which the step does not know."""


@dataclass(slots=True)
class Catalogue:
    """The kinds and guests that devices of states name by number."""

    kinds: list[Kind] = field(default_factory=list)
    guests: list[Guests | None] = field(default_factory=lambda: [None])
    alike: list[int] = field(default_factory=list)
    """By kind: the one that stands for it on nodes of one kind; later ones stand for themselves."""
    _kind_numbers: dict[Kind, int] = field(default_factory=dict)
    _guest_numbers: dict[Guests, int] = field(default_factory=dict)
    _grants: dict[Shape, list[tuple[int, int]]] = field(default_factory=dict)

    def kind_number(self, gpu: Gpu, node_labels: Mapping[str, str]) -> int:
        kind = kind_of(gpu, node_labels)
        number = self._kind_numbers.setdefault(kind, len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        return number

    def recall(self, kinds: Iterable[Kind], guests: Iterable[Sequence[Any] | None]) -> None:
        """Numbers these first, in their order; of guests the first is nobody."""
        for kind in kinds:
            self._kind_numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        for each in guests:
            if each is not None:
                self.guests_number(Guests(*each))

    def guests_number(self, guests: Guests) -> int:
        number = self._guest_numbers.setdefault(guests, len(self.guests))
        if number == len(self.guests):
            self.guests.append(guests)
        return number

    def grants(self, row: Shape) -> list[tuple[int, int]]:
        """By kind: (milli-GPU, MiB of shared memory) of one device that a job would hold; (0, 0)
        where it gets none."""
        grants = self._grants.setdefault(row, [])
        for kind in self.kinds[len(grants) :]:
            grants.append(kind.grant_of(row) if kind.takes(row) else (0, 0))
        return grants

    def forget(self, row: Shape) -> None:
        self._grants.pop(row, None)

    def is_welcome(self, row: Shape, guests: int) -> bool:
        """True if a share may join whoever is on a device."""
        there = self.guests[guests]
        return there is None or there.take(row)

    def takes_share(self, row: Shape, device: Device) -> bool:
        milli, mib = self.grants(row)[device.kind]
        if not 0 < milli <= device.milli or 0 <= device.mib < mib:
            return False
        return self.is_welcome(row, device.guests)

    def joined(self, guests: int, row: Shape) -> int:
        there = self.guests[guests]
        fresh = Guests(row.tenant, row.is_shared_across_tenants)
        return self.guests_number(fresh if there is None else there.joined(row))
