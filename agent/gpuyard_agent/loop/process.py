"""One agent process: all its nodes, their beats, and how it comes and goes."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import structlog

from gpuyard import notify, subjects
from gpuyard.bus import Bus, connect, patience_s
from gpuyard.errors import BusTooOld, Unavailable
from gpuyard.model.grace import stop_grace_s
from gpuyard_agent.core.memory import Memory
from gpuyard_agent.link import Link
from gpuyard_agent.loop.address import source_address
from gpuyard_agent.loop.host import Clock
from gpuyard_agent.loop.keeping import HostKeeper
from gpuyard_agent.loop.node import NodeAgent, NodeParts
from gpuyard_agent.settings import AgentSettings

log = structlog.get_logger()
_CONNECT_AGAIN_S: Final = 1.0
_SAY_AGAIN_S: Final = 30.0
_SAMPLE_TICK_S: Final = 0.1
_FAREWELL_S: Final = 3.0
"""How long the last results wait for the coordinator to take them in."""
_STOP_MARGIN_S: Final = 15.0
"""After the longest grace: for SIGKILL, exits, logs."""


class AgentProcess:
    """The nodes of one process. `stop` may be set at any time, from a signal's handler too."""

    def __init__(
        self,
        settings: AgentSettings,
        nodes: list[tuple[NodeParts, Memory]],
        *,
        clock: Clock,
        keeper: HostKeeper | None,
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self.stop = asyncio.Event()
        self._bus: Bus | None = None
        self._is_sampled = False
        self._life: notify.Life | None = None
        # The link knows the nodes as its peers, and the nodes ask it for beats.
        self.nodes = [
            NodeAgent(
                parts,
                memory,
                beat_soon=lambda name: self.link.beat_soon(name),
                publish_chunk=lambda subject, chunk: self.link.publish_chunk(subject, chunk),
            )
            for parts, memory in nodes
        ]
        self.link = Link(self.nodes, beat_s=settings.beat_s, boot_clock=clock.boot)

    async def run(self) -> None:
        """Runs until `stop` is set, then leaves the containers running, or ends them first where
        the settings say so. Raises BusTooOld."""
        tasks: list[asyncio.Task[None]] = []
        stopping = asyncio.create_task(self.stop.wait())
        if self._keeper is not None:
            self._keeper.on_change = self._on_keeper
            self._keeper.open()
        for node in self.nodes:
            node.start()
        self.link.start()
        try:
            with notify.life(self._status) as life:
                self._life = life
                tasks += [asyncio.create_task(work) for work in (self._connect(), self._sample())]
                await _first_of(stopping, tasks)
                life.stopping(within_s=self._leaving_s())
                await self._leave()
        finally:
            for task in (*tasks, stopping):
                await _ended(task)
            await self._close()

    def _status(self) -> str:
        """The line that a service manager shows."""
        if not self._is_sampled:
            return "looking for GPUs"
        gpus = sum(len(node.inventory.gpus) for node in self.nodes)
        running = sum(node.running for node in self.nodes)
        where = (
            f"on the bus at {self._bus.url}"
            if self._bus is not None and self.link.is_connected
            else "the bus is away"
        )
        nodes = f"{len(self.nodes)} nodes, " if len(self.nodes) > 1 else ""
        return f"{nodes}{gpus} GPUs, {running} jobs running, {where}"

    def _tell_manager(self) -> None:
        """The start is over once the GPUs were looked at, whether or not the bus is there."""
        if self._life is not None:
            if self._is_sampled:
                self._life.ready()
            self._life.look()

    def _on_keeper(self) -> None:
        for node in self.nodes:
            node.fences.keeper_changed()

    async def _connect(self) -> None:
        """Gets the bus, however long it is away; from then on the connection heals itself."""
        names = [node.name for node in self.nodes]
        said_at = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._bus = await connect(
                    self._settings.url,
                    name=f"gpuyard-agent {names[0]}",
                    inbox_prefix=subjects.agent_inbox(names[0]),
                    credentials=self._settings.credentials,
                    ca=self._settings.ca,
                    timeout_s=patience_s(self._settings.url),
                )
                await self._locate(self._bus.url)
                await self.link.attach(self._bus)
                break
            except BusTooOld:
                raise
            except Unavailable as fault:
                if loop.time() - said_at > _SAY_AGAIN_S:
                    said_at = loop.time()
                    log.warning("bus not reachable, trying on", fault=str(fault))
            if self._bus is not None:
                await self._bus.close()
                self._bus = None
            await asyncio.sleep(_CONNECT_AGAIN_S)
        log.info("connected", bus=self._bus.url, nodes=len(names))
        self._tell_manager()
        await asyncio.Event().wait()

    async def _locate(self, url: str) -> None:
        """Before the first beat, which tells it."""
        if self._settings.address is None:
            address = await asyncio.to_thread(source_address, url)
            for node in self.nodes:
                node.locate(address)

    async def _sample(self) -> None:
        """Reads each node's GPUs once per beat interval, a share of them at each tick."""
        pending = list(self.nodes)
        per_tick = max(1, round(len(self.nodes) * _SAMPLE_TICK_S / self._settings.beat_s))
        tick_s = max(_SAMPLE_TICK_S, self._settings.beat_s * per_tick / len(self.nodes))
        for node in pending:
            await node.sample()
        self._tell_found()
        self._is_sampled = True
        self._tell_manager()
        while True:
            for start in range(0, len(self.nodes), per_tick):
                await asyncio.sleep(tick_s)
                for node in self.nodes[start : start + per_tick]:
                    await node.sample()

    def _tell_found(self) -> None:
        """What there is to work with, once: a host whose driver is missing looks like one that has
        no GPU."""
        count = sum(len(node.inventory.gpus) for node in self.nodes)
        facts = self.nodes[0].inventory.facts
        log.info(
            "GPUs found" if count else "no GPUs found",
            gpus=count,
            driver=facts["driver_version"] if facts else None,
            why=None if count else self.nodes[0].inventory.fault,
        )

    async def _leave(self) -> None:
        """The last beats; with `stop_jobs_on_exit` after the end of everything that runs."""
        if not self._settings.stop_jobs_on_exit:
            for node in self.nodes:
                await self.link.beat_now(node.name)
            return
        longest_s = self._jobs_end_s()
        for node in self.nodes:
            node.stop_jobs()
        await self._until(lambda node: node.is_quiet, longest_s)
        # The coordinator takes an entry away once its end is committed; then nothing is left.
        if self.link.is_connected:
            await self._until(lambda node: node.is_settled, _FAREWELL_S)

    def _jobs_end_s(self) -> float:
        """Within which all that runs has ended once it was told to."""
        graces = [
            stop_grace_s(None if attempt.entry is None else attempt.entry["spec"])
            for node in self.nodes
            for attempt in node.memory.attempts.values()
        ]
        return max(graces, default=0.0) + _STOP_MARGIN_S

    def _leaving_s(self) -> float | None:
        """What a service manager is asked for; None where its own limit will do."""
        if not self._settings.stop_jobs_on_exit:
            return None
        return self._jobs_end_s() + _FAREWELL_S + _STOP_MARGIN_S

    async def _until(self, is_so: Callable[[NodeAgent], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not all(is_so(node) for node in self.nodes):
                    await asyncio.sleep(0.05)

    async def _close(self) -> None:
        await self.link.close()
        await asyncio.gather(*(node.close() for node in self.nodes))
        if self._keeper is not None:
            await self._keeper.close()
        if self._bus is not None:
            await self._bus.close()


async def _first_of(stopping: "asyncio.Task[bool]", tasks: list["asyncio.Task[None]"]) -> None:
    """Returns when `stopping` is done; raises what ended one of the tasks, which never end."""
    done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {stopping}:
        await task


async def _ended(task: "asyncio.Task[Any]") -> None:
    """Cancels a task until it has ended: a first connect may swallow the wish once."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)
    if not task.cancelled():
        task.exception()
