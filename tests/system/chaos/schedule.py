"""Which faults are done when: made of a seed alone, so that a failing run can be done again."""

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

WARM_UP_S: Final = 5.0
"""Left in peace at the beginning, so that there is something to disturb."""
MEAN_GAP_S: Final = 4.0


class Kind(NamedTuple):
    """A fault: what it is done to, how often against the others, and for how long (seconds)."""

    name: str
    target: str
    weight: int
    least_s: float
    most_s: float


KINDS: Final = (
    Kind("coordinator_killed", "coordinator", 4, 0.5, 4.0),
    Kind("coordinator_frozen", "coordinator", 3, 1.0, 12.0),
    Kind("coordinator_terminated", "coordinator", 2, 0.5, 3.0),
    Kind("coordinator_cut_off", "coordinator", 3, 1.0, 15.0),
    Kind("coordinator_clock_jump", "coordinator", 1, 2.0, 10.0),
    Kind("agent_killed", "agent", 4, 0.5, 8.0),
    Kind("agent_frozen", "agent", 3, 1.0, 20.0),
    Kind("agent_cut_off", "agent", 4, 1.0, 40.0),
    Kind("agent_connections_reset", "agent", 2, 0.0, 0.0),
    Kind("agent_clock_jump", "host", 1, 2.0, 10.0),
    Kind("agent_disk_full", "host", 1, 2.0, 8.0),
    Kind("server_killed", "server", 3, 0.5, 4.0),
    Kind("server_frozen", "server", 2, 1.0, 8.0),
    Kind("server_terminated", "server", 1, 0.5, 3.0),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: begins `at_s` after the start of the schedule and is mended `for_s` later."""

    at_s: float
    kind: str
    target: str
    index: int
    for_s: float

    @property
    def until_s(self) -> float:
        return self.at_s + self.for_s


COORDINATORS: Final = 3
SERVERS: Final = 3
FLEETS: Final = 4
"""Agents that simulate: each hosts many nodes."""
HOSTS: Final = 2
"""Agents that run real processes; they are numbered after the fleets."""


def schedule(
    seed: int, length_s: float, *, servers: int = SERVERS, without: frozenset[str] = frozenset()
) -> list[Fault]:
    """Faults for a run of that length, in order; every one is mended before its end.

    Several may hold at once, but never two on one target. `without` names kinds that this machine
    cannot do: the others stay as they are.
    """
    draw = random.Random(seed)
    faults: list[Fault] = []
    free_at: dict[tuple[str, int], float] = {}
    at_s = WARM_UP_S
    while (at_s := at_s + draw.expovariate(1 / MEAN_GAP_S)) < length_s:
        kind = draw.choices(KINDS, weights=[kind.weight for kind in KINDS])[0]
        number, for_s = draw.randrange(1000), draw.uniform(kind.least_s, kind.most_s)
        target, index = _target(kind, number, servers)
        fault = Fault(at_s, kind.name, target, index, min(for_s, length_s - at_s))
        if free_at.get((target, index), 0.0) <= at_s:
            free_at[target, index] = fault.until_s + 1.0
            if kind.name not in without:
                faults.append(fault)
    return faults


def _target(kind: Kind, number: int, servers: int) -> tuple[str, int]:
    match kind.target:
        case "coordinator":
            return kind.target, number % COORDINATORS
        case "server":
            return kind.target, number % servers
        case "host":
            return "agent", FLEETS + number % HOSTS
        case _:
            return kind.target, number % (FLEETS + HOSTS)
