"""The policies that others published as placers, with the choice of device as they have it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.fleet import Member
from gpuyard_coordinator.core.packing.packer import Packer
from gpuyard_coordinator.core.packing.placer import Placement
from gpuyard_coordinator.core.packing.rivals import DotProduct, Fgd, LeastLeft, Spread
from gpuyard_coordinator.core.packing.states import INFEASIBLE, NOWHERE, Key, Step
from gpuyard_coordinator.core.packing.table import Table
from gpuyard_coordinator.core.state import Settings, Shape


@dataclass(slots=True)
class LowestIndex(Packer):
    """Of devices with equal scores the one of the lowest index; others take the tightest."""

    def _key(self, member: Member) -> Key:
        room, key = member.room, member.key()
        return (
            key
            if key == NOWHERE or room is None
            else key._replace(devices=tuple(member.devices(room)))
        )

    def _take(self, table: Table, member: Member, step: Step) -> None:
        table.set(member.number, self._key(member))


@dataclass(slots=True)
class AnyPlace(Packer):
    """Any node that a job fits, and of the devices that take a share any."""

    seed: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        super(AnyPlace, self).__post_init__()
        self._rng = random.Random(self.seed)

    def place(self, shape: Shape, left: quota.Left | None = None) -> Placement | None:
        table, ask = self._settled(), self._ask(shape)
        row = self._row(table, ask)
        scores = self._open_to(table.scores(row), ask.mask, shape)
        fitting = (scores < INFEASIBLE).nonzero()[0]
        if not len(fitting):
            return None
        member = self._fleet.ordered[self._rng.choice(fitting)]
        taken = table.step(row, member.number).taken
        if shape.is_share and member.room is not None:
            devices, catalogue = member.devices(member.room), self._fleet.catalogue
            taken = (self._rng.choice([d for d in devices if catalogue.takes_share(ask.row, d)]),)
        uuids = tuple(member.find(taken))
        self._fleet.book(member, shape, uuids, -1)
        table.set(member.number, self._key(member))
        return Placement(member.name, uuids)


RIVALS: Final[dict[str, Callable[[Settings, Mix, int], Packer]]] = {
    "fgd": lambda settings, mix, seed: LowestIndex(settings, mix, Fgd.of),
    "bestfit": lambda settings, mix, seed: Packer(settings, mix, lambda mix, fleet: LeastLeft()),
    "dotprod": lambda settings, mix, seed: Packer(settings, mix, lambda mix, fleet: DotProduct()),
    "spread": lambda settings, mix, seed: Packer(settings, mix, lambda mix, fleet: Spread()),
    "random": lambda settings, mix, seed: AnyPlace(settings, mix, seed=seed),
}
"""By the name that the benchmark and people give them; the seed decides of `random` alone."""
