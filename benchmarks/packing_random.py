"""Placing at random, to compare with."""

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.packing.states import INFEASIBLE
from gpuyard_coordinator.core.state import Shape


@dataclass(slots=True)
class AnyPlace(Packer):
    """Any node that a job fits, and of the devices that take a share any."""

    seed: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        super(AnyPlace, self).__post_init__()
        self._rng = random.Random(self.seed)

    def place(
        self, shape: Shape, left: quota.Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
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
