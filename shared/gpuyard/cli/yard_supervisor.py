"""Runs the parts of a yard as children: starts them, keeps them up, ends them in order.

Rules: every child has a session of its own, so that a Ctrl-C reaches nobody but us; a child is
ended by its pid and no other way; the agent goes first, since only it can end jobs with their
grace, the bus last, since the others speak through it.
"""

import asyncio
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuyard.cli.ending import one_line
from gpuyard.cli.yard_folder import YardFolder
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import load_config
from gpuyard.errors import GpuyardError, Unavailable
from gpuyard.model.quantities import counted

MAX_RESTARTS: Final = 5
RESTARTS_WITHIN_S: Final = 60.0
SERVER_START_S: Final = 15.0
READY_S: Final = 60.0
READY_PER_NODE_S: Final = 0.05
END_S: Final = 15.0
"""How long the coordinator and the bus may take to end; the agent takes what the jobs take."""
_STOP_ORDER: Final = ("agent", "coordinator", "nats-server")
Say = Callable[[str], None]


class YardFailed(GpuyardError):
    """A part of the yard does not come up or does not stay up."""


@dataclass(slots=True)
class Part:
    """One child and the story of its restarts."""

    name: str
    command: list[str]
    process: asyncio.subprocess.Process | None = None
    deaths: deque[float] = field(default_factory=deque)


class Supervisor:
    """The parts of one yard. `start`, then `watch` until it is cancelled, then `stop`."""

    def __init__(
        self,
        folder: YardFolder,
        commands: Mapping[str, list[str]],
        *,
        environment: Mapping[str, str],
        say: Say,
    ) -> None:
        self._folder = folder
        self._parts = {name: Part(name, command) for name, command in commands.items()}
        self._environment = dict(environment)
        self._say = say
        self._watching: list[asyncio.Task[None]] = []

    async def start(self, port: int) -> None:
        """Starts the bus, waits until it answers, then starts the rest."""
        await self._launch(self._parts["nats-server"])
        await self._serves(port)
        for name in ("coordinator", "agent"):
            await self._launch(self._parts[name])
        self._watching = [asyncio.create_task(self._keep(part)) for part in self._parts.values()]

    async def watch(self) -> None:
        """Returns never; raises YardFailed once a part cannot be kept up."""
        done, _ = await asyncio.wait(self._watching, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Ends all parts; jobs are ended by the agent first, with their grace."""
        await self._forget_watching()
        for name in _STOP_ORDER:
            process = self._parts[name].process
            if process is None or process.returncode is not None:
                continue
            process.terminate()
            limit = None if name == "agent" else END_S
            try:
                async with asyncio.timeout(limit):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._folder.remember({})

    async def kill(self) -> None:
        """Ends all parts at once; containers go on."""
        await self._forget_watching()
        for part in self._parts.values():
            if part.process is not None and part.process.returncode is None:
                part.process.kill()
                await part.process.wait()
        self._folder.remember({})

    def last_words(self, name: str) -> str:
        """The last line of a part's log, for a message about its end."""
        try:
            data = self._folder.log_file(name).read_bytes()[-4096:]
        except OSError:
            return ""
        lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
        return one_line(lines[-1])[:300] if lines else ""

    async def _forget_watching(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _launch(self, part: Part) -> None:
        with self._folder.log_file(part.name).open("ab") as log:
            part.process = await asyncio.create_subprocess_exec(
                *part.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        running = {
            name: other.process.pid
            for name, other in self._parts.items()
            if other.process is not None and other.process.returncode is None
        }
        self._folder.remember(running)

    async def _keep(self, part: Part) -> None:
        """Starts a child again whenever it ends; raises YardFailed when that is no use."""
        while True:
            assert part.process is not None
            code = await part.process.wait()
            now = time.monotonic()
            part.deaths.append(now)
            while part.deaths[0] < now - RESTARTS_WITHIN_S:
                part.deaths.popleft()
            how = f"with code {code}" if code >= 0 else f"by signal {-code}"
            log = self._folder.log_file(part.name)
            if len(part.deaths) > MAX_RESTARTS:
                words = self.last_words(part.name)
                raise YardFailed(
                    f"{part.name} does not stay up: {words or how}; see {log} "
                    "('gpuyard up --fresh' starts with an empty folder)"
                )
            self._say(f"{part.name} ended {how}; starting it again (see {log})")
            await asyncio.sleep(0.2 * 2 ** (len(part.deaths) - 1))
            await self._launch(part)

    async def _serves(self, port: int) -> None:
        part = self._parts["nats-server"]
        deadline = time.monotonic() + SERVER_START_S
        while time.monotonic() < deadline:
            if part.process is not None and part.process.returncode is not None:
                break
            if await asyncio.to_thread(_greets, port):
                return
            await asyncio.sleep(0.03)
        log = self._folder.log_file("nats-server")
        words = self.last_words("nats-server")
        raise YardFailed(f"nats-server does not come up: {words or 'it is silent'}; see {log}")


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


async def wait_ready(url: str, nodes: int, progress: Say) -> list[dict[str, Any]]:
    """The nodes once the yard answers and so many of them are ready; raises YardFailed."""
    client = AsyncClient(config=load_config(url=url, environ={}, folder=Path("/")))
    deadline = time.monotonic() + READY_S + nodes * READY_PER_NODE_S
    seen: list[dict[str, Any]] = []
    try:
        await client.connect(timeout_s=10)
        while time.monotonic() < deadline:
            try:
                answer = await client.api.call("status", answer_s=1.0, try_s=0.5)
            except Unavailable:
                progress("starting: waiting for the coordinator")
            else:
                ready = answer["nodes"].get("ready", 0)
                if ready >= nodes:
                    found = await client.nodes()
                    return [node for node in found if node["state"] == "ready"]
                seen = await client.nodes() if nodes <= 20 else []
                progress(f"starting: {ready} of {counted(nodes, 'nodes')} ready{_why(seen)}")
            await asyncio.sleep(0.05)
    finally:
        await client.close()
    raise YardFailed(f"the yard did not get ready in time{_why(seen)}")


def _why(nodes: list[dict[str, Any]]) -> str:
    """What keeps nodes from being ready, as they say themselves."""
    told = [
        f"{node['name']}: {reason['message']}"
        for node in nodes
        if node["state"] != "ready"
        for reason in node["reasons"]
    ]
    return f" ({'; '.join(dict.fromkeys(told))})" if told else ""


def end_leftovers(folder: YardFolder, *, keeps_jobs: bool) -> None:
    """Ends what a yard that was killed left behind.

    The agent is killed where jobs shall go on and be taken over, else it ends them first.
    """
    left = folder.leftovers()
    for name in _STOP_ORDER:
        pid = left.get(name)
        if pid is None:
            continue
        is_killed = name == "agent" and keeps_jobs
        _end(pid, signal.SIGKILL if is_killed else signal.SIGTERM, patient=name == "agent")
    folder.remember({})


def _end(pid: int, number: signal.Signals, *, patient: bool) -> None:
    deadline = time.monotonic() + (600.0 if patient else END_S)
    try:
        os.kill(pid, number)
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
