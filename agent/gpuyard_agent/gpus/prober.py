"""Samples a node's GPUs without ever waiting longer than a deadline.

`Prober` owns a child process that talks to NVML, real or simulated; `InlineProber` reads a
simulation in this process, for fleets of hundreds of simulated nodes.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from gpuyard.model.node import GpuFacts, ProbeResult
from gpuyard_agent.gpus.child_process import ChildFailed, ChildProcess
from gpuyard_agent.gpus.failures import explain
from gpuyard_agent.gpus.history import GpuHistory
from gpuyard_agent.gpus.probe import ProbeContext, probe
from gpuyard_agent.gpus.processes import OwnProcesses
from gpuyard_agent.gpus.simulated_node import NodeDefinition
from gpuyard_agent.gpus.simulation import SimulatedNvml, SimulatedStall

DEADLINE_S: Final = 1.0
FIRST_DEADLINE_S: Final = 5.0
_BACKOFF_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_RENEW_AFTER_S: Final = 30.0
"""A child whose NVML, or one GPU of it, cannot be used is replaced that often: it may hold on to
the library of a driver that was upgraded since, or to a GPU that was reset."""
_MOST_DYING: Final = 3
"""Children that a hanging driver keeps from ending, before no more are started."""
_LINK_TRIES: Final = 2


class GpuProber(Protocol):
    """Where the agent gets its GPUs from; the same for real and for simulated ones."""

    async def sample(self, own: OwnProcesses) -> ProbeResult:
        """A new reading, or the last good one with `error` and `error_code`; never raises for a
        driver's fault. The result is shared: read it, do not change it."""
        ...

    @property
    def age_s(self) -> float | None:
        """Seconds since the last good reading began; None before there is one."""
        ...

    @property
    def generation(self) -> int:
        """Grows whenever the facts part of the readings changed."""
        ...

    async def close(self) -> None:
        """Ends what belongs to the prober; it cannot be used afterwards."""
        ...


def utc_now() -> str:
    """The time as RFC 3339 with milliseconds and Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Prober:
    """Reads NVML in a child process, which is killed when it misses the deadline.

    `simulated` replaces the real NVML. `clock` measures ages and pauses in seconds; the simulated
    node's time is counted on it from the construction. `known` are GPUs that this node had before,
    shown as lost until they are seen.
    """

    def __init__(
        self,
        *,
        simulated: NodeDefinition | None = None,
        clock: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], str] = utc_now,
        deadline_s: float = DEADLINE_S,
        first_deadline_s: float = FIRST_DEADLINE_S,
        proc_root: str = "/proc",
        known: Iterable[GpuFacts] = (),
        generation: int = 0,
    ) -> None:
        self._simulated = simulated
        self._clock = clock
        self._deadline_s = deadline_s
        self._first_deadline_s = first_deadline_s
        self._proc_root = proc_root
        self._history = GpuHistory(utc_now=utc_now, known=known, generation=generation)
        self._started = clock()
        self._lock = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._dying: list[ChildProcess] = []
        self._good_at: float | None = None
        self._impaired_since: float | None = None
        self._failures = 0
        self._last_failure = ""
        self._retry_at = clock()
        self._link_failures = 0
        self._is_closed = False

    @property
    def age_s(self) -> float | None:
        return None if self._good_at is None else self._clock() - self._good_at

    @property
    def generation(self) -> int:
        return self._history.generation

    @property
    def child_pid(self) -> int | None:
        """The child's pid while there is one."""
        return self._child.pid if self._child else None

    async def sample(self, own: OwnProcesses) -> ProbeResult:
        async with self._lock:
            if self._is_closed:
                raise RuntimeError("the prober is closed")
            began = self._clock()
            asks_links = self._asks_links()
            try:
                reading = await self._ask(own, asks_links=asks_links)
            except ChildFailed as failure:
                if self._child is not None:
                    self._link_failures += asks_links
                    self._give_up_child(str(failure))
                return self._history.failed(str(failure), failure.code)
            self._failures = 0
            if reading.get("error"):
                self._renew_child(began, is_impaired=True)
                code = reading.get("error_code") or "nvml_unavailable"
                return self._history.failed(reading.get("error") or code, code)
            self._good_at = began
            result = self._history.accept(reading, links_asked=asks_links)
            states = {sample["health"]["state"] for sample in result["samples"]}
            self._renew_child(began, is_impaired="lost" in states)
            return result

    async def close(self) -> None:
        async with self._lock:
            self._is_closed = True
            if self._child is not None:
                self._drop_child()
            for child in self._dying:
                await child.ended()
            self._dying = []

    def _asks_links(self) -> bool:
        if not self._history.wants_links or self._link_failures >= _LINK_TRIES:
            return False
        # A request for links that killed its child is tried again only once one without worked.
        return self._link_failures == 0 or self._failures == 0

    async def _ask(self, own: OwnProcesses, *, asks_links: bool) -> ProbeResult:
        child, is_new = self._child, False
        if child is None:
            child, is_new = self._start(), True
        request = {
            "at_s": self._clock() - self._started,
            "links": asks_links,
            "own": {
                "containers": sorted(own.containers),
                "pids": sorted(own.pids),
                "names": dict(own.names),
            },
        }
        # Loading the driver and asking for links take their time, but only once.
        deadline_s = self._first_deadline_s if is_new or asks_links else self._deadline_s
        try:
            return await child.ask(request, deadline_s=deadline_s)
        except asyncio.CancelledError:
            # Its answer would be taken for that of the next request.
            self._drop_child()
            raise

    def _start(self) -> ChildProcess:
        self._dying = [child for child in self._dying if not child.has_ended()]
        if len(self._dying) >= _MOST_DYING:
            raise ChildFailed("NVML hangs and its processes cannot be ended")
        if self._clock() < self._retry_at:
            wait_s = self._retry_at - self._clock()
            raise ChildFailed(f"{self._last_failure}; next try in {wait_s:.0f} s")
        self._child = ChildProcess.start(simulated=self._simulated, proc_root=self._proc_root)
        return self._child

    def _give_up_child(self, why: str) -> None:
        self._drop_child()
        self._last_failure = why
        pause_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        self._retry_at = self._clock() + pause_s

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._dying.append(self._child)
            self._child = None

    def _renew_child(self, now: float, *, is_impaired: bool) -> None:
        if not is_impaired:
            self._impaired_since = None
        elif self._impaired_since is None:
            self._impaired_since = now
        elif now - self._impaired_since >= _RENEW_AFTER_S:
            self._drop_child()
            self._impaired_since = now


class InlineProber:
    """Reads a simulated node in this process, and only when something about it changed.

    A fault that would hang or crash the child gives the last good reading and a growing age, as it
    would there. Nothing is built before the first sample.
    """

    def __init__(
        self,
        simulated: NodeDefinition,
        *,
        clock: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], str] = utc_now,
    ) -> None:
        self._simulated = simulated
        self._clock = clock
        self._utc_now = utc_now
        self._started = clock()
        self._good_at: float | None = None
        self._nvml: SimulatedNvml | None = None
        self._history: GpuHistory | None = None
        self._moment: Any = None
        self._own: OwnProcesses | None = None
        self._result: ProbeResult | None = None

    @property
    def age_s(self) -> float | None:
        return None if self._good_at is None else self._clock() - self._good_at

    @property
    def generation(self) -> int:
        return self._history.generation if self._history else 0

    @property
    def calls(self) -> int:
        """NVML calls made so far."""
        return self._nvml.calls if self._nvml else 0

    async def sample(self, own: OwnProcesses) -> ProbeResult:
        if self._nvml is None or self._history is None:
            self._nvml = SimulatedNvml(self._simulated, clock=lambda: self._clock() - self._started)
            self._history = GpuHistory(utc_now=self._utc_now)
        moment = self._nvml.refresh()
        if self._result is None or moment != self._moment or self._sees_others(own):
            self._result = self._read(self._nvml, self._history, own)
            self._moment, self._own = moment, own
        if not self._result.get("error"):
            self._good_at = self._clock()
        return self._result

    async def close(self) -> None:
        """Holds nothing that would have to be ended."""

    def _sees_others(self, own: OwnProcesses) -> bool:
        # Whose a process is matters only where the definition plants any.
        return bool(self._simulated["processes"]) and own != self._own

    def _read(self, nvml: SimulatedNvml, history: GpuHistory, own: OwnProcesses) -> ProbeResult:
        asks_links = history.wants_links
        context = ProbeContext(nvml, own=own, wants_links=asks_links)
        try:
            return history.accept(probe(nvml, context), links_asked=asks_links)
        except SimulatedStall:
            return history.failed("NVML does not answer", "gpu_sample_stale")
        except nvml.NVMLError as failure:
            return history.failed(*explain(failure, proc_root=None))
