"""The daemon's life: connect, stand for election, lead until deposed or asked to stop."""

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from pydantic import TypeAdapter, ValidationError

from gpuyard import subjects
from gpuyard.bus import (
    Bus,
    Delivery,
    JetStream,
    Message,
    PullLoop,
    Sizes,
    StreamRefusal,
    ensure_streams,
)
from gpuyard.errors import NotAllowed, ProtocolError, Unavailable
from gpuyard.messages import Beat, Token
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.core.packing import BestFit
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.recovery import recover
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.desk import Desk
from gpuyard_coordinator.housekeeping import purge_old_submissions
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.log_ledger import LogLedger
from gpuyard_coordinator.loop import Arrival, Leader
from gpuyard_coordinator.operator_services import OperatorServices
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.services import Services
from gpuyard_coordinator.settings import CoordinatorSettings
from gpuyard_coordinator.store import Fenced, Store
from gpuyard_coordinator.submissions import read_submission

log = structlog.get_logger()
INTAKE: Final = "coordinator"
INSUFFICIENT_STORAGE: Final = 10047
_LOOPBACK: Final = ("127.", "localhost", "[::1]")
_BEAT: Final = TypeAdapter(Beat)


def check_reach(settings: CoordinatorSettings) -> None:
    """Refuses a bus that others can reach without credentials; raises NotAllowed."""
    hosts = [part.rsplit("@", 1)[-1].split("://")[-1] for part in settings.url.split(",")]
    has_secret = bool(settings.credentials) or "@" in settings.url
    is_local = all(host.startswith(_LOOPBACK) for host in hosts)
    if not (is_local or has_secret or settings.insecure):
        raise NotAllowed(
            "the bus is not on loopback and no credentials are set: "
            "set credentials, or say --insecure"
        )


async def make_streams(jetstream: JetStream, max_gib: float | None) -> None:
    """The streams at their default sizes, or at the largest fraction that the server can store.

    With `max_gib` exactly that. Raises Unavailable where even a sixteenth does not fit.
    """
    whole = Sizes().total_bytes
    tries = [whole // part for part in (1, 2, 4, 8, 16)] if max_gib is None else [max_gib * 1024**3]
    for size in tries:
        try:
            await ensure_streams(jetstream, sizes=Sizes.within(int(size)))
        except StreamRefusal as refusal:
            if refusal.code != INSUFFICIENT_STORAGE:
                raise
            log.warning("streams do not fit", asked_mib=int(size) // 1024**2)
        else:
            return
    raise Unavailable(
        f"the bus cannot store the {int(tries[-1]) // 1024**2} MiB that the yard needs at least: "
        "raise max_file_store in the server's jetstream block, or free its disk"
    )


@dataclass(slots=True)
class Daemon:
    bus: Bus
    leadership: Leadership
    settings: CoordinatorSettings
    clock: Clock
    inbox: Inbox = field(default_factory=Inbox)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Returns once asked to stop, with the lease given back."""
        await make_streams(self.bus.jetstream, self.settings.store_max_gib)
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            while not self.stopping.is_set():
                acquiring = asyncio.create_task(self.leadership.acquire())
                await asyncio.wait({acquiring, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not acquiring.done():
                    acquiring.cancel()
                    await asyncio.gather(acquiring, return_exceptions=True)
                    return
                await self._lead(acquiring.result(), stopped)
        finally:
            stopped.cancel()
            await self.leadership.resign()

    async def _lead(self, token: Token, stopped: "asyncio.Task[Any]") -> None:
        leading = asyncio.create_task(self._lead_once(token))
        await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            return
        try:
            leading.result()
        except Fenced as error:
            log.warning("deposed", reason=str(error))

    async def _lead_once(self, token: Token) -> None:
        began = self.clock.monotonic()
        leader = await self._take_over(token)
        for fault in leader.cluster.unreadable:
            log.error("stored document not understood", fault=fault)
        log.info(
            "leading",
            token=list(token),
            jobs=len(leader.cluster.jobs),
            nodes=len(leader.cluster.nodes),
            seconds=round(self.clock.monotonic() - began, 3),
        )
        desk = Desk(self.inbox)
        operators = OperatorServices(self.bus, leader, desk)
        services = Services(self.bus, leader, leader.store, log, desk, operators)
        intake = PullLoop(
            self.bus.jetstream,
            stream=subjects.SUBMIT_STREAM,
            durable=INTAKE,
            deliver=lambda delivery: self._take_submission(delivery, token, services),
        )

        def ended(key: JobKey, attempts: int) -> None:
            services.job_ended(key)
            leader.logs.forget(*key, attempts)

        leader.ended = ended
        beats = await self.bus.agents.subscribe(subjects.BEAT_ALL, self._take_beat)
        purging = asyncio.create_task(purge_old_submissions(self.bus.jetstream, intake, self.clock))
        try:
            await intake.start()
            await services.start()
            await leader.run()
        finally:
            purging.cancel()
            await beats.close()
            await services.close()
            await intake.stop()
            await leader.outbox.close()
            self.inbox.clear()

    async def _take_over(self, token: Token) -> Leader:
        store = Store(self.bus.jetstream, token=token, clock=self.clock.monotonic)
        snapshot = await store.snapshot()
        outbox = Outbox(self.bus.jetstream, token=token)
        await outbox.drain(snapshot.outs)
        settings = Settings(
            beat_s=self.settings.beat_s,
            suspect_s=self.settings.suspect_s,
            lost_s=self.settings.lost_s,
            foreign_tolerated_mib=self.settings.foreign_tolerated_mib,
        )
        cluster = recover(
            yard=self.leadership.yard,
            token=token,
            settings=settings,
            jobs=snapshot.jobs,
            nodes=snapshot.nodes,
            tenants=snapshot.tenants,
            now=self.clock.now(),
        )
        return Leader(
            bus=self.bus,
            leadership=self.leadership,
            store=store,
            outbox=outbox,
            inbox=self.inbox,
            cluster=cluster,
            planner=Planner(cluster, BestFit(settings)),
            clock=self.clock,
            log=log,
            next_out=snapshot.next_out,
            logs=LogLedger(self.bus.jetstream),
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
        self.inbox.put(services.arrival(event))

    def _take_beat(self, message: Message) -> None:
        try:
            beat: Beat = _BEAT.validate_python(message.body())
            if not ids.is_name(beat["node"]):
                raise ValueError("not a node's name")
            if beat["node"] != subjects.parse_beat(message.subject):
                raise ValueError("a beat under another node's name")
        except (ProtocolError, ValidationError, ValueError) as error:
            log.warning("beat refused", subject=message.subject, reason=str(error)[:300])
            return
        self.inbox.put(Arrival(NodeBeat(beat, message)))


def stop_on_signals(daemon: Daemon) -> None:
    """SIGTERM and SIGINT let the daemon finish its turn and give the lease back."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stopping.set)
