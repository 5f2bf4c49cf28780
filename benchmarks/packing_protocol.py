"""The two protocols of the packing benchmark: arrivals alone, and arrivals with departures.

Arrivals, as of the FGD paper: the list is shuffled, then tasks are drawn from it with replacement
until the GPUs asked for reach 130 % of those there are; nothing departs, and what fits nowhere is
dropped. The figure at x % is the mean allocation over the arrivals at which x % was asked for.

Departures: tasks are drawn with replacement, arrive at a steady rate, and last exponential times so
that 110 % of the GPUs are asked for on the average; there is no queue, and the fleet is empty at
the start. The figure is the mean allocation over the last 60 % of the time.
"""

import heapq
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.packing_trace import demand_milli
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.repricing import Repricing
from gpuyard_coordinator.core.shapes import Shape

ASKED: Final = 1.3
POINTS: Final = (100, 110, 130)
OFFERED: Final = 1.1
ARRIVALS: Final = 30_000
_COUNTED: Final = 0.6


@dataclass(slots=True)
class Outcome:
    percent: dict[int, float] = field(default_factory=dict)
    """Allocation by arrived percent."""
    placed: int = 0
    rejected: int = 0
    seconds: float = 0.0
    """Within the placer."""


@dataclass(slots=True)
class Following:
    """A placer that knows its mix, and whose prices follow the fleet's headroom as in a yard: a
    piece of new ones after each placement, as after a turn."""

    placer: Packer
    _repricing: Repricing = field(init=False)

    def __post_init__(self) -> None:
        cluster = Cluster("benchmark", (1, 1), priced=self.placer.mix)
        self._repricing = Repricing(cluster, self.placer, learns=False)

    def place(self, task: Shape) -> Placement | None:
        placement = self.placer.place(task)
        if (event := self._repricing.go_on()) is not None:
            self._repricing.cluster.priced = event.mix
            self.placer.price(event.mix)
        return placement


def arrivals(tasks: Sequence[Shape], capacity_milli: int, seed: int) -> Iterator[Shape]:
    rng = random.Random(seed)
    order = list(tasks)
    rng.shuffle(order)
    asked, most = 0, ASKED * capacity_milli
    for task in order:
        if asked >= most:
            return
        asked += demand_milli(task)
        yield task
    while asked < most:
        task = tasks[rng.randrange(len(tasks))]
        asked += demand_milli(task)
        yield task


def fill(placer: Packer, tasks: Sequence[Shape], capacity_milli: int, seed: int) -> Outcome:
    outcome, asked, held = Outcome(), 0, 0
    seen: dict[int, list[int]] = defaultdict(list)
    stream, following = list(arrivals(tasks, capacity_milli, seed)), Following(placer)
    began = time.process_time()
    for task in stream:
        milli = demand_milli(task)
        asked += milli
        if following.place(task) is not None:
            held += milli
            outcome.placed += 1
        else:
            outcome.rejected += 1
        seen[round(100 * asked / capacity_milli)].append(held)
    outcome.seconds = time.process_time() - began
    for point in POINTS:
        outcome.percent[point] = 100 * sum(seen[point]) / len(seen[point]) / capacity_milli
    return outcome


def churn(
    placer: Packer, tasks: Sequence[Shape], capacity_milli: int, seed: int, count: int = ARRIVALS
) -> Outcome:
    rng = random.Random(seed)
    outcome, following = Outcome(), Following(placer)
    mean_milli = sum(map(demand_milli, tasks)) / len(tasks)
    mean_life = OFFERED * capacity_milli / mean_milli
    ends: list[tuple[float, int, Shape, Placement]] = []
    held, area, since = 0, 0.0, (1 - _COUNTED) * count
    before, began = since, time.process_time()
    for now in range(count):
        task, life = tasks[rng.randrange(len(tasks))], rng.expovariate(1 / mean_life)
        while ends and ends[0][0] <= now:
            at, _, gone, placement = heapq.heappop(ends)
            if at > before:
                area, before = area + held * (at - before), at
            placer.release(gone, placement)
            held -= demand_milli(gone)
        if now > before:
            area, before = area + held * (now - before), float(now)
        placed = following.place(task)
        if placed is None:
            outcome.rejected += 1
            continue
        outcome.placed += 1
        held += demand_milli(task)
        heapq.heappush(ends, (now + life, now, task, placed))
    outcome.seconds = time.process_time() - began
    outcome.percent[0] = 100 * area / (before - since) / capacity_milli
    return outcome
