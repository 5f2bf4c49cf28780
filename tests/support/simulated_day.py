"""A day of a yard in virtual time: the real planner, jobs that last as long as they say, no I/O.

Nodes are well all the time. Whoever tests adds tenants' demand and looks at what was held when.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuyard.model.ids import JobKey
from gpuyard.model.intake import parse_spec
from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core import lifecycle
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import Submitted
from gpuyard_coordinator.core.state import Job
from tests.support.yard import Yard

Arrival = tuple[float, str, dict[str, Any]]
"""Seconds from the start, tenant, spec; its label `lasts` is for how many seconds it runs."""


@dataclass(slots=True)
class Day:
    """Ends of jobs and arrivals, in order of time; a plan after each."""

    yard: Yard
    on_end: Callable[["Day", Job], None] = lambda day, job: None
    """Called after each job's end: a tenant that always has work submits its next here."""
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-seconds by tenant."""
    started: dict[JobKey, float] = field(default_factory=dict)
    submitted: dict[JobKey, float] = field(default_factory=dict)
    _ends: list[tuple[float, JobKey, int]] = field(default_factory=list)
    _coming: list[tuple[float, int, str, dict[str, Any]]] = field(default_factory=list)
    _begin: float = 0.0

    def __post_init__(self) -> None:
        self._begin = self.yard.mono

    @property
    def at(self) -> float:
        """Seconds since the day began."""
        return self.yard.mono - self._begin

    def submit(self, tenant: str, *, lasts: float, after_s: float = 0.0, **spec: Any) -> None:
        spec["labels"] = {"lasts": str(lasts)}
        due = self.yard.mono + after_s
        heapq.heappush(self._coming, (due, len(self.submitted) + len(self._coming), tenant, spec))
        if after_s == 0:
            self._take_arrivals()

    def run(self, seconds: float) -> None:
        until = self._begin + seconds
        self._plan()
        while True:
            due = [heap[0][0] for heap in (self._ends, self._coming) if heap]
            if not due or min(due) > until:
                break
            self._spend_to(min(due))
            self._take_ends()
            self._take_arrivals()
            self._plan()
        self._spend_to(until)

    def _spend_to(self, mono: float) -> None:
        for tenant, use in self.yard.cluster.use.items():
            self.held[tenant] += use.milli / 1000 * (mono - self.yard.mono)
        self.yard.mono = mono

    def _take_arrivals(self) -> None:
        while self._coming and self._coming[0][0] <= self.yard.mono:
            _, _, tenant, spec = heapq.heappop(self._coming)
            id = f"j{len(self.submitted)}"
            kept = parse_spec({"image": "busybox"} | spec).normalised()
            event = Submitted(tenant, "mia", False, id, kept, id)
            apply(self.yard.cluster, event, self.yard.now, Effects())
            self.submitted[tenant, id] = self.yard.mono

    def _take_ends(self) -> None:
        while self._ends and self._ends[0][0] <= self.yard.mono:
            _, key, number = heapq.heappop(self._ends)
            job = self.yard.cluster.jobs.get(key)
            if job is None or job.last is None or job.last.number != number or job.last.ended_at:
                continue
            was_stopped = job.last.stop is not None
            lifecycle.end_attempt(
                self.yard.cluster,
                job,
                job.last,
                reason=EndReason.PREEMPTED if was_stopped else EndReason.EXITED,
                exit_code=None if was_stopped else 0,
                message=None,
                now=self.yard.now,
                effects=Effects(),
            )
            if not was_stopped:
                self.on_end(self, job)

    def _plan(self) -> None:
        plan = self.yard.planner.plan(100_000, self.yard.now)
        for event in plan.events:
            apply(self.yard.cluster, event, self.yard.now, Effects())
        for stopped in plan.preemptions:
            self._end_of((stopped.tenant, stopped.job), 30.0)
        for placed in plan.placements:
            key = (placed.tenant, placed.job)
            self.started[key] = self.yard.mono
            job = self.yard.cluster.jobs[key]
            assert job.last is not None
            job.last.started_at = self.yard.now.at
            self._end_of(key, float(job.spec["labels"]["lasts"]))

    def _end_of(self, key: JobKey, after_s: float) -> None:
        last = self.yard.cluster.jobs[key].last
        assert last is not None
        heapq.heappush(self._ends, (self.yard.mono + after_s, key, last.number))
