"""How containers end: told by the engine's events, made certain by looking.

Rules of this file:
1. One event stream of a yard serves all its nodes in this process. It is open before anything is
   started, so that a container that ends at once is not missed, and waiting costs no call.
2. An end is told once. What an event says of a clean end stands as it is; a code that can have
   several causes (137, 143, 255) is asked about first, and so is any code after a signal: an engine
   that stops sends SIGTERM, tells the deaths on streams that are open, and answers no more.
3. A stream that broke may have lost events: whoever is still waited for is looked up as soon as
   the engine answers again, and every half minute anyway.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.containers import Exit, Status
from gpuyard_agent.core.times import epoch_s, rfc3339
from gpuyard_agent.docker_runtime import labels
from gpuyard_agent.docker_runtime.client import EngineClient
from gpuyard_agent.docker_runtime.facts import AMBIGUOUS, KILLED, died, exit_of, status_of
from gpuyard_agent.docker_runtime.failures import EngineRefused, EngineUnavailable
from gpuyard_agent.docker_runtime.outage import EngineProcess, Outage, is_ghost
from gpuyard_agent.docker_runtime.streams import (
    EngineStream,
    StreamBroken,
    open_stream,
    read_json,
)

LOOK_EVERY_S: Final = 30.0
_EXPLAIN_S: Final = 5.0
_LATE_OOM_S: Final = 0.2
"""On cgroup v2 the engine may hear of a memory kill just after the death it caused."""
_STEADY_S: Final = 10.0
_GHOST_S: Final = 1.0
"""How long a container may be said to run after its process is gone."""
_REMEMBERED: Final = 2048
_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 2.0
_WATCHING_S: Final = 0.2
"""How often an engine that is stopping is looked at: when its process is gone tells ends apart."""


@dataclass(slots=True)
class _Story:
    """What is known of one container's end."""

    ended: asyncio.Future[Exit]
    waiting: int = 0
    asking: bool = False
    """Its death was seen and is being asked about."""
    memory_kill: bool = False
    kill_signal: str | None = None
    """The last signal that anybody sent through the engine."""

    @property
    def unexplained(self) -> bool:
        return not self.memory_kill and not self.kill_signal


class Exits:
    """The ends of one yard's containers, by container id."""

    def __init__(self, client: EngineClient, yard: str) -> None:
        self._client = client
        self._yard = yard
        self._stories: dict[str, _Story] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._since_ns = 0
        self._process: EngineProcess | None = None
        """The engine's, where it can be seen."""
        self._outage: Outage | None = None
        """The last one, or the restart that came before this agent looked."""
        self._missed_since: float | None = None
        """When the engine went whose victims have not all been looked at."""
        self._steady = asyncio.Event()
        """Cleared while the engine is away and until what fell with it has been told."""

    async def open(self) -> None:
        """Begins to listen; returns once no later end can be missed."""
        self._since_ns = time.time_ns() - 1_000_000_000
        info = await self._client.info()
        stream = await self._connect()
        self._process = EngineProcess.behind(self._client.address, stream.peer_pid)
        self._outage = Outage(
            live_restore=bool(info.get("LiveRestoreEnabled")),
            until=time.time(),
            back=self._process.began if self._process else None,
        )
        self._steady.set()
        self._spawn(self._listen(stream))
        self._spawn(self._look_now_and_then())

    async def close(self) -> None:
        """Stops listening; whoever waits is left waiting and has to be cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def watch(self, container_id: str) -> None:
        """Keeps whatever is told of this container from now on."""
        self._story(container_id)

    async def wait(self, container_id: str) -> Exit:
        """The end of a container that is watched, or that began after `open`."""
        story = self._story(container_id)
        story.waiting += 1
        try:
            return await asyncio.shield(story.ended)
        finally:
            story.waiting -= 1

    def settle(self, container_id: str, exit: Exit) -> None:
        """Tells an end that is known from elsewhere; the first one told stands."""
        ended = self._story(container_id).ended
        if not ended.done():
            ended.set_result(exit)

    async def found(self, container_id: str, inspect: dict[str, Any]) -> Exit | None:
        """The end of an inspected container, None while it runs: the same as `wait` would tell."""
        exit = exit_of(inspect, now=time.time()) or await self._ghost(container_id, inspect)
        if exit is None:
            return None
        story = self._story(container_id)
        if not self._steady.is_set():
            # Whether the engine's restart is to blame is being found out.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEADY_S):
                    await self._steady.wait()
        if not story.asking:
            self.settle(container_id, self._judged(exit, story, inspect))
        return await asyncio.shield(story.ended)

    def known(self, container_id: str) -> Exit | None:
        """The end where it has been told; asks nobody."""
        story = self._stories.get(container_id)
        return story.ended.result() if story is not None and story.ended.done() else None

    def forget(self, container_id: str) -> None:
        """Lets go of a container that was removed."""
        self._stories.pop(container_id, None)

    def _story(self, container_id: str) -> _Story:
        story = self._stories.get(container_id)
        if story is None:
            if len(self._stories) >= _REMEMBERED:
                self._forget_oldest()
            story = _Story(asyncio.get_running_loop().create_future())
            self._stories[container_id] = story
        return story

    def _forget_oldest(self) -> None:
        """Drops one end that nobody waits for: containers of other processes end here too."""
        for container_id, story in self._stories.items():
            if story.ended.done() and not story.waiting:
                del self._stories[container_id]
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> EngineStream:
        filters = {
            "type": ["container"],
            "event": ["die", "oom", "kill", "destroy"],
            "label": [f"{labels.YARD}={self._yard}"],
        }
        since = f"{self._since_ns // 10**9}.{self._since_ns % 10**9:09d}"
        query = urlencode({"since": since, "filters": json.dumps(filters)})
        version = await self._client.api_version()
        stream = await open_stream(self._client.address, "GET", f"/v{version}/events?{query}")
        return stream

    async def _listen(self, stream: EngineStream) -> None:
        while True:
            try:
                async for event in read_json(stream):
                    self._take(event)
            except (StreamBroken, ValueError):
                pass  # an engine that stops cuts its streams anywhere
            finally:
                stream.close()
            self._steady.clear()
            stream = await self._reconnect()
            self._spawn(self._look_after_outage())

    async def _reconnect(self) -> EngineStream:
        """The stream of the engine that comes back, and the outage kept for judging ends by.

        One that went again before all was looked at makes one outage of the two.
        """
        delay = _FIRST_RETRY_S
        is_first, gone = self._missed_since is None, None
        since = self._missed_since = self._missed_since or time.time()
        while True:
            if gone is None and self._process is not None and not self._process.is_alive:
                gone = time.time()
            await asyncio.sleep(delay)
            # Its successor may speak another version.
            self._client.reset()
            try:
                info = await self._client.info()
                stream = await self._connect()
            except RuntimeFailure:
                stops = gone is None and self._process is not None
                delay = min(delay * 2, _WATCHING_S if stops else _LAST_RETRY_S)
                continue
            self._process = EngineProcess.behind(self._client.address, stream.peer_pid)
            self._outage = Outage(
                live_restore=bool(info.get("LiveRestoreEnabled")),
                until=time.time(),
                since=since,
                gone=gone if is_first else None,
                back=self._process.began if self._process else None,
            )
            return stream

    def _take(self, event: dict[str, Any]) -> None:
        actor = event.get("Actor") or {}
        container_id, attributes = actor.get("ID"), actor.get("Attributes") or {}
        if not container_id or (
            event.get("Action") == "destroy" and container_id not in self._stories
        ):
            return  # the second: we removed it ourselves
        at_ns = int(event.get("timeNano") or time.time_ns())
        self._since_ns = max(self._since_ns, at_ns)
        story = self._story(container_id)
        match event.get("Action"):
            case "die":
                self._died(container_id, story, died(attributes, at_ns))
            case "oom":
                story.memory_kill = True
            case "kill":
                story.kill_signal = str(attributes.get("signal") or "")
            case "destroy":
                if not story.asking:
                    self.settle(container_id, _vanished())

    def _died(self, container_id: str, story: _Story, exit: Exit) -> None:
        if story.ended.done() or story.asking:
            return
        if exit.code in AMBIGUOUS or story.kill_signal:
            story.asking = True
            self._spawn(self._explain(container_id, story, exit))
        else:
            self.settle(container_id, self._judged(exit, story))

    async def _explain(self, container_id: str, story: _Story, exit: Exit) -> None:
        """Asks the engine why it died; an engine that is gone by then took it along."""
        found = None
        try:
            async with asyncio.timeout(_EXPLAIN_S):
                found = await self._client.inspect(container_id)
            if found["State"].get("OOMKilled"):
                story.memory_kill = True
            elif exit.code == KILLED and found["HostConfig"].get("Memory") and story.unexplained:
                await asyncio.sleep(_LATE_OOM_S)
        except EngineUnavailable:
            exit = replace(exit, engine_restarted=True)
        except (RuntimeFailure, TimeoutError):
            pass  # it was removed, or the engine hangs: the event's word must do
        story.asking = False
        self.settle(container_id, self._judged(exit, story, found))

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._steady.is_set():
                with contextlib.suppress(RuntimeFailure):
                    await self._look(every=False)

    async def _look_after_outage(self) -> None:
        with contextlib.suppress(RuntimeFailure):
            await self._look(every=True)
            self._missed_since = None
        self._steady.set()

    async def _look(self, *, every: bool) -> None:
        """Tells the ends that are waited for and happened unheard; `every` checks processes too."""
        waited = [
            container_id
            for container_id, story in self._stories.items()
            if story.waiting and not story.asking and not story.ended.done()
        ]
        if not waited:
            return
        listed = await self._client.containers(f"{labels.YARD}={self._yard}")
        running = {c["Id"] for c in listed if status_of(str(c["State"])) is Status.RUNNING}
        is_stuck = False
        for container_id in waited:
            if every or container_id not in running:
                try:
                    await self._look_at(container_id)
                except EngineUnavailable:
                    is_stuck = True
        if is_stuck:  # a container that is looked at next time, or the engine: then this raises
            await self._client.ping()

    async def _look_at(self, container_id: str) -> None:
        try:
            inspect = await self._client.inspect(container_id)
        except EngineRefused as refused:
            if refused.status == 404:
                self.settle(container_id, _vanished())
            return
        story = self._story(container_id)
        exit = exit_of(inspect, now=time.time()) or await self._ghost(container_id, inspect)
        if exit is not None and not story.asking:
            self.settle(container_id, self._judged(exit, story, inspect))

    async def _ghost(self, container_id: str, inspect: dict[str, Any]) -> Exit | None:
        """The end of a container that runs by the engine's word alone; looked at twice, since the
        word comes a moment after the process is gone."""
        if not is_ghost(inspect, self._process):
            return None
        await asyncio.sleep(_GHOST_S)
        again = await self._client.inspect(container_id)
        exit = exit_of(again, now=time.time())
        if exit is not None or again["State"].get("Pid") != inspect["State"]["Pid"]:
            return exit
        message = "the engine says that it runs after its restart, and its process is gone"
        return Exit(None, rfc3339(time.time()), engine_restarted=True, message=message)

    def _judged(self, exit: Exit, story: _Story, inspect: dict[str, Any] | None = None) -> Exit:
        """The end with whatever else is known of its cause: 137 alone says nothing of why."""
        began = None if inspect is None else epoch_s(inspect["State"].get("StartedAt"))
        if self._outage is not None and self._outage.ended(exit, began=began):
            exit = replace(exit, engine_restarted=True)
        if exit.code != KILLED or exit.engine_restarted:
            return exit
        if exit.out_of_memory or story.memory_kill:
            return replace(exit, out_of_memory=True)
        if story.kill_signal in ("9", "SIGKILL", "KILL"):
            message = "killed through the Docker Engine (docker kill, stop or rm)"
            return replace(exit, message=message)
        return exit


def _vanished() -> Exit:
    message = "its container was removed from outside the yard"
    return Exit(None, rfc3339(time.time()), message=message)
