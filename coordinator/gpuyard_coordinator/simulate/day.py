"""Days of a yard in virtual time: the real core, jobs that last as long as they say, no I/O.

Nodes are well all the time. After each moment at which something comes or ends there is a plan.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpuyard.model.grace import stop_grace_s
from gpuyard.model.ids import JobKey
from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core import lifecycle
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import Submitted
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import Job, Now

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LIMIT: Final = 100_000
"""Decisions of one plan; more than any moment has."""


@dataclass(slots=True)
class Day:
    """Ends of jobs and arrivals, in order of time. `mono` is the cluster's clock."""

    cluster: Cluster
    planner: Planner
    mono: float = 1000.0
    on_end: Callable[["Day", Job], None] = lambda day, job: None
    """Called after each job's end: a tenant that always has work submits its next here."""
    on_move: Callable[["Day"], None] = lambda day: None
    """Called before time moves on, with everything planned."""
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-seconds by tenant."""
    started: dict[JobKey, float] = field(default_factory=dict)
    """When each job began first."""
    submitted: dict[JobKey, float] = field(default_factory=dict)
    refused: int = 0
    preempted: int = 0
    _lasts: dict[JobKey, float] = field(default_factory=dict)
    _ends: list[tuple[float, JobKey, int]] = field(default_factory=list)
    _coming: list[tuple[float, int, str, Mapping[str, Any], float]] = field(default_factory=list)
    _numbers: int = 0
    _begin: float = 0.0

    def __post_init__(self) -> None:
        self._begin = self.mono

    @property
    def at(self) -> float:
        """Seconds since the day began."""
        return self.mono - self._begin

    @property
    def now(self) -> Now:
        at = _EPOCH + timedelta(seconds=self.mono)
        return Now(self.mono, f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z")

    def submit(
        self, tenant: str, spec: Mapping[str, Any], *, lasts: float, after_s: float = 0.0
    ) -> None:
        """A job with a normalised spec comes in `after_s` and will run for `lasts` seconds."""
        self._numbers += 1
        due = self.mono + after_s
        heapq.heappush(self._coming, (due, self._numbers, tenant, spec, lasts))

    def number_of(self, key: JobKey) -> int:
        """Which of the jobs handed in it is, counted from 1."""
        return int(key[1][1:])

    def run(self, seconds: float) -> None:
        """Until so long after its begin."""
        until = self._begin + seconds
        self._plan()
        while (due := self._next()) is not None and due <= until:
            self._step(due)
        self._spend_to(until)

    def run_out(self) -> None:
        """Until nothing comes or ends any more."""
        self._plan()
        while (due := self._next()) is not None:
            self._step(due)

    def _next(self) -> float | None:
        return min((heap[0][0] for heap in (self._ends, self._coming) if heap), default=None)

    def _step(self, due: float) -> None:
        self._spend_to(due)
        self._take_ends()
        self._take_arrivals()
        self._plan()

    def _spend_to(self, mono: float) -> None:
        self.on_move(self)
        for tenant, use in self.cluster.use.items():
            self.held[tenant] += use.milli / 1000 * (mono - self.mono)
        self.mono = mono

    def _take_arrivals(self) -> None:
        now = self.now
        while self._coming and self._coming[0][0] <= self.mono:
            _, number, tenant, spec, lasts = heapq.heappop(self._coming)
            key = (tenant, f"j{number}")
            event = Submitted(tenant, "user", False, key[1], dict(spec), key[1])
            apply(self.cluster, event, now, Effects())
            if key in self.cluster.jobs:
                self.submitted[key], self._lasts[key] = self.mono, lasts
            else:
                self.refused += 1

    def _take_ends(self) -> None:
        now = self.now
        while self._ends and self._ends[0][0] <= self.mono:
            _, key, number = heapq.heappop(self._ends)
            job = self.cluster.jobs.get(key)
            last = job.last if job is not None else None
            if job is None or last is None or last.number != number or last.ended_at:
                continue
            was_stopped = last.stop is not None
            for part in last.parts:
                lifecycle.end_attempt(
                    self.cluster,
                    job,
                    part,
                    reason=EndReason.PREEMPTED if was_stopped else EndReason.EXITED,
                    exit_code=None if was_stopped else 0,
                    message=None,
                    now=now,
                    effects=Effects(),
                )
            if not was_stopped:
                self.on_end(self, job)

    def _plan(self) -> None:
        self._take_arrivals()
        self._learn()
        now = self.now
        plan = self.planner.plan(_LIMIT, now)
        for event in plan.events:
            apply(self.cluster, event, now, Effects())
        for stopped in plan.preemptions:
            key = (stopped.tenant, stopped.job)
            self._end_of(key, stop_grace_s(self.cluster.jobs[key].spec))
            self.preempted += 1
        for placed in plan.placements:
            key = (placed.tenant, placed.job)
            self.started.setdefault(key, self.mono)
            job = self.cluster.jobs[key]
            for attempt in () if job.last is None else (job.last, *job.last.members):
                attempt.started_at = now.at
            self._end_of(key, self._lasts[key])

    def _learn(self) -> None:
        """Prices follow as a leader's do, all at once: a leader has time between its turns."""
        repricing = self.planner.repricing
        while True:
            if (priced := repricing.go_on()) is not None:
                apply(self.cluster, priced, self.now, Effects())
            elif not repricing.is_busy:
                return

    def _end_of(self, key: JobKey, after_s: float) -> None:
        last = self.cluster.jobs[key].last
        if last is not None:
            heapq.heappush(self._ends, (self.mono + after_s, key, last.number))
