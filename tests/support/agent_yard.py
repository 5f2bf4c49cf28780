"""A yard for one agent: a bus in memory that passes bytes, and the smallest coordinator."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message
from gpuyard.errors import Unavailable
from gpuyard.messages import AttemptReport, Beat, LogChunk, StopOrder, Token, WantedEntry
from gpuyard.model.node import ProbeResult
from gpuyard_agent.core.document import entry_key
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import Memory, Record
from gpuyard_agent.core.policy import PERMISSIVE
from gpuyard_agent.gpus.processes import OwnProcesses
from gpuyard_agent.keeper.ledger import Fence as Held
from gpuyard_agent.link import Link
from gpuyard_agent.loop.host import Clock, Host
from gpuyard_agent.loop.inventory import Description, EngineFacts, Inventory
from gpuyard_agent.loop.keeping import KeeperAnswer
from gpuyard_agent.loop.node import NodeAgent, NodeParts
from gpuyard_agent.runtime import Runtime
from gpuyard_agent.simulated_runtime import Timers
from tests.support.agent_builders import BOOT, GPU, MACHINE, NODE, TOKEN, WALL, YARD, FakeRuntime

Answer = Callable[[Message], None]


class FakeBus:
    """The part of a bus that an agent uses; everything on it has been through the codec."""

    def __init__(self) -> None:
        self.agents = self
        self.is_connected = True
        self.url = "nats://fake"
        self._subscribers: list[tuple[str, Answer]] = []
        self._hooks: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self.served: dict[str, list[Any]] = {}

    def cut(self) -> None:
        self.is_connected = False

    def mend(self) -> None:
        self.is_connected = True
        for hook in self._hooks:
            hook()

    def on_reconnect(self, hook: Callable[[], None]) -> None:
        self._hooks.append(hook)

    async def publish(
        self, subject: str, body: Mapping[str, Any], *, reply: str = "", headers: Any = None
    ) -> None:
        if not self.is_connected:
            raise Unavailable("the bus is away")
        data = codec.encode(body)
        for pattern, callback in list(self._subscribers):
            if _matches(pattern, subject):
                message = Message(subject=subject, data=data, reply=reply, headers=headers)
                asyncio.get_running_loop().call_soon(callback, message)

    async def subscribe(self, subject: str, callback: Answer) -> None:
        self._subscribers.append((subject, callback))

    async def serve(
        self, subject: str, handler: Callable[[Message], Awaitable[None]], *, concurrency: int = 1
    ) -> None:
        await self.subscribe(subject, lambda message: self.soon(handler(message)))

    def soon(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def respond(
        self, message: Message, body: Mapping[str, Any], *, caller_prefix: str
    ) -> bool:
        if not message.reply.startswith(f"{caller_prefix}."):
            return False
        await self.publish(message.reply, body)
        return True


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        w in ("*", g) for w, g in zip(wanted, given, strict=True)
    )


class FakeCoordinator:
    """Answers beats, pushes documents, commits ends; as strict as the protocol, no smarter."""

    def __init__(self, bus: FakeBus) -> None:
        self.bus = bus
        self.yard = YARD
        self.token: Token = TOKEN
        self.revision = 1
        self.entries: dict[AttemptKey, WantedEntry] = {}
        self.beats: list[Beat] = []
        self.logs: list[LogChunk] = []
        self.commits = True
        """Ended attempts leave the document; a test may hold that up."""
        self.pushes = True
        self.answers = True
        self.status = "ok"
        self.stored: dict[str, int] = {}
        self.states: dict[AttemptKey, list[str]] = {}
        self.ends: dict[AttemptKey, AttemptReport] = {}

    async def start(self) -> None:
        await self.bus.subscribe(subjects.BEAT_ALL, self._on_beat)
        await self.bus.subscribe(subjects.LOGS_ALL, lambda m: self.logs.append(cast(Any, m.body())))

    def document(self) -> dict[str, Any]:
        return {
            "v": 1,
            "yard": self.yard,
            "node": NODE,
            "token": list(self.token),
            "revision": self.revision,
            "entries": list(self.entries.values()),
        }

    async def assign(self, *wanted: WantedEntry) -> None:
        for want in wanted:
            self.entries[entry_key(want)] = want
        await self._changed()

    async def stop(self, which: AttemptKey, order: StopOrder) -> None:
        self.entries[which] = self.entries[which] | {"stop": order}
        await self._changed()

    async def drop(self, which: AttemptKey) -> None:
        del self.entries[which]
        await self._changed()

    async def _changed(self) -> None:
        self.revision += 1
        if self.pushes and self.bus.is_connected:
            await self.bus.publish(subjects.wanted(NODE), self.document())

    def _on_beat(self, message: Message) -> None:
        beat = cast(Beat, message.body())
        self.beats.append(beat)
        for report in beat["attempts"]:
            self._note(report)
        if not self.answers:
            return
        applied = beat["applied"]
        current = {"token": list(self.token), "revision": self.revision}
        reply = {
            "v": 1,
            "yard": self.yard,
            "token": list(self.token),
            "lease_s": 30.0,
            "status": self.status,
            "message": None,
            "log_chunks": dict(self.stored),
            "wanted": None if applied == current else self.document(),
        }
        self.bus.soon(self.bus.publish(message.reply, reply))

    def _note(self, report: AttemptReport) -> None:
        which = AttemptKey(report["tenant"], report["job"], report["attempt"])
        states = self.states.setdefault(which, [])
        if not states or states[-1] != report["state"]:
            states.append(report["state"])
        if report["state"] == "ended":
            self.ends.setdefault(which, report)
            if self.commits and self.entries.pop(which, None) is not None:
                self.revision += 1


class ListJournal:
    """A journal in a list that outlives agents; only what was synced would outlive the host."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.synced = 0
        self.wants_compaction = False

    @property
    def is_synced(self) -> bool:
        return self.synced == len(self.records)

    def append(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records.append(codec.decode(codec.encode(record)))

    async def sync(self) -> None:
        await asyncio.sleep(0)
        self.synced = len(self.records)

    def compact(self, snapshot: Iterable[Record]) -> None:
        self.records = list(snapshot)

    def close(self) -> None:
        return None


class FakeKeeper:
    """A keeper in memory that outlives agents; what it ends is the test's to say, in `fences`."""

    def __init__(self) -> None:
        self.answers = True
        self.fences: dict[str, Held] = {}
        self.finds = True
        self.told: list[dict[str, float]] = []
        """The deadlines of each time that something was armed."""

    async def ask(
        self,
        *,
        arm: dict[str, Held] | None = None,
        release: Iterable[str] = (),
        find: Iterable[str] = (),
    ) -> KeeperAnswer | None:
        await asyncio.sleep(0)
        if not self.answers:
            return None
        for name, fence in (arm or {}).items():
            self.fences.setdefault(name, fence).arm(fence)
        if arm:
            self.told.append({name: fence.deadline for name, fence in arm.items()})
        for name in release:
            self.fences.pop(name, None)
        held = {name: fence.deadline for name, fence in self.fences.items()}
        return KeeperAnswer(held, frozenset(find) if self.finds else frozenset())

    def records(self) -> dict[str, Held]:
        return dict(self.fences)


class FakeProber:
    """GPUs that are what the test says."""

    generation = 0

    def __init__(self, *uuids: str) -> None:
        self.uuids = list(uuids)
        self.error: tuple[str, str] | None = None
        self.age_s: float | None = 0.1

    async def sample(self, own: OwnProcesses) -> ProbeResult:
        result: ProbeResult = {
            "driver_version": "550.54.15",
            "cuda_version": "12.4",
            "links": [],
            "missing": [],
            "gpus": [_gpu_facts(uuid, index) for index, uuid in enumerate(self.uuids)],
            "samples": [_gpu_sample(uuid) for uuid in self.uuids],
        }
        if self.error is not None:
            result["error_code"], result["error"] = self.error
        return result

    async def close(self) -> None:
        return None


def _gpu_facts(uuid: str, index: int) -> Any:
    return {
        "uuid": uuid,
        "index": index,
        "minor": index,
        "name": "NVIDIA A100",
        "compute_capability": "8.0",
        "memory_total_mib": 40960,
        "memory_reserved_mib": 0,
        "pci_bus_id": None,
        "mig": None,
        "labels": {},
        "missing": [],
    }


def _gpu_sample(uuid: str) -> Any:
    return {
        "uuid": uuid,
        "memory_used_mib": 1000,
        "memory_free_mib": 39960,
        "memory_foreign_mib": 0,
        "utilization_percent": 50,
        "temperature_c": 40,
        "power_w": 100.0,
        "foreign": [],
        "missing": [],
        "health": {"state": "healthy", "reason": None, "since": None},
    }


@dataclass
class Yard:
    """One agent, its engine and its coordinator; the agent may be killed and started again."""

    bus: FakeBus
    coordinator: FakeCoordinator
    runtime: FakeRuntime
    journal: ListJournal = field(default_factory=ListJournal)
    prober: FakeProber = field(default_factory=lambda: FakeProber(GPU))
    boot_id: str = BOOT
    agent: NodeAgent = field(init=False)
    link: Link = field(init=False)
    log_limit_bytes: int = 1024 * 1024
    keeper: FakeKeeper = field(default_factory=FakeKeeper)

    @classmethod
    async def make(cls) -> "Yard":
        bus = FakeBus()
        coordinator = FakeCoordinator(bus)
        await coordinator.start()
        yard = cls(bus, coordinator, FakeRuntime(clock=asyncio.get_running_loop().time))
        return yard

    async def start(self) -> None:
        """Starts an agent on what the journal holds."""
        memory = Memory()
        for record in self.journal.records:
            memory.apply(record)
        loop = asyncio.get_running_loop()
        clock = Clock(boot=loop.time, wall=lambda: WALL + loop.time())
        about = Description("docker", "0.1.0", cpus=8.0, memory_mib=65536)
        about.docker_version, about.gpu_injection = "28.0.0", "toolkit"
        parts = NodeParts(
            name=NODE,
            host=Host(MACHINE, self.boot_id, 8.0, 65536),
            clock=clock,
            journal=self.journal,
            inventory=Inventory(
                self.prober,
                about,
                expects_gpus=lambda: True,
                digest=memory.facts_digest,
                generation=memory.generation,
            ),
            make_runtime=lambda yard: self.runtime,
            describe=_describe,
            policy=PERMISSIVE,
            timers=Timers(),
            log_limit_bytes=self.log_limit_bytes,
            keeper=self.keeper,
            beat_s=2.0,
        )
        self.agent = NodeAgent(
            parts,
            memory,
            beat_soon=lambda name: self.link.beat_soon(name),
            publish_chunk=lambda subject, chunk: self.link.publish_chunk(subject, chunk),
        )
        self.link = Link([self.agent], beat_s=2.0, boot_clock=loop.time)
        self.agent.start()
        self.link.start()
        await self.link.attach(cast(Bus, self.bus))
        await self.agent.sample()

    async def kill(self) -> None:
        """Ends the agent as kill -9 would: no word, no cleaning up."""
        self.bus._subscribers = [
            item
            for item in self.bus._subscribers
            if item[0] in (subjects.BEAT_ALL, subjects.LOGS_ALL)
        ]
        self.agent.write = lambda *records: False  # type: ignore[method-assign]
        await self.link.close()
        await self.agent.actions.close()
        await self.agent.fences.close()
        await self.agent.engine.close()

    async def restart(self, *, keeps_journal: bool = True, boot_id: str = BOOT) -> None:
        await self.kill()
        if not keeps_journal:
            self.journal = ListJournal()
        self.boot_id = boot_id
        await self.start()

    @property
    def last_beat(self) -> Beat:
        return self.coordinator.beats[-1]

    async def until(self, is_so: Callable[[], object], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_so():
                await asyncio.sleep(0.01)

    def told(self, which: AttemptKey) -> list[str]:
        """The states that were reported of an attempt, in order."""
        return self.coordinator.states.get(which, [])


async def _describe(runtime: Runtime) -> EngineFacts:
    return EngineFacts("28.0.0", "toolkit")


def in_yard(test: Callable[[Yard], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """A test with a yard whose agent has applied its first document.

    No fixture, since those run before a test's fake time begins.
    """

    async def run() -> None:
        yard = await Yard.make()
        await yard.start()
        await yard.until(lambda: yard.agent.memory.applied)
        try:
            await test(yard)
        finally:
            await yard.kill()

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run
