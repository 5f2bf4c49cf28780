"""Performs an attempt's steps and brings back what came of them; decides nothing.

Each record is written before the world is touched, so that a restart at any point knows at least
as much as the world shows.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from gpuyard.errors import RemoteProtocolError, RuntimeFailure
from gpuyard.messages import AttemptUsage, LogChunk, LogsReply, PullProgress
from gpuyard.model.node import GpuSample
from gpuyard_agent.core import intake, steps
from gpuyard_agent.core.attempt import Attempt, Result, Started
from gpuyard_agent.core.launch import (
    AttemptKey,
    Launch,
    LaunchContext,
    MountPoint,
    launch_of,
)
from gpuyard_agent.core.memory import (
    Record,
    ended_record,
    intent_record,
    key_list,
    measured_record,
    started_record,
)
from gpuyard_agent.core.stepping import after_failure, next_step, wake_at
from gpuyard_agent.core.stopping import told_deadline
from gpuyard_agent.core.times import epoch_s, rfc3339
from gpuyard_agent.core.usage import UsageMeter, milli_of
from gpuyard_agent.gpus.injection import device_nodes
from gpuyard_agent.journal import JournalError
from gpuyard_agent.loop.gate import Gate
from gpuyard_agent.loop.shipping import Shipping
from gpuyard_agent.runtime import Exit, Reach, Seen, Status

if TYPE_CHECKING:
    from gpuyard_agent.loop.node import NodeAgent

_RETRY_S: Final = 1.0
_REMOVE_AGAIN_S: Final = 5.0
_REMOVE_LATE_S: Final = 300.0
"""Longest pause between two tries to remove a container that is stuck."""
_JOURNAL_USAGE_S: Final = 30.0
"""A restart of the agent loses what was measured since; the seconds held are never lost."""
_FRESH_S: Final = 5.0
"""An engine's start time this close to now is now: the two clocks need not agree."""


class Actions:
    """The hands of one node."""

    def __init__(
        self, node: "NodeAgent", *, publish_chunk: Callable[[str, LogChunk], Awaitable[None]]
    ) -> None:
        self._node = node
        self._steps: dict[AttemptKey, asyncio.Task[None]] = {}
        self._watchers: dict[AttemptKey, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._meters: dict[AttemptKey, UsageMeter] = {}
        self._timers: dict[AttemptKey, float] = {}
        self._measured_at = node.now()
        self.shipping = Shipping(node, publish_chunk)
        self._gate = Gate(node.changed)

    def advance(self, attempt: Attempt, here: steps.Here) -> None:
        """Takes the steps that are due, up to the first that needs time."""
        now = self._node.now()
        self._gate.look(attempt)
        while (step := next_step(attempt.entry, attempt, here, now)) is not None:
            if not self._take(attempt, step):
                break
        at = wake_at(attempt.entry, attempt, here, now)
        if at is not None:
            self._wake_at(attempt.key, at - now)

    def adopt(self, attempt: Attempt) -> None:
        """Goes on with a container that a listing showed, or that it lacked."""
        seen = attempt.container
        if seen is not None and not attempt.absences:
            attempt.confirmed_at = self._node.now()
            if seen.status is Status.EXITED and attempt.exit is None:
                attempt.exit = seen.exit or Exit(None, rfc3339(self._node.parts.clock.wall()))
            if seen.status is not Status.CREATED:
                self._has_started(attempt, seen)
        self._node.wake(attempt.key)
        self._node.changed()

    def usage(self, attempt: Attempt) -> AttemptUsage | None:
        """What an attempt has used so far; None before it started."""
        meter = self._meters.get(attempt.key)
        return None if meter is None else meter.total(self._node.now())

    def measure(self, samples: Mapping[str, GpuSample]) -> None:
        """Gives every running attempt's meter the reading of its GPUs."""
        now = self._node.now()
        is_due = now - self._measured_at >= _JOURNAL_USAGE_S
        records = []
        for key, meter in self._meters.items():
            attempt = self._node.memory.attempts.get(key)
            if attempt is None or attempt.result is not None or not attempt.gpus:
                continue
            meter.sample(samples, attempt.gpus)
            if is_due and meter.measured != attempt.measured:
                records.append(measured_record(key, meter.measured))
        if is_due:
            self._measured_at = now
            self._node.write(*records)

    def acknowledge_logs(self, key: str, stored: int, sent_at: float) -> None:
        self.shipping.acknowledge(key, stored, sent_at)

    async def read_logs(self, request: Mapping[str, Any]) -> LogsReply:
        """What the engine still has of an attempt's output.

        A request has `tenant`, `job` and `attempt`; `stdout` and `stderr`, the bytes of each that
        the asker has already; and `max_bytes`. Raises RemoteProtocolError.
        """
        try:
            key = AttemptKey(str(request["tenant"]), str(request["job"]), int(request["attempt"]))
        except (KeyError, TypeError, ValueError) as fault:
            raise RemoteProtocolError("a request for logs names tenant, job and attempt") from fault
        return await self.shipping.read(key, request)

    async def close(self) -> None:
        """Ends every task; what they asked of the engine may still happen."""
        tasks = [*self._steps.values(), *self._watchers.values(), *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shipping.close()

    def _take(self, attempt: Attempt, step: steps.Step) -> bool:
        """Performs one step; True where the next may follow at once."""
        key = attempt.key
        match step:
            case steps.Accept():
                return self._accept(attempt)
            case steps.Inquire():
                return self._node.fences.inquire(attempt)
            case steps.Arm() | steps.Prepare() | steps.Remove():
                self._begin(attempt, step)
            case steps.AbandonPrepare():
                self._steps[key].cancel()
            case steps.Launch():
                self._begin_launch(attempt)
            case steps.Signal():
                self._begin_signal(attempt, step)
            case steps.End(result):
                return self._end(attempt, result)
            case steps.Forget():
                self._forget(attempt)
        return False

    def _begin(self, attempt: Attempt, step: steps.Arm | steps.Prepare | steps.Remove) -> None:
        """Begins a step that needs time and writes nothing down before."""
        match step:
            case steps.Arm(fence):
                self._perform(attempt, "arm", self._node.fences.arm(attempt, fence))
            case steps.Prepare():
                self._perform(attempt, "prepare", self._prepare(attempt))
            case steps.Remove():
                self._perform(attempt, "remove", self._remove(attempt))

    def _accept(self, attempt: Attempt) -> bool:
        gpus = list(attempt.entry["gpus"]) if attempt.entry else []
        return self._write({"k": "accepted", "key": key_list(attempt.key), "gpus": gpus})

    def _write(self, *records: Record) -> bool:
        written = self._node.write(*records)
        if written:
            self._node.changed()
        return written

    def _perform(self, attempt: Attempt, kind: str, work: Coroutine[Any, Any, None]) -> None:
        attempt.busy = kind
        self._steps[attempt.key] = asyncio.create_task(self._guard(attempt, kind, work))
        self._node.changed()

    async def _guard(self, attempt: Attempt, kind: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs a step's work; whatever comes of it, the attempt is looked at again."""
        try:
            await work
        except RuntimeFailure as fault:
            self._failed(attempt, kind, fault)
        except Exception as fault:
            # The loop's top: an unforeseen fault of one step must not end the agent.
            self._node.log.exception("step failed", job=str(attempt.key), step=kind)
            self._failed(attempt, kind, RuntimeFailure(repr(fault), temporary=True))
        finally:
            attempt.busy = None
            self._steps.pop(attempt.key, None)
            self._node.wake(attempt.key)
            self._node.changed()

    def _failed(self, attempt: Attempt, kind: str, fault: RuntimeFailure) -> None:
        node = self._node
        node.log.info("step refused", job=str(attempt.key), step=kind, fault=str(fault))
        if kind == "remove":
            self._remove_later(attempt)
            return
        step: Literal["prepare", "launch"] = "prepare" if kind == "prepare" else "launch"
        end = after_failure(attempt, step, fault, node.here(), node.now())
        if attempt.image_missing and kind == "launch":
            self._write({"k": "unlaunched", "key": key_list(attempt.key)})
        if end is not None:
            self._end(attempt, end.result)

    def _remove_later(self, attempt: Attempt) -> None:
        """Ever more slowly, for as long as it takes; its end was told long ago."""
        now = self._node.now()
        if attempt.failing_since is None:
            attempt.failing_since = now
        pause_s = (now - attempt.failing_since) / 2
        attempt.retry_at = now + min(max(pause_s, _REMOVE_AGAIN_S), _REMOVE_LATE_S)

    async def _prepare(self, attempt: Attempt) -> None:
        def progress(pull: PullProgress) -> None:
            has_begun = attempt.pull is None
            attempt.pull = pull
            if has_begun:
                # Whoever waits for the job hears of it now, of the rest with each beat.
                self._node.changed()

        await self._node.engine.runtime.prepare(self._launch(attempt), progress)
        attempt.prepared, attempt.image_missing, attempt.failing_since = True, False, None

    def _begin_launch(self, attempt: Attempt) -> None:
        boot = self._node.parts.host.boot_id
        record = {"k": "launching", "key": key_list(attempt.key), "boot": boot}
        if attempt.launched == boot or self._write(record):
            self._perform(attempt, "launch", self._start(attempt))

    async def _start(self, attempt: Attempt) -> None:
        async def hold(reach: Reach) -> None:
            await self._gate.passed(attempt)
            await self._node.fences.hold(attempt, reach)

        seen = await self._node.engine.runtime.launch(self._launch(attempt), hold)
        attempt.failing_since = attempt.failure = None
        attempt.container, attempt.absences = seen, 0
        attempt.confirmed_at = self._node.now()
        if seen.status is Status.EXITED:
            attempt.exit = seen.exit or Exit(None, rfc3339(self._node.parts.clock.wall()))
        self._has_started(attempt, seen)

    def _launch(self, attempt: Attempt) -> Launch:
        node, entry = self._node, attempt.entry
        assert entry is not None and node.memory.yard is not None
        about = node.inventory.description
        held = {gpu["uuid"] for gpu in entry["gpus"]}
        facts = node.inventory.facts
        gpus = [gpu for gpu in facts["gpus"] if gpu["uuid"] in held] if facts else []
        devices = device_nodes(gpus) if about.gpu_injection == "device-nodes" and gpus else []
        wall = node.parts.clock.wall()
        token = node.memory.applied[0] if node.memory.applied else (0, 0)
        return launch_of(
            entry,
            LaunchContext(
                yard=node.memory.yard,
                node=node.name,
                epoch=f"{token[0]}.{token[1]}",
                gpu_injection=about.gpu_injection,
                devices=tuple(devices),
                driver_mounts=tuple(MountPoint(*mount) for mount in about.driver.mounts),
                driver_env=about.driver.env,
                deadline=told_deadline(entry, wall),
            ),
        )

    def _has_started(self, attempt: Attempt, seen: Seen) -> None:
        """Writes a start down and follows the container: its end, its output, its use of GPUs."""
        if attempt.started is None:
            started = Started(
                container_id=seen.container_id,
                image_digest=seen.image_digest,
                started_at=seen.started_at or rfc3339(self._node.parts.clock.wall()),
                at=max(0.0, self._on_boot_clock(seen.started_at)),
                boot_id=self._node.parts.host.boot_id,
            )
            self._write(started_record(attempt.key, started))
        if attempt.started is not None and attempt.key not in self._meters:
            self._meters[attempt.key] = self._meter(attempt, attempt.started)
        if attempt.exit is None and attempt.key not in self._watchers:
            self._watchers[attempt.key] = asyncio.create_task(self._watch(attempt))
        self.shipping.follow(attempt)
        self._node.fences.follow(attempt)

    def _meter(self, attempt: Attempt, started: Started) -> UsageMeter:
        is_of_this_boot = started.boot_id == self._node.parts.host.boot_id
        at = started.at if is_of_this_boot else self._on_boot_clock(started.started_at)
        return UsageMeter(milli_of(attempt.gpus), at, attempt.measured)

    def _on_boot_clock(self, wall: str | None) -> float:
        """A time that an engine gave, on the clock that this boot is counted by."""
        now, at = self._node.now(), epoch_s(wall)
        age = 0.0 if at is None else self._node.parts.clock.wall() - at
        return now - age if age > _FRESH_S else now

    async def _watch(self, attempt: Attempt) -> None:
        """Waits for the container's end, however often the engine fails to tell."""
        runtime = self._node.engine.runtime
        try:
            while True:
                try:
                    exit = await runtime.wait(attempt.key)
                    break
                except RuntimeFailure as fault:
                    self._node.log.info("wait failed", job=str(attempt.key), fault=str(fault))
                self._node.engine.look_soon()
                await asyncio.sleep(_RETRY_S)
        finally:
            self._watchers.pop(attempt.key, None)
        attempt.exit = exit
        if attempt.container is not None:
            attempt.container = replace(attempt.container, status=Status.EXITED, exit=exit)
        self._node.wake(attempt.key)

    def _begin_signal(self, attempt: Attempt, step: steps.Signal) -> None:
        if not self._write(intent_record(attempt.key, step.intent)):
            return
        self._node.fences.look(attempt)
        self._keep(self._signal(attempt, step.signal))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _signal(self, attempt: Attempt, name: str) -> None:
        """Sends a signal, again where the engine did not take it, until the container is over."""
        while attempt.exit is None and attempt.container is not None:
            try:
                await self._node.engine.runtime.signal(attempt.key, name)
                return
            except RuntimeFailure as fault:
                self._node.log.info("signal failed", job=str(attempt.key), fault=str(fault))
            await asyncio.sleep(_RETRY_S)

    def _end(self, attempt: Attempt, result: Result) -> bool:
        meter = self._meters.get(attempt.key)
        used = None if meter is None else meter.total(self._on_boot_clock(result.ended_at))
        if not self._node.write(ended_record(attempt.key, replace(result, usage=used))):
            return False
        # A beat would do it, but there is none while the bus is away.
        self._keep(self._sync())
        self._node.log.info(
            "attempt ended", job=str(attempt.key), reason=result.reason, exit_code=result.exit_code
        )
        attempt.pull = attempt.failing_since = None
        self.shipping.settle(attempt)
        if over := intake.adoption_records(self._node.memory):
            self._node.write(*over)
        self._node.changed()
        return True

    async def _sync(self) -> None:
        with contextlib.suppress(JournalError):  # the next record or beat says so
            await self._node.parts.journal.sync()

    async def _remove(self, attempt: Attempt) -> None:
        await self.shipping.drop(attempt.key)
        await self._node.engine.runtime.remove(attempt.key)
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        key = attempt.key
        if not self._node.write({"k": "forgotten", "key": key_list(key)}):
            return
        if (watcher := self._watchers.pop(key, None)) is not None:
            watcher.cancel()
        self.shipping.forget(key)
        self._node.fences.forget(key)
        self._meters.pop(key, None)
        self._timers.pop(key, None)
        self._node.changed()

    def _wake_at(self, key: AttemptKey, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        pending = self._timers.get(key)
        if pending is not None and pending <= at + 0.001:
            return
        self._timers[key] = at

        def fire() -> None:
            if self._timers.get(key) == at:
                del self._timers[key]
            self._node.wake(key)

        self._node.parts.timers.at(at, fire)
