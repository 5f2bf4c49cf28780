"""What a coordinator does that does not lead: it follows, and answers reads while nobody leads.

A read reaches the leader and one of the standbys. The standby asks whether the leader is there and
is silent if so: then every read after a write is answered by who made the write. Where no leader
answers, because it died or hangs or a new one is just taking over, the standby first makes sure
that it has seen every commit that was stored before the read. So a reader never sees less than what
anybody was told before, whoever answers. Writes have no other server than the leader.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from gpuyard import subjects
from gpuyard.bus import Bus, Message, Service, Subscription
from gpuyard.errors import RemoteProtocolError, Unavailable
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.beat_door import BeatDoor
from gpuyard_coordinator.beat_queue import BeatQueue
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.desk import Desk
from gpuyard_coordinator.follower import Follower
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import TICK_S, Query
from gpuyard_coordinator.operator_services import OperatorServices
from gpuyard_coordinator.presence import Presence
from gpuyard_coordinator.services import Services
from gpuyard_coordinator.store import Store

log = structlog.get_logger()

LEADER_ANSWERS_S: Final = 0.3
"""Above any turn of a leader that works."""
ANSWER_KEPT_S: Final = 0.2
"""One question serves all reads of this time."""
NEXT_TRY_S: Final = 0.5
BEATS_AT_ONCE: Final = 200
CATCH_UP_S: Final = 1.5
"""Below the time in which a client asks again."""


@dataclass(slots=True)
class LeaderWatch:
    """Whether somebody leads and answers, asked only when that is needed."""

    bus: Bus
    _asking: "asyncio.Task[bool] | None" = None
    _asked_at: float = 0.0

    async def answers(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now - self._asked_at > ANSWER_KEPT_S):
            self._asking, self._asked_at = asyncio.ensure_future(self._ask()), now
        return await asyncio.shield(self._asking)

    async def _ask(self) -> bool:
        try:
            await self.bus.app.request(subjects.LEADER, {"v": 1}, timeout_s=LEADER_ANSWERS_S)
        except Unavailable:
            return False
        return True


class Standby:
    """Follows from `start` to `close`; `follower` is its picture, which outlives it."""

    def __init__(
        self,
        bus: Bus,
        rules: Settings,
        clock: Clock,
        presence: Presence,
        on_opening: Callable[[], None],
    ) -> None:
        self.follower = Follower(
            bus.jetstream,
            settings=rules,
            clock=clock,
            on_opening=on_opening,
            on_ended=self._job_ended,
        )
        self._bus = bus
        self._presence = presence
        self._inbox = Inbox()
        self._waiting = BeatQueue(self._inbox, beat_s=rules.beat_s)
        self._door = BeatDoor()
        self._watch = LeaderWatch(bus)
        self._services: Services | None = None
        self._beats: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns once it listens, which an outage of the bus puts off."""
        while self._beats is None:
            try:
                self._beats = await self._bus.agents.subscribe(subjects.BEAT_ALL, self._waiting.put)
            except Unavailable:
                await asyncio.sleep(NEXT_TRY_S)
        works = (self.follower.run(), self._serve(), self._answer(), self._tick())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def failed(self) -> None:
        """Raises what ends one of its works, none of which ends by itself; call it once started."""
        ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def close(self) -> None:
        """Follow and answer no more; safe to call twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._beats is not None:
            await self._beats.close()
            self._beats = None

    async def _serve(self) -> None:
        """Offer reads while the picture is whole; a new picture gets services of its own."""
        desk = Desk(self._inbox)
        operators = OperatorServices(self._bus, self.follower, desk, self._presence)
        while True:
            await self.follower.ready.wait()
            self._presence.become("standby")
            store = Store(self._bus.jetstream)
            services = Services(self._bus, self.follower, store, log, desk, operators)
            self._services = services
            try:
                await services.start_reads(self._may_answer)
                await self.follower.unready.wait()
            except Unavailable as fault:
                log.info("reads not offered yet", fault=str(fault))
                await asyncio.sleep(NEXT_TRY_S)
            finally:
                await services.close()
            self._presence.become("starting")

    async def _may_answer(self) -> bool:
        """False for a read that the leader answers, or that would be answered from the past."""
        if await self._watch.answers():
            return False
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self.follower.catch_up()
        except (TimeoutError, Unavailable):
            return False
        return True

    async def _answer(self) -> None:
        while True:
            await self._inbox.wait()
            for item in self._inbox.drain():
                if isinstance(item, Query):
                    item.run(self.follower.cluster)
            self._hear()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.follower.tick()

    def _hear(self) -> None:
        """As many beats as do not keep a read waiting for long."""
        for _ in range(min(BEATS_AT_ONCE, len(self._waiting))):
            try:
                self.follower.hear(self._door.read(self._waiting.take()))
            except RemoteProtocolError:
                continue  # the leader says in its log what is wrong with it
        if len(self._waiting):
            self._inbox.wake_soon()

    def _job_ended(self, key: JobKey) -> None:
        if self._services is not None:
            self._services.job_ended(key)


async def serve_leader(bus: Bus) -> Service:
    """Lets standbys know that this coordinator leads and answers."""

    async def answer(message: Message) -> None:
        await bus.app.respond(message, {"v": 1}, caller_prefix=subjects.COORDINATOR_INBOX)

    return await bus.app.serve(subjects.LEADER, answer)
