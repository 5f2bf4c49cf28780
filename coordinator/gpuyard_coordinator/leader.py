"""Leadership: who may write the state, and until when.

Two keys in the state's own stream. `leader.lease` exists while somebody leads: it vanishes by
itself unless it is renewed. `leader.epoch` is rewritten at every take-over, in the same batch, and
its sequence is the leader's fence: the server refuses what an earlier leader still tries to write.
So safety rests on the server alone, and the clock here only decides who may answer beats.
"""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import JetStream, Publication, Stale, Stored, StreamRefusal, Undecided
from gpuyard.errors import GpuyardError, LocalProtocolError, RemoteProtocolError, Unavailable
from gpuyard.messages import Token
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.yard_memory import YardMemory

MARGIN_S: Final = 0.3
"""The lease counts as over this much before the server may drop it."""
RESIGNED_TTL_S: Final = 1.0
RESIGN_S: Final = 1.0
"""Without an answer for so long the lease is left to end by itself."""
_YARD_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who stands for election: what a restarted coordinator recognises its dead self by."""

    name: str
    machine_id: str
    boot_id: str
    pid: int
    started: str = ""
    """Tells two processes apart that got the same id, one after the other."""
    pid_namespace: str = ""
    """Process ids mean something only inside of it."""


def this_process(*, name: str, machine_id: str, boot_id: str) -> Holder:
    """The holder that stands for the running process."""
    return Holder(
        name=name,
        machine_id=machine_id,
        boot_id=boot_id,
        pid=os.getpid(),
        started=_started(os.getpid()),
        pid_namespace=_pid_namespace(),
    )


def is_running(holder: Holder) -> bool:
    """Whether that process of this machine still exists; when in doubt it does."""
    if not Path(f"/proc/{holder.pid}").exists():
        return False
    try:
        return not holder.started or _started(holder.pid) == holder.started
    except OSError:
        return True


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a lease lives, how often it is renewed, and how often a candidate looks."""

    ttl_s: float
    renew_s: float
    poll_s: float

    @classmethod
    def for_replicas(cls, replicas: int) -> "Timing":
        """On one server short; on three longer than the bus needs to elect its own leaders."""
        if replicas == 1:
            return cls(ttl_s=2.0, renew_s=0.4, poll_s=0.25)
        return cls(ttl_s=15.0, renew_s=3.0, poll_s=0.5)


class Leadership:
    """One candidate. After a loss the same object may `acquire` again.

    `lost` is set once it is certain that the lease is not ours any more; `acquire` clears it.
    While the bus is down nothing is certain: then only `is_valid` turns false in time.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        holder: Holder,
        timing: Timing,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        memory: YardMemory | None = None,
        is_alive: Callable[[Holder], bool] = is_running,
    ) -> None:
        """Without a `memory` a new yard is made on every bus that has none."""
        self.lost = asyncio.Event()
        self.yard = ""
        """The yard's own six characters, once acquired or seen."""
        self.refused = 0
        """Renewals and a resignation that came when the lease was another's, since the last
        `acquire`."""
        self._jetstream = jetstream
        self._holder = holder
        self._timing = timing
        self._clock = clock
        self._wall_ms = wall_ms
        self._memory = memory
        self._is_alive = is_alive
        self._fault = ""
        self._term = ""
        self._token: Token | None = None
        self._lease = 0
        """Sequence of the lease record that we wrote last."""
        self._valid_until = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._due = asyncio.Event()

    @property
    def holder(self) -> Holder:
        """Who stands."""
        return self._holder

    @property
    def is_leading(self) -> bool:
        return self._token is not None

    @property
    def token(self) -> Token:
        """The fencing token of this leadership; raises LocalProtocolError while not leading."""
        if self._token is None:
            raise LocalProtocolError("this coordinator does not lead")
        return self._token

    def is_valid(self, now: float) -> bool:
        """True while nobody else can lead, so that beats may be answered; `now` is of the clock
        given."""
        return self.is_leading and now < self._valid_until

    def look(self) -> None:
        """The lease was given back, or this candidate may lead by now: the next attempt is due. The
        expiry of a lease nobody tells, so a candidate looks for itself as well."""
        self._due.set()

    async def acquire(self, may_lead: Callable[[], bool] = lambda: True) -> Token:
        """Wait, through outages too, until this candidate leads; then keep the lease renewed.

        It does not stand while `may_lead` is false: whoever could not go on at once would keep
        those off who can. Called while it still believes to lead (a commit was fenced before a
        renewal failed), it gives that leadership up first.
        """
        await self._step_down()
        self.lost.clear()
        self.refused = 0
        while True:
            self._due.clear()
            try:
                token = await self._try() if may_lead() else None
            except (Unavailable, StreamRefusal) as fault:
                self._tell(str(fault))
                token = None
            if token is not None:
                self._fault = ""
                self._token = token
                self._renewing = asyncio.create_task(self._keep(token), name="lease-renewal")
                return token
            # Candidates that look at the same moment would refuse each other for ever.
            try:
                async with asyncio.timeout(self._timing.poll_s * random.uniform(0.75, 1.25)):
                    await self._due.wait()
            except TimeoutError:
                continue

    def _tell(self, fault: str) -> None:
        """Once, however often the election is tried."""
        if fault != self._fault:
            self._fault = fault
            log.warning("no election possible", extra={"fault": fault})

    async def resign(self) -> None:
        """Stop renewing and free the lease, so that the next candidate leads at once.

        Does nothing while not leading; where the bus is down the lease ends by itself.
        """
        if not await self._step_down():
            return
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._free()
        except TimeoutError:
            log.info("lease not freed", extra={"fault": "the bus does not answer"})
        except (Unavailable, StreamRefusal) as fault:
            log.info("lease not freed", extra={"fault": str(fault)})

    async def _free(self) -> None:
        publication = Publication(
            subjects.state(subjects.LEASE_KEY),
            b"",
            expected=self._lease,
            marker="PURGE",
            ttl_s=RESIGNED_TTL_S,
        )
        try:
            await self._jetstream.publish(publication)
        except Stale as fault:
            stored = await self._own_lease()
            if stored is None:
                self.refused += 1
                log.warning("lease not freed", extra={"fault": str(fault)})
                return
            # Stepping down cut off a renewal that was stored.
            await self._jetstream.publish(publication._replace(expected=stored.sequence))

    async def _step_down(self) -> bool:
        """Renew no more; whether this candidate believed to lead until now."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        was_leading, self._token = self.is_leading, None
        if was_leading:
            self.lost.set()
        return was_leading

    async def _try(self) -> Token | None:
        """One look at the lease and, where it is free, one attempt to take it."""
        lease = await self._last(subjects.LEASE_KEY)
        if lease is not None and not lease.is_marker and not self._is_dead_self(lease):
            await self._note_yard()
            return None
        epoch = await self._last(subjects.EPOCH_KEY)
        # After the epoch: a restore that begins later changes it, and this batch is refused.
        yard, generation = await self._yard()
        term = secrets.token_hex(8)
        record = self._record(term)
        sent = self._clock()
        try:
            ack = await self._jetstream.publish_batch(
                [
                    Publication(
                        subjects.state(subjects.LEASE_KEY),
                        record,
                        expected=lease.sequence if lease else 0,
                        ttl_s=self._timing.ttl_s,
                    ),
                    Publication(
                        subjects.state(subjects.EPOCH_KEY),
                        record,
                        expected=epoch.sequence if epoch else 0,
                    ),
                ],
                timeout_s=1.0,
            )
        except (Stale, Undecided):
            return None
        if self._memory is not None:
            self._memory.keep(yard)
        self.yard, self._term = yard, term
        self._lease = ack.sequence - 1
        self._valid_until = sent + self._timing.ttl_s - MARGIN_S
        return (generation, ack.sequence)

    async def _yard(self) -> tuple[str, int]:
        """(id, generation) of the yard, made by the first candidate that ever looks."""
        stored = await self._last(subjects.YARD_KEY)
        if stored is None:
            if self._memory is not None:
                self._memory.require_none()
            yard = "".join(secrets.choice(_YARD_LETTERS) for _ in range(6))
            generation = self._wall_ms()
            record = fast_codec.encode({"v": 1, "id": yard, "generation": generation})
            try:
                await self._jetstream.publish(
                    Publication(subjects.state(subjects.YARD_KEY), record, expected=0)
                )
                return yard, generation
            except (Stale, Undecided) as fault:
                raise Unavailable("another candidate is making the yard") from fault
        document = codec.decode(stored.data)
        if document.get("restoring"):
            raise Unavailable("a restore has begun and not ended: start it again")
        return str(document["id"]), int(document["generation"])

    async def _note_yard(self) -> None:
        """Whoever stands by remembers the yard too, which somebody else made."""
        if self._memory is None or self.yard:
            return
        stored = await self._last(subjects.YARD_KEY)
        if stored is not None:
            self.yard = str(codec.decode(stored.data)["id"])
            self._memory.keep(self.yard)

    async def _keep(self, token: Token) -> None:
        while self._token == token:
            await asyncio.sleep(self._timing.renew_s)
            try:
                held = await self._renew()
            except GpuyardError as fault:
                # Nothing is proven by that, and a lease that is not renewed ends by itself.
                log.warning("lease not renewed", extra={"fault": str(fault)})
                continue
            if not held:
                log.warning("leadership lost", extra={"token": token})
                self.refused += 1
                self._token = None
                self.lost.set()

    async def _renew(self) -> bool:
        """Write the lease anew; False once it is certain that it is not ours any more."""
        sent = self._clock()
        try:
            ack = await self._jetstream.publish(
                Publication(
                    subjects.state(subjects.LEASE_KEY),
                    self._record(self._term),
                    expected=self._lease,
                    ttl_s=self._timing.ttl_s,
                ),
                timeout_s=min(1.0, self._timing.ttl_s / 2),
            )
        except Stale:
            stored = await self._own_lease()
            if stored is None:
                return False
            # Our own renewal was stored and its answer lost. How long ago is unknown, so this
            # does not extend the validity; the next renewal does.
            self._lease = stored.sequence
            return True
        self._lease = ack.sequence
        self._valid_until = sent + self._timing.ttl_s - MARGIN_S
        return True

    async def _own_lease(self) -> Stored | None:
        """The lease as it is stored; None where it is not of this leadership."""
        stored = await self._last(subjects.LEASE_KEY)
        if stored is None or stored.is_marker or _read(stored).get("term") != self._term:
            return None
        return stored

    def _is_dead_self(self, lease: Stored) -> bool:
        """Whether the lease is of a process of this machine and boot that does not exist now."""
        fields = _read(lease).get("holder")
        try:
            other = Holder(**fields) if isinstance(fields, Mapping) else None
        except TypeError:
            # A record of another version: it ends by itself.
            return False
        me = self._holder
        if other is None or not me.machine_id or not me.boot_id:
            return False
        same_place = (other.machine_id, other.boot_id, other.pid_namespace) == (
            me.machine_id,
            me.boot_id,
            me.pid_namespace,
        )
        return same_place and not self._is_alive(other)

    def _record(self, term: str) -> bytes:
        return fast_codec.encode({"v": 1, "term": term, "holder": asdict(self._holder)})

    async def _last(self, key: str) -> Stored | None:
        return await self._jetstream.last(subjects.STATE_STREAM, subjects.state(key))


def _started(pid: int) -> str:
    """Field 22 of its stat: clock ticks after boot. The name before it may hold spaces."""
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return stat.rpartition(")")[2].split()[19]


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(stored: Stored) -> dict[str, Any]:
    try:
        return codec.decode(stored.data)
    except RemoteProtocolError:
        return {}
