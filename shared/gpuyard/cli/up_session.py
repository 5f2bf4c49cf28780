"""`gpuyard up` from its first check to the end of its last child."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from gpuyard.cli.ending import say
from gpuyard.cli.globals import Globals
from gpuyard.cli.render import json_object
from gpuyard.cli.streams import write
from gpuyard.cli.terminal import ProgressLine
from gpuyard.cli.yard_folder import YardFolder
from gpuyard.cli.yard_parts import (
    Plan,
    UpOptions,
    child_environment,
    commands,
    make_plan,
    write_server_config,
)
from gpuyard.cli.yard_supervisor import Supervisor, end_leftovers, wait_ready
from gpuyard.client.yard_file import write_yard
from gpuyard.model.quantities import counted


def run_yard(
    folder: YardFolder,
    options: UpOptions,
    settings: Globals,
    *,
    tell_ready: Callable[[], None] | None = None,
) -> int:
    """Runs a yard until it is told to end; `tell_ready` is called once it can be used."""
    folder.make()
    with folder.locked():
        plan = make_plan(options)
        end_leftovers(folder, keeps_jobs=not options.is_fresh)
        if options.is_fresh:
            folder.empty()
        session = UpSession(folder, plan, settings, tell_ready)
        try:
            return asyncio.run(session.run())
        finally:
            folder.env_file.unlink(missing_ok=True)


class UpSession:
    """One run of a yard."""

    def __init__(
        self,
        folder: YardFolder,
        plan: Plan,
        settings: Globals,
        tell_ready: Callable[[], None] | None,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._settings = settings
        self._tell_ready = tell_ready
        self._progress = ProgressLine(is_quiet=settings.quiet)
        self._asked = asyncio.Event()
        self._asked_again = asyncio.Event()

    async def run(self) -> int:
        """0 once it was asked to end; raises YardFailed where it cannot go on."""
        self._listen()
        port, token = self._folder.port_and_token()
        url = f"nats://{token}@127.0.0.1:{port}"
        config = write_server_config(self._folder, port=port, token=token)
        supervisor = Supervisor(
            self._folder,
            commands(self._plan, self._folder, config),
            environment=child_environment(url, os.environ),
            say=self._say,
        )
        try:
            await self._serve(supervisor, url, port)
        finally:
            self._progress.clear()
            self._folder.env_file.unlink(missing_ok=True)
            await self._end(supervisor)
        return 0

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_asked)
        if self._tell_ready is None:
            loop.add_signal_handler(signal.SIGHUP, self._stop_asked)
        else:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _stop_asked(self) -> None:
        if self._asked.is_set():
            self._asked_again.set()
        self._asked.set()

    async def _serve(self, supervisor: Supervisor, url: str, port: int) -> None:
        asked = asyncio.create_task(self._asked.wait())
        work = asyncio.create_task(self._start_and_watch(supervisor, url, port))
        try:
            await asyncio.wait({asked, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            asked.cancel()
            work.cancel()
            await asyncio.gather(asked, work, return_exceptions=True)

    async def _start_and_watch(self, supervisor: Supervisor, url: str, port: int) -> None:
        self._progress.show("starting: the bus")
        await supervisor.start(port)
        watching = asyncio.create_task(supervisor.watch())
        ready = asyncio.create_task(wait_ready(url, self._plan.nodes, self._progress.show))
        try:
            await asyncio.wait({watching, ready}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            self._announce(await ready, url, port)
            await watching
        finally:
            for task in (watching, ready):
                task.cancel()
            await asyncio.gather(watching, ready, return_exceptions=True)

    def _announce(self, nodes: list[dict[str, Any]], url: str, port: int) -> None:
        write_yard(self._folder.env_file, url=url, pid=os.getpid())
        self._progress.clear()
        shown = f"nats://127.0.0.1:{port}"
        if self._settings.json:
            gpus = sum(len(node["gpus"]) for node in nodes)
            body = {"v": 1, "url": shown, "nodes": len(nodes), "gpus": gpus}
            body |= {"runtime": self._plan.runtime, "simulated": self._plan.simulate is not None}
            write(json_object(body))
        else:
            write(f"{ready_line(self._plan, nodes)}, {shown}\n")
        if not self._settings.quiet:
            for hint in (*self._plan.hints, self._next_steps(nodes)):
                say(hint)
        if self._tell_ready is not None:
            self._tell_ready()

    def _next_steps(self, nodes: list[dict[str, Any]]) -> str:
        end = "'gpuyard down' ends the yard" if self._tell_ready else "Ctrl-C ends the yard"
        return f"in this folder: {first_run(self._plan, nodes)}; gpuyard nodes; {end}"

    async def _end(self, supervisor: Supervisor) -> None:
        """Ends the parts; asked a second time, at once."""
        if self._asked.is_set():
            self._say("stopping: jobs get SIGTERM and their grace; once more kills at once")
        stopping = asyncio.create_task(supervisor.stop())
        again = asyncio.create_task(self._asked_again.wait())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            await supervisor.kill()
            return
        stopping.result()

    def _say(self, text: str) -> None:
        self._progress.clear()
        say(text)


def ready_line(plan: Plan, nodes: list[dict[str, Any]]) -> str:
    """`ready: 1 node, 8 simulated GPUs, runtime docker`: what scripts wait for."""
    gpus = sum(len(node["gpus"]) for node in nodes)
    kind = "simulated GPUs" if plan.simulate is not None else "GPUs"
    return f"ready: {counted(len(nodes), 'nodes')}, {counted(gpus, kind)}, runtime {plan.runtime}"


def first_run(plan: Plan, nodes: list[dict[str, Any]]) -> str:
    """A command that this yard can run: with a GPU where it has one."""
    gpus = "--gpus 1 " if any(node["gpus"] for node in nodes) else ""
    image = "IMAGE" if plan.runtime == "docker" else "ANY-IMAGE"
    return f"gpuyard run {gpus}{image} COMMAND"
