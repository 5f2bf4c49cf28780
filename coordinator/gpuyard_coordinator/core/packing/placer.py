"""What the planner asks of a placer, and what it gets."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Node


class Placement(NamedTuple):
    node: str
    gpus: tuple[str, ...]
    """UUIDs, in the order of their index."""


class Placer(Protocol):
    """Hears which nodes changed, never scans for them. A placement it returns is reserved until
    `node_changed` is called."""

    def node_changed(self, node: Node) -> None:
        """Looks at a node anew: it joined, its grants, health, labels or state changed."""

    def node_removed(self, name: str) -> None: ...

    def place(
        self, shape: Shape, left: quota.Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
        """The best place for one job of a shape now, or None; costs no walk over the fleet
        unless something other than its resources binds, or it has preferences.

        `left` is what its tenant may still be granted; of equally good nodes one of those `having`
        its image is taken, and then the first by name.
        """

    def has_places(self, shape: Shape) -> bool:
        """False where surely fewer nodes than a gang asks for take a member of it now; costs one
        look at what is known of all nodes."""

    def release(self, shape: Shape, placement: Placement) -> None:
        """Takes back a reservation of `place`."""

    def price(self, mix: Mix) -> None:
        """Goes by this mix of jobs from the next decision on."""

    def prepare(self, mix: Mix) -> Iterator[None]:
        """Works out ahead what `price` with this mix takes, on the nodes as they are: a piece of
        some milliseconds at a time, but for the first one, of some ten. No decision depends on
        it."""

    def headroom(self, priced: Mix) -> Headroom:
        """The one to make prices for: that of the mix which they go by, unless the fleet's is
        surely another one. Costs no walk over the fleet."""

    def memory(self) -> dict[str, Any]:
        """What decisions depend on beside the nodes and the mix as they are: how it came to see
        them. Plain values that `recall` takes."""

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Decides from here on as the placer did of which this is the `memory`; to be called before
        it sees a node, and after `price`."""

    def take_growth(self) -> bool:
        """True if room grew since the last call, so that a refused shape may fit now."""
