"""A node's runtime: brought up however long that takes, asked again and again what exists."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from gpuyard.errors import RuntimeFailure
from gpuyard.model.node import NodeReason
from gpuyard_agent.core import intake
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.stepping import ABSENCES
from gpuyard_agent.runtime import Runtime, Seen

if TYPE_CHECKING:
    from gpuyard_agent.loop.node import NodeAgent

LIST_EVERY_S: Final = 30.0
"""Exits come as events; a listing repairs what events lost."""
PROBLEMS_EVERY_S: Final = 5.0
LOOK_AGAIN_S: Final = 1.0
_RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)


class Engine:
    """The runtime of one node, and what it showed last."""

    def __init__(self, node: "NodeAgent", make_runtime: Callable[[str], Runtime]) -> None:
        self._node = node
        self._make_runtime = make_runtime
        self._runtime: Runtime | None = None
        self._bringing_up: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.is_listed = False
        self.reasons: list[NodeReason] = []

    @property
    def runtime(self) -> Runtime:
        """The runtime; there is one whenever `is_listed`."""
        assert self._runtime is not None
        return self._runtime

    def start(self, yard: str) -> None:
        """Brings the runtime of `yard` up, in the background and for as long as it takes."""
        before = self._bringing_up
        if before is not None:
            before.cancel()
        self.is_listed = False
        self._bringing_up = asyncio.create_task(self._bring_up(yard, self._runtime))

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *([self._bringing_up] if self._bringing_up else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._runtime is not None:
            await self._runtime.close()

    def look_soon(self, delay_s: float = 0.0) -> None:
        """Asks what exists, unless that is under way."""
        self._later(delay_s, lambda: self._start("list", self._list))

    async def _bring_up(self, yard: str, before: Runtime | None) -> None:
        if before is not None:
            await before.close()
        runtime = self._make_runtime(yard)
        failures = 0
        while True:
            try:
                await runtime.open()
                found = await runtime.seen()
                await self._describe(runtime)
                break
            except RuntimeFailure as fault:
                await self._show_failure(runtime, fault)
                await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1
        self._runtime = runtime
        self._take(found, begun=self._node.now())
        for attempt in self._node.memory.attempts.values():
            if attempt.result is not None:
                self._node.actions.shipping.settle(attempt)
        self.is_listed = True
        await self._check()
        self._node.on_listed()
        if runtime.name != "simulated":
            # A simulated container cannot vanish, and its node has no problems of its own.
            self._later(LIST_EVERY_S, self._list_in_turn)
            self._later(PROBLEMS_EVERY_S, self._check_in_turn)

    async def _show_failure(self, runtime: Runtime, fault: RuntimeFailure) -> None:
        message = str(fault)
        if not self.reasons or self.reasons[0]["message"] != message:
            self._node.log.warning("runtime not usable", fault=message)
        try:
            reasons = list(await runtime.problems())
        except RuntimeFailure:
            reasons = []
        self._set_reasons(
            reasons
            or [{"code": "docker_unreachable", "message": message, "gpu": None, "since": None}]
        )

    def _set_reasons(self, reasons: list[NodeReason]) -> None:
        if reasons != self.reasons:
            self.reasons = reasons
            self._node.changed()

    async def _describe(self, runtime: Runtime) -> None:
        about = self._node.inventory.description
        told = await self._node.parts.describe(runtime)
        about.docker_version, about.gpu_injection = told.version, told.gpu_injection
        about.driver = told.driver
        if self._node.inventory.refresh():
            self._node.on_facts()

    async def _check(self) -> None:
        try:
            reasons = list(await self.runtime.problems())
            if self.reasons and not reasons:
                await self._describe(self.runtime)  # it may have come back as another version
            self._set_reasons(reasons)
        except RuntimeFailure as fault:
            await self._show_failure(self.runtime, fault)

    async def _list(self) -> None:
        begun = self._node.now()
        try:
            found = await self.runtime.seen()
        except RuntimeFailure as fault:
            await self._show_failure(self.runtime, fault)
            self.look_soon(LOOK_AGAIN_S * 2)
            return
        self._take(found, begun=begun)

    def _take(self, found: Sequence[Seen], *, begun: float) -> None:
        memory = self._node.memory
        keys = {seen.key for seen in found}
        absent = [
            attempt
            for attempt in memory.attempts.values()
            if attempt.key not in keys and _was_there(attempt, begun)
        ]
        for attempt in intake.take_listing(memory, found, absent=absent):
            self._node.actions.adopt(attempt)
        if any(attempt.absences < ABSENCES for attempt in absent):
            self.look_soon(LOOK_AGAIN_S)

    def _list_in_turn(self) -> None:
        self._start("list", self._list)
        self._later(LIST_EVERY_S, self._list_in_turn)

    def _check_in_turn(self) -> None:
        self._start("check", self._check)
        self._later(PROBLEMS_EVERY_S, self._check_in_turn)

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        running = self._tasks.get(name)
        if running is None or running.done():
            self._tasks[name] = asyncio.ensure_future(work())

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._node.parts.timers.at(loop.time() + delay_s, call)


def _was_there(attempt: Attempt, begun: float) -> bool:
    """True where a listing begun at `begun` should have shown the attempt's container."""
    if attempt.busy is not None or attempt.exit is not None or attempt.result is not None:
        return False
    if attempt.started is None and attempt.failing_since is not None:
        return False  # its start is still being tried
    exists = attempt.container is not None or attempt.launched is not None
    return exists and attempt.confirmed_at < begun
