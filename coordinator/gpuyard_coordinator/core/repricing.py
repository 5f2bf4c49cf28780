"""New prices for the placer, worked out between turns.

To price a mix takes an LP and the scores of all nodes anew, longer than a turn may. So a copy of
the mix is priced ahead, in pieces; the copy takes along how scarce whole nodes are, for which it is
made anew, too. The switch is an event with that copy in it, `MixPriced`, and has its place among
the others: what follows depends on the copy and on the fleet at that place alone. Whoever replays
the events or leads next therefore has the same prices from there on, prepared or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import MixPriced
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Placer


@dataclass(slots=True)
class Repricing:
    cluster: Cluster
    placer: Placer
    learns: bool = True
    """False where the mix is known: prices then follow the headroom alone."""
    _mix: Mix | None = None
    """The copy that is priced now."""
    _work: Iterator[None] = field(default_factory=lambda: iter(()))

    @property
    def is_busy(self) -> bool:
        """True while pieces are left."""
        return self._mix is not None

    def go_on(self) -> MixPriced | None:
        """Does a piece where prices are due; the event to apply once all is done."""
        if self._mix is None:
            current = self.cluster.priced
            mix, headroom = self._known(), self.placer.headroom(current)
            if not mix.is_due(current, headroom):
                return None
            self._mix = mix.copy(headroom)
            self._work = self.placer.prepare(self._mix)
        for _ in self._work:
            return None
        priced, self._mix = MixPriced(self._mix), None
        return priced

    def _known(self) -> Mix:
        return self.cluster.mix if self.learns else self.cluster.priced
