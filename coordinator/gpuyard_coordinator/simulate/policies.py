"""The placement policies to compare, by the names that people give them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.packing.rival_placers import RIVALS
from gpuyard_coordinator.core.packing.states import INFEASIBLE
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Settings


@dataclass(slots=True)
class AnyPlace(Packer):
    """Any node that a job fits, and of the devices that take a share any."""

    seed: int = 0
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        super(AnyPlace, self).__post_init__()
        self._rng = Random(self.seed)

    def place(
        self, shape: Shape, left: quota.Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
        table, ask = self._settled(), self._ask(shape)
        is_bound = left is not None and (ask.most is None or not left.takes(ask.most))
        if ask.is_of_devices or is_bound or shape.share_mib is not None:
            return super(AnyPlace, self).place(shape, left)
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


POLICIES: Final[dict[str, Callable[[Settings, Mix, int], Packer]]] = {
    "ours": lambda settings, mix, seed: Packer(settings, mix),
    "best-fit": lambda settings, mix, seed: RIVALS["bestfit"](settings, mix),
    "fgd": lambda settings, mix, seed: RIVALS["fgd"](settings, mix),
    "dot-product": lambda settings, mix, seed: RIVALS["dotprod"](settings, mix),
    "random": lambda settings, mix, seed: AnyPlace(
        settings, mix, follows_headroom=False, seed=seed
    ),
    "spread": lambda settings, mix, seed: RIVALS["spread"](settings, mix),
}
"""Each makes a placer from settings, the mix known at the start and a seed."""
