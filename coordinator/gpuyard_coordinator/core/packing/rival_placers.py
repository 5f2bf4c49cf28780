"""The policies that others published as placers, with the choice of device as they have it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.fleet import Member
from gpuyard_coordinator.core.packing.packer import Packer
from gpuyard_coordinator.core.packing.rivals import DotProduct, Fgd, LeastLeft, Spread
from gpuyard_coordinator.core.packing.scoring import Formula
from gpuyard_coordinator.core.packing.states import NOWHERE, Key, Step
from gpuyard_coordinator.core.packing.table import Table
from gpuyard_coordinator.core.state import Settings


@dataclass(slots=True)
class LowestIndex(Packer):
    """Of devices with equal scores the one of the lowest index; others take the tightest."""

    def _key(self, member: Member) -> Key:
        room, key = member.room, member.key()
        if room is None or key == NOWHERE:
            return key
        return key._replace(devices=tuple(member.devices(room)))

    def _take(self, table: Table, member: Member, step: Step) -> None:
        table.set(member.number, self._key(member))


def _placer(settings: Settings, mix: Mix, formula: Formula) -> Packer:
    return Packer(settings, mix, lambda mix, fleet: formula, follows_headroom=False)


RIVALS: Final[dict[str, Callable[[Settings, Mix], Packer]]] = {
    "fgd": lambda settings, mix: LowestIndex(settings, mix, Fgd.of, follows_headroom=False),
    "bestfit": lambda settings, mix: _placer(settings, mix, LeastLeft()),
    "dotprod": lambda settings, mix: _placer(settings, mix, DotProduct()),
    "spread": lambda settings, mix: _placer(settings, mix, Spread()),
}
"""By the name that the benchmark and people give them."""
