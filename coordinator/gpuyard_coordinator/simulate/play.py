"""A workload played under one policy, and what came of it."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI
from gpuyard_coordinator.simulate.day import Day
from gpuyard_coordinator.simulate.policies import POLICIES
from gpuyard_coordinator.simulate.workload import Workload, demand_milli, nodes_of, well_node

SAMPLES: Final = 400
"""Points of a curve, and looks at the fragments."""
_TYPICAL: Final = 64
"""Requests of which fragments are judged, the most frequent ones."""
Progress = Callable[[str], None]
_TOLD_EVERY: Final = 2_000


@dataclass(slots=True)
class Outcome:
    """Times in seconds, parts in percent. Averages are over the time in which jobs came."""

    policy: str
    jobs: int = 0
    refused: int = 0
    never_started: int = 0
    preempted: int = 0
    waits: list[float] = field(default_factory=list)
    """Of jobs that started, from their coming to their first start; sorted."""
    allocation_percent: float = 0.0
    fragmentation_percent: float | None = None
    """Of the GPU capacity that was free, what an average GPU job could not have used."""
    at_s: list[float] = field(default_factory=list)
    allocated: list[float] = field(default_factory=list)
    """By `at_s`, percent of all GPUs."""
    queued: list[int] = field(default_factory=list)
    """By `at_s`, jobs that wait."""

    @property
    def mean_wait_s(self) -> float:
        return sum(self.waits) / len(self.waits) if self.waits else 0.0

    def wait_s(self, part: float) -> float:
        """The wait that this part of the jobs does not exceed."""
        return self.waits[max(0, ceil(part * len(self.waits)) - 1)] if self.waits else 0.0

    def row(self) -> dict[str, Any]:
        """For programs."""
        return {
            "policy": self.policy,
            "jobs": self.jobs,
            "refused": self.refused,
            "never_started": self.never_started,
            "preempted": self.preempted,
            "wait_mean_s": round(self.mean_wait_s, 3),
            "wait_p50_s": round(self.wait_s(0.5), 3),
            "wait_p95_s": round(self.wait_s(0.95), 3),
            "wait_max_s": round(self.wait_s(1.0), 3),
            "allocation_percent": round(self.allocation_percent, 3),
            "fragmentation_percent": None
            if self.fragmentation_percent is None
            else round(self.fragmentation_percent, 3),
        }


def play(
    workload: Workload,
    policy: str,
    *,
    seed: int = 0,
    mix: Mix | None = None,
    progress: Progress = lambda text: None,
) -> Outcome:
    """The whole workload, until its last job ended. Without a `mix` prices are learned from what
    comes, as a yard's are; with one they follow the fleet's headroom alone."""
    cluster = _cluster(workload)
    cluster.priced = mix or cluster.priced
    placer = POLICIES[policy](cluster.settings, cluster.priced, seed)
    watch = _Watch(workload, Outcome(policy), progress)
    planner = Planner(cluster, placer)
    planner.repricing.learns = mix is None
    day = Day(cluster, planner, on_move=watch.look)
    for each in workload.arrivals:
        day.submit(each.tenant, each.spec, lasts=each.lasts_s, after_s=each.at_s)
    day.run_out()
    return watch.outcome_of(day)


def _cluster(workload: Workload) -> Cluster:
    cluster = Cluster(yard="simulated", token=(1, 1))
    cluster.tenants = dict(workload.tenants)
    fresh = [well_node(node.name, node.facts) for node in workload.nodes]
    for node in [*fresh, *nodes_of(workload.machines)]:
        cluster.nodes[node.name] = node
        cluster.beat_order[node.name] = None
    cluster.nodes_changed |= set(cluster.nodes)
    return cluster


@dataclass(slots=True)
class _Watch:
    """Looks at a day whenever time moves on."""

    workload: Workload
    outcome: Outcome
    progress: Progress
    _times: list[float] = field(default_factory=list)
    _milli: list[int] = field(default_factory=list)
    _queued: list[int] = field(default_factory=list)
    _fragments: list[tuple[int, float]] = field(default_factory=list)
    """(free milli, useless part of it) at some times."""
    _next_look: float = 0.0
    _told: int = 0

    def look(self, day: Day) -> None:
        cluster, at = day.cluster, day.at
        self._times.append(at)
        self._milli.append(sum(use.milli for use in cluster.use.values()))
        self._queued.append(len(cluster.queue))
        last = self._last_arrival()
        if self._next_look <= at <= last:
            self._next_look = at + last / SAMPLES
            if (found := _fragments(cluster)) is not None:
                self._fragments.append(found)
        if len(day.started) >= self._told + _TOLD_EVERY:
            self._told = len(day.started)
            total = len(self.workload.arrivals)
            self.progress(f"{self.outcome.policy}: {self._told} of {total} jobs started")

    def outcome_of(self, day: Day) -> Outcome:
        outcome, capacity = self.outcome, max(1, self.workload.gpus) * WHOLE_GPU_MILLI
        outcome.jobs, outcome.refused = len(day.submitted) + day.refused, day.refused
        outcome.never_started = len(day.submitted) - len(day.started)
        outcome.preempted = day.preempted
        outcome.waits = sorted(
            at - day.submitted[key]
            for key, at in day.started.items()
            if day.number_of(key) > self.workload.warm_up
        )
        last = self._last_arrival()
        held = _area(self._times, self._milli, last)
        outcome.allocation_percent = 100 * held / (last * capacity) if last else 0.0
        free = sum(milli for milli, _ in self._fragments)
        if free:
            outcome.fragmentation_percent = 100 * sum(part for _, part in self._fragments) / free
        for number in range(SAMPLES + 1):
            at = last * number / SAMPLES
            index = max(0, bisect_right(self._times, at) - 1)
            if self._times:
                outcome.at_s.append(at)
                outcome.allocated.append(100 * self._milli[index] / capacity)
                outcome.queued.append(self._queued[index])
        return outcome

    def _last_arrival(self) -> float:
        arrivals = self.workload.arrivals
        return arrivals[-1].at_s if arrivals else 0.0


def _area(times: Sequence[float], values: Sequence[int], end: float) -> float:
    """The sum over time up to `end`. Each value was looked at before time moved on: it holds from
    the time of its look to the next."""
    area = 0.0
    for index, value in enumerate(values):
        until = min(end, times[index + 1] if index + 1 < len(times) else end)
        area += value * max(0.0, until - times[index])
    return area


def _fragments(cluster: Cluster) -> tuple[int, float] | None:
    """(free milli-GPUs, what of it the typical jobs of the mix cannot use on the average); None
    where all is taken or no job asked for GPUs. Models are not looked at, GPUs in MIG mode
    neither."""
    typical = [
        (s, n) for s, n in cluster.mix.most_common() if s.wants_gpus and not (s.share_mib or s.mig)
    ]
    typical = typical[:_TYPICAL]
    nodes = [node for node in cluster.nodes.values() if node.gpus]
    width = max((len(node.gpus) for node in nodes), default=0)
    rests = np.zeros((len(nodes), width), dtype=np.int64)
    cpus = np.array([(n.facts["cpus"] or 0) * 1000 - n.cpu_milli_used for n in nodes])
    for index, node in enumerate(nodes):
        for column, gpu in enumerate(node.gpus.values()):
            if gpu.facts["mig"] is None:
                rests[index, column] = gpu.free_milli
    free, weight = int(rests.sum()), sum(count for _, count in typical)
    if not free or not weight:
        return None
    useless = sum(count * _useless(rests, cpus, shape) for shape, count in typical)
    return free, useless / weight


def _useless(rests: NDArray[np.int64], cpus: NDArray[np.float64], shape: Shape) -> float:
    spec = {"core_percent": shape.share_core_percent, "count": shape.gpus, "all": shape.all_gpus}
    milli = demand_milli({"gpus": spec}, rests.shape[1])
    count = 1 if shape.is_share else milli // WHOLE_GPU_MILLI
    fits = rests >= (milli if shape.is_share else WHOLE_GPU_MILLI)
    takes = (fits.sum(axis=1) >= count) & (cpus >= shape.cpu_milli)
    return float(rests.sum() - (rests * fits)[takes].sum())
