"""A runtime that starts nothing: an attempt lasts its label `sim.duration` and ends as told.

For trying things out and for fleets of thousands: all deadlines of a process wait in one heap
(`Timers`) with one timer of the event loop, and no call here ever waits for anything else.

What would run or have ended follows from when it was started and from its labels, so a restarted
agent finds its attempts again in its journal, as it finds containers in an engine.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import PullProgress
from gpuyard.model.node import NodeReason, RuntimeName
from gpuyard.model.quantities import parse_duration_s
from gpuyard_agent.core.attempt import Attempt, Started
from gpuyard_agent.core.launch import AttemptKey, Launch
from gpuyard_agent.core.memory import Memory
from gpuyard_agent.core.times import rfc3339
from gpuyard_agent.runtime import (
    Exit,
    Hold,
    LogPiece,
    LogPosition,
    Reach,
    Seen,
    Status,
    unheld,
)

DEFAULT_DURATION_S: Final = 1.0
TERMINATED: Final = 143
KILLED: Final = 137


class Timers:
    """Calls due later, any number of them for one timer of the event loop."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Calls `call` at `when` on the event loop's clock; there is no way to take it back."""
        heapq.heappush(self._due, (when, next(self._numbers), call))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            if self._timer.when() <= self._due[0][0]:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._due[0][0], self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if self._due:
            self._arm()


@dataclass(slots=True)
class _Job:
    seen: Seen
    ended: "asyncio.Future[Exit]"


_NOWHERE: Final[Reach] = ("container", "")
"""There are no processes to be found."""


class SimulatedRuntime:
    """The runtime of one simulated node; what `memory` says was started in this boot goes on."""

    name: RuntimeName = "simulated"

    def __init__(
        self,
        timers: Timers,
        *,
        memory: Memory | None = None,
        boot_id: str = "",
        boot_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timers = timers
        self._memory = memory or Memory()
        self._boot_id = boot_id
        self._boot_clock = boot_clock
        self._jobs: dict[AttemptKey, _Job] = {}

    async def open(self) -> None:
        for attempt in self._memory.attempts.values():
            started = attempt.started
            is_left = started is not None and started.boot_id == self._boot_id
            if started is not None and is_left and attempt.result is None:
                self._resume(attempt, started)

    async def seen(self) -> Sequence[Seen]:
        return [job.seen for job in self._jobs.values()]

    async def prepare(self, launch: Launch, progress: Callable[[PullProgress], None]) -> None:
        return None

    async def launch(self, launch: Launch, hold: Hold = unheld) -> Seen:
        if launch.key in self._jobs:
            return self._jobs[launch.key].seen
        duration_s, code = _script(launch.sim)
        await hold(_NOWHERE)
        sha = launch.labels["gpuyard.spec_sha256"]
        self._begin(launch.key, sha, duration_s, code, started_at=rfc3339(time.time()))
        return self._jobs[launch.key].seen

    def reach(self, seen: Seen) -> Reach | None:
        return None

    async def wait(self, key: AttemptKey) -> Exit:
        job = self._jobs.get(key)
        if job is None:
            raise RuntimeFailure(f"{key} is not here", temporary=False, reason="runtime_lost")
        return await asyncio.shield(job.ended)

    async def signal(self, key: AttemptKey, signal: str) -> None:
        self._end(key, KILLED if signal == "SIGKILL" else TERMINATED)

    async def remove(self, key: AttemptKey) -> None:
        self._jobs.pop(key, None)

    async def logs(self, key: AttemptKey, position: LogPosition) -> AsyncIterator[LogPiece]:
        """Nothing, until the attempt has ended."""
        if key in self._jobs:
            await self.wait(key)
        return
        yield

    async def problems(self) -> Sequence[NodeReason]:
        return ()

    async def close(self) -> None:
        return None

    def _begin(
        self, key: AttemptKey, sha: str, left_s: float, code: int, *, started_at: str
    ) -> None:
        loop = asyncio.get_running_loop()
        seen = Seen(
            key=key,
            status=Status.RUNNING,
            container_id=f"sim-{key.job}-{key.attempt}",
            image_digest=None,
            started_at=started_at,
            spec_sha256=sha,
            exit=None,
        )
        self._jobs[key] = _Job(seen, loop.create_future())
        if left_s > 0:
            self._timers.at(loop.time() + left_s, lambda: self._end(key, code))
        else:
            self._end(key, code, ended_at=rfc3339(time.time() + left_s))

    def _resume(self, attempt: Attempt, started: Started) -> None:
        """Goes on with an attempt of an earlier process, or ends it as of when it was over."""
        spec = {} if attempt.entry is None else attempt.entry["spec"]
        duration_s, code = _script(dict(spec.get("labels") or {}))
        end_at = started.at + duration_s
        intent = attempt.intent
        if intent is not None and intent.at < end_at:
            end_at = intent.at
            code = KILLED if intent.killed_at is not None else TERMINATED
        sha = "" if attempt.entry is None else attempt.entry["spec_sha256"]
        left_s = end_at - self._boot_clock()
        self._begin(attempt.key, sha, left_s, code, started_at=started.started_at)

    def _end(self, key: AttemptKey, code: int, *, ended_at: str | None = None) -> None:
        job = self._jobs.get(key)
        if job is None or job.ended.done():
            return
        end = Exit(code, ended_at or rfc3339(time.time()))
        job.seen = replace(job.seen, status=Status.EXITED, exit=end)
        job.ended.set_result(end)


def _script(sim: dict[str, str]) -> tuple[float, int]:
    """(seconds, exit code) of a job's labels; raises RuntimeFailure for what they cannot mean."""
    try:
        duration_s = parse_duration_s(sim.get("sim.duration", f"{DEFAULT_DURATION_S}s"))
        code = int(sim.get("sim.exit_code", "0"))
    except ValueError as fault:
        raise RuntimeFailure(f"label sim.*: {fault}", temporary=False, reason="invalid") from fault
    if not 0 <= code <= 255:
        raise RuntimeFailure(
            f"label sim.exit_code: {code} is not from 0 to 255", temporary=False, reason="invalid"
        )
    return duration_s, code
