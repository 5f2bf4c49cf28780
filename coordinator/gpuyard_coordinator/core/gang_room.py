"""Room for a gang that cannot start: on which nodes, when, and by whose ends.

Each node is looked at for one member, as for a job on one node; the gang takes those where it comes
first, or whose jobs' ends do the least harm. So it waits for the last of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from gpuyard_coordinator.core import backfill, preemption
from gpuyard_coordinator.core.clearing import Site, suffices
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Now

NO_HARM: Final = (Rank(-1, -1), 0)


@dataclass(frozen=True, slots=True)
class Room:
    nodes: tuple[str, ...]
    start: float
    """Monotonic, at the latest; infinite where nobody knows."""
    victims: tuple[Job, ...] = ()


def earliest(shape: Shape, sites: Sequence[Site], now: Now) -> Room | None:
    """The nodes on which all members can start first, and when; None where ends do not make enough
    room."""
    found = [(now.mono, site.node.name) for site in sites if suffices(site, shape, ())]
    rest = [site for site in sites if not suffices(site, shape, ())]
    found += [(each.start, each.node) for each in backfill.prospects(shape, rest, now)]
    found.sort()
    if len(found) < shape.nodes:
        return None
    chosen = found[: shape.nodes]
    return Room(tuple(name for _, name in chosen), chosen[-1][0])


def claim(shape: Shape, rank: Rank, sites: Iterable[Site], now: Now) -> Room | None:
    """The nodes where stopping jobs of lower rank makes room with the least harm; None where it
    does not for every member, or where it is not room that is lacking."""
    found: list[tuple[tuple[Rank, int], str, preemption.Claim | None]] = []
    for site in sites:
        if suffices(site, shape, ()):
            found.append((NO_HARM, site.node.name, None))
            continue
        choice = preemption.choice(site, shape, rank, now)
        made = preemption.claim(choice, shape, now) if choice is not None else None
        if choice is not None and made is not None:
            found.append((choice.harm, site.node.name, made))
    found.sort(key=lambda each: each[:2])
    if len(found) < shape.nodes:
        return None
    claims = [made for _, _, made in found[: shape.nodes] if made is not None]
    if not claims:
        return None
    victims = {victim.key: victim for made in claims for victim in made.victims}
    start = max(made.start for made in claims)
    names = tuple(name for _, name, _ in found[: shape.nodes])
    return None if start == inf else Room(names, start, tuple(victims.values()))
