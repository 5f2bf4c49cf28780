"""One leadership from its election to its end: what is started, in which order, and what is closed.

The picture that the standby has kept becomes the leader's once it has reached the leader's epoch,
since no commit of anybody else can follow on that. Events that an earlier leader committed and did
not publish go out first.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import structlog

from gpuyard import subjects
from gpuyard.bus import Bus, Delivery, PullLoop
from gpuyard.messages import Token
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard_coordinator import ended_jobs
from gpuyard_coordinator.beat_intake import BeatIntake
from gpuyard_coordinator.beat_queue import BeatQueue
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import dependencies, recovery
from gpuyard_coordinator.desk import Desk
from gpuyard_coordinator.housekeeping import purge_old_submissions
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.log_ledger import LogLedger
from gpuyard_coordinator.look_ups import look_up_awaited
from gpuyard_coordinator.loop import Leader
from gpuyard_coordinator.operator_services import OperatorServices
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.presence import Presence
from gpuyard_coordinator.racing import unless
from gpuyard_coordinator.record import Recorder, Segments
from gpuyard_coordinator.services import Services
from gpuyard_coordinator.standby import Standby, serve_leader
from gpuyard_coordinator.storage_watch import StorageWatch
from gpuyard_coordinator.store import Fenced, Store
from gpuyard_coordinator.submissions import read_submission
from gpuyard_coordinator.telling import Teller

log = structlog.get_logger()
INTAKE: Final = "coordinator"


class Leading:
    """Run it once. Ends by an exception, when the lease is lost, or after `stop`."""

    def __init__(
        self,
        bus: Bus,
        leadership: Leadership,
        clock: Clock,
        presence: Presence,
        *,
        beat_s: float,
        record: Segments | None = None,
    ) -> None:
        self._bus = bus
        self._leadership = leadership
        self._clock = clock
        self._presence = presence
        self._record = record
        self._inbox = Inbox()
        self._beats = BeatQueue(self._inbox, beat_s=beat_s)
        self._leader: Leader | None = None

    def stop(self) -> None:
        """Let the turn end, then give the lease back."""
        if self._leader is not None:
            self._leader.stop()

    @property
    def refused_writes(self) -> int:
        """What the bus did not take of this leadership any more, since somebody else leads."""
        return self._leadership.refused + (self._leader.store.refused if self._leader else 0)

    async def run(self, token: Token, standby: Standby) -> None:
        """Lead; raises Fenced when a commit shows that somebody else does."""
        began = self._clock.monotonic()
        async with AsyncExitStack() as ending:
            taking_over = self._take_over(token, standby, ending)
            leader = await unless(self._leadership.lost.wait(), taking_over)
            if leader is None:
                raise Fenced
            self._leader = leader
            self._tell(leader, token, seconds=self._clock.monotonic() - began)
            await self._begin(leader, token, ending)
            await leader.run()

    async def _begin(self, leader: Leader, token: Token, ending: AsyncExitStack) -> None:
        """Start what goes on beside the turns; `ending` closes what was begun, the last first."""
        if leader.recorder is not None:
            ending.callback(leader.recorder.close)
        storage = StorageWatch(
            self._bus.jetstream, self._leadership, leader.store, leader.outbox, self._clock
        )
        services = self._services(leader, storage)
        intake = PullLoop(
            self._bus.jetstream,
            stream=subjects.SUBMIT_STREAM,
            durable=INTAKE,
            deliver=lambda delivery: self._take_submission(delivery, token, services),
        )
        ending.push_async_callback(intake.stop)
        ending.push_async_callback(services.close)
        ending.callback(leader.beats.close)
        beats = await self._bus.agents.subscribe(subjects.BEAT_ALL, self._beats.put)
        ending.push_async_callback(beats.close)
        answering = await serve_leader(self._bus)
        ending.push_async_callback(answering.close)
        awaited = dependencies.unknown(leader.cluster)
        for work in (
            purge_old_submissions(self._bus.jetstream, intake, self._clock),
            storage.run(),
            ended_jobs.watch(self._bus, leader.clear_away),
            look_up_awaited(leader.store, self._inbox, awaited),
        ):
            ending.callback(asyncio.create_task(work).cancel)
        # First of all: the next leader waits for nothing else.
        ending.push_async_callback(self._leadership.resign)
        self._presence.lead(lambda: leader.commits)
        await services.start()
        await intake.start()

    def _services(self, leader: Leader, storage: StorageWatch) -> Services:
        """The API, which hears of every end from now on."""
        desk = Desk(self._inbox)
        operators = OperatorServices(self._bus, leader, desk, self._presence, storage)
        services = Services(self._bus, leader, leader.store, log, desk, operators)

        def ended(key: JobKey, attempts: int) -> None:
            services.job_ended(key)
            leader.teller.logs.forget(*key, attempts)

        leader.teller.ended = ended
        return services

    def _tell(self, leader: Leader, token: Token, *, seconds: float) -> None:
        log.info(
            "leading",
            token=list(token),
            jobs=len(leader.cluster.jobs),
            nodes=len(leader.cluster.nodes),
            seconds=round(seconds, 3),
        )

    async def _take_over(self, token: Token, standby: Standby, ending: AsyncExitStack) -> Leader:
        store = Store(self._bus.jetstream, token=token, clock=self._clock.monotonic)
        left = await store.take_over()
        await standby.follower.reach(token[1])
        await standby.close()
        cluster, planner = standby.follower.cluster, standby.follower.planner
        cluster.yard = self._leadership.yard
        recovery.assume(cluster, token, self._clock.now())
        outbox = Outbox(self._bus.jetstream, token=token)
        ending.push_async_callback(outbox.close)
        await outbox.drain(left.outs)

        record = self._record
        recorder = Recorder(cluster, planner, record) if record is not None else None

        async def has_ended(key: JobKey) -> bool:
            return await store.get_done(*key) is not None

        teller = Teller(
            bus=self._bus,
            leadership=self._leadership,
            cluster=cluster,
            clock=self._clock,
            log=log,
            logs=LogLedger(self._bus.jetstream),
        )
        return Leader(
            leadership=self._leadership,
            store=store,
            outbox=outbox,
            inbox=self._inbox,
            cluster=cluster,
            planner=planner,
            clock=self._clock,
            teller=teller,
            beats=BeatIntake(self._inbox, self._beats, has_ended=has_ended),
            next_out=left.next_out,
            recorder=recorder,
        )

    def _take_submission(self, delivery: Delivery, token: Token, services: Services) -> None:
        try:
            tenant, user = subjects.parse_submit(delivery.subject)
        except ValueError:
            tenant, user = "", None
        if not ids.is_name(tenant) or not (user is None or ids.is_user(user)):
            # No event can be published for a name that is none: the log is all there is.
            log.warning("submission refused: no such tenant form", subject=delivery.subject)
            delivery.ack()
            return
        event = read_submission(
            tenant=tenant,
            user=user,
            data=delivery.data,
            headers=delivery.headers,
            assigned_id=ids.assigned_id(token[0], delivery.sequence),
            sequence=delivery.sequence,
            ref=delivery,
        )
        self._inbox.put(services.arrival(event))
