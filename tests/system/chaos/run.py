"""One run: a yard, its load and its faults side by side, then peace, then the checker."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuyard import AsyncClient
from gpuyard.errors import GpuyardError
from tests.support.nats_server import NatsServer
from tests.system.chaos import faults, load, witness
from tests.system.chaos.history import History, Injected
from tests.system.chaos.schedule import Fault, schedule
from tests.system.chaos.yard import ChaosYard, cannot

_READY_S: Final = 60.0
_LOAD_SHARE: Final = 0.75
"""Of the length, over which jobs are submitted."""
_PROGRESS_S: Final = 10.0
_RESTART_S: Final = 2.0
"""`RestartSec` of the shipped units."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What makes a run; the same plan is the same run again, as far as the machine's own timing
    lets it."""

    seed: int
    length_s: float
    jobs: int
    nodes: int
    longest_s: float = 30.0
    """How long jobs last at most; above 8."""
    settle_s: float = 120.0
    """How long the last jobs are waited for without one more being over, once all faults are
    mended."""


@dataclass(slots=True)
class Run:
    plan: Plan
    directory: Path
    servers: Sequence[NatsServer]
    source: Path | None = None
    say: Callable[[str], None] = print
    history: History = field(default_factory=History)
    under_way: Counter[str] = field(default_factory=Counter)
    turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """One fault at a time per target."""

    async def __call__(self) -> History:
        """The history of the whole run; the daemons' logs stay in the directory."""
        traces = self.directory / "traces"
        traces.mkdir()
        self.history.limits = load.TENANTS
        yard = ChaosYard(self.directory, self.servers, self.plan.nodes, source=self.source)
        try:
            yard.start()
            await self._disturb(yard, traces)
        finally:
            await asyncio.to_thread(yard.close)
        return self.history

    async def _disturb(self, yard: ChaosYard, traces: Path) -> None:
        await self._ready(yard)
        plan = self.plan
        planned = list(load.jobs(plan.seed, plan.jobs, traces, longest_s=plan.longest_s))
        async with await witness.connected(yard.url) as bus:
            tap = witness.BeatTap(bus, "fleet-")
            await tap.open()
            over_s = self.plan.length_s * _LOAD_SHARE
            aside = [
                asyncio.create_task(self._progress()),
                asyncio.create_task(self._start_again(yard)),
            ]
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._faults(yard))
                    group.create_task(
                        load.submit_all(yard.url, planned, over_s, self.history.accepted.append)
                    )
                await self._settle(yard)
            finally:
                for task in aside:
                    task.cancel()
            for sighting in await tap.close():
                self.history.add(sighting)
        async with await witness.connected(yard.url) as bus:
            await witness.gather(bus, traces / "traces", self.history)

    async def _ready(self, yard: ChaosYard) -> None:
        async with asyncio.timeout(_READY_S), AsyncClient(url=yard.url, user="chaos") as client:
            while True:
                try:
                    states = [node["state"] for node in await client.nodes()]
                    if states.count("ready") == yard.node_count:
                        return await load.limit_tenants(client)
                except GpuyardError:
                    pass
                await asyncio.sleep(0.2)

    async def _faults(self, yard: ChaosYard) -> None:
        missing = cannot()
        for kind, reason in missing.items():
            self.say(f"without {kind}: {reason}")
        began = load.boot_s()
        planned = schedule(
            self.plan.seed,
            self.plan.length_s,
            servers=len(self.servers),
            without=frozenset(missing),
        )
        async with asyncio.TaskGroup() as group:
            for fault in planned:
                await asyncio.sleep(began + fault.at_s - load.boot_s())
                group.create_task(self._one(fault, yard))

    async def _one(self, fault: Fault, yard: ChaosYard) -> None:
        target = faults.name_of(fault, yard)
        # Mending takes a slow machine longer than the schedule leaves for it.
        async with self.turns[target]:
            self.history.add(Injected(load.boot_s(), fault.kind, target, fault.for_s))
            self.under_way[f"{fault.kind} {target}"] += 1
            await asyncio.to_thread(faults.begin, fault, yard)
            await asyncio.sleep(fault.for_s)
            await asyncio.to_thread(faults.mend, fault, yard)
            del self.under_way[f"{fault.kind} {target}"]

    async def _start_again(self, yard: ChaosYard) -> None:
        """What a systemd unit does: what gave up since its bus did not answer is started again."""
        while True:
            await asyncio.sleep(_RESTART_S)
            for member in yard.members:
                turn = self.turns[member.directory.name]
                if not turn.locked() and member.daemon.exit_code == faults.NO_BUS:
                    member.daemon.start()

    async def _progress(self) -> None:
        began = load.boot_s()
        while True:
            await asyncio.sleep(_PROGRESS_S)
            self.say(
                f"{load.boot_s() - began:5.0f} s: {len(self.history.accepted)} of "
                f"{self.plan.jobs} jobs accepted, {len(self.history.injected)} faults, "
                f"now {', '.join(sorted(self.under_way)) or 'none'}"
            )

    async def _settle(self, yard: ChaosYard) -> None:
        """Waits until every job is over, or none ends any more; the checker tells which."""
        least, moved_at = self.plan.jobs + 1, load.boot_s()
        while least and load.boot_s() < moved_at + self.plan.settle_s:
            await asyncio.sleep(2.0)
            try:
                async with await witness.connected(yard.url) as bus:
                    left = await witness.unfinished(bus)
            except GpuyardError as error:
                self.say(f"cannot look: {error}")
                continue
            self.say(f"all faults mended, {left} jobs unfinished")
            if left < least:
                least, moved_at = left, load.boot_s()
