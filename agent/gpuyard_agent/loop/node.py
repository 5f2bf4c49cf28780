"""One node: its memory and what it is told. The steps are performed by `actions`, and `picture`
is what it reports."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from gpuyard.messages import Beat, LogChunk, LogsReply, Token
from gpuyard_agent.core import intake
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.document import Document, parse_document, parse_token
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.memory import Memory, Record, runtime_record
from gpuyard_agent.core.policy import NodePolicy
from gpuyard_agent.core.steps import Here
from gpuyard_agent.gpus.processes import OwnProcesses
from gpuyard_agent.journal import FileJournal, Journal, JournalError
from gpuyard_agent.loop.actions import Actions
from gpuyard_agent.loop.engine import Engine
from gpuyard_agent.loop.fences import Fences
from gpuyard_agent.loop.host import Clock, Host
from gpuyard_agent.loop.inventory import EngineFacts, Inventory
from gpuyard_agent.loop.keeping import Keeper
from gpuyard_agent.loop.picture import Picture
from gpuyard_agent.runtime import Runtime
from gpuyard_agent.simulated_runtime import Timers

_SHOUT_EVERY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of; everything that touches the world comes in here."""

    name: str
    host: Host
    clock: Clock
    journal: Journal
    inventory: Inventory
    make_runtime: Callable[[str], Runtime]
    """The runtime for a yard, known once the coordinator has said which it is."""
    describe: Callable[[Runtime], Awaitable[EngineFacts]]
    """The engine's version, and how its containers get GPUs; asked once a runtime is open."""
    policy: NodePolicy
    timers: Timers
    log_limit_bytes: int
    keeper: Keeper
    beat_s: float


class NodeAgent:
    """See the module's docstring; a `link.Peer`."""

    def __init__(
        self,
        parts: NodeParts,
        memory: Memory,
        *,
        beat_soon: Callable[[str], None],
        publish_chunk: Callable[[str, LogChunk], Any],
    ) -> None:
        self.name = parts.name
        self.parts = parts
        self.memory = memory
        self.inventory = parts.inventory
        self.instance = secrets.token_hex(8)
        self.started_ns = int(parts.clock.boot() * 1e9)
        self.is_stopping = False
        self.log = structlog.get_logger().bind(node=parts.name)
        self.engine = Engine(self, parts.make_runtime)
        self.fences = Fences(self, parts.keeper)
        self._picture = Picture(self)
        self.actions = Actions(self, publish_chunk=publish_chunk)
        self.tokens_refused = 0
        self._beat_soon = beat_soon
        self._dirty: set[AttemptKey] = set()
        self._is_scheduled = False
        self._pending: Document | None = None
        self._refused: tuple[Token, int] | None = None
        self._last_shout = float("-inf")
        self.journal_fault: str | None = None
        """Why the journal took nothing when it was last written to; None where it did."""
        self._is_rival = False

    def start(self) -> None:
        """Goes on from the journal: the runtime is asked what exists, then steps are taken."""
        self.actions.shipping.resume()
        self.fences.resume()
        if self.memory.yard is not None:
            self.engine.start(self.memory.yard)

    async def close(self) -> None:
        """Lets go of everything; containers run on."""
        await self.actions.close()
        await self.fences.close()
        await self.engine.close()
        await self.inventory.close()
        with contextlib.suppress(JournalError):
            await self.parts.journal.sync()
        self.parts.journal.close()

    # What the core sees.

    def now(self) -> float:
        return self.parts.clock.boot()

    def here(self) -> Here:
        return Here(
            machine_id=self.parts.host.machine_id,
            boot_id=self.parts.host.boot_id,
            wall=self.parts.clock.wall(),
            generation=self.inventory.generation,
            gpus=self.inventory.gpus,
            # Without an inventory a grant cannot be checked, so nothing is started either.
            listed=self.engine.is_listed and self.inventory.facts is not None,
            adopting=self.memory.adopting,
            stopping=self.is_stopping,
            policy=self.parts.policy,
            renewed_at=self.fences.renewed_at,
            lease_until=self.fences.lease_until,
            beat_s=self.parts.beat_s,
        )

    def write(self, *records: Record) -> bool:
        """Makes records true: in the journal first. False where the disk refuses: then nothing
        happened, and the caller must not act on them."""
        try:
            self.parts.journal.append(records)
        except JournalError as fault:
            if self.journal_fault is None:
                self.log.error("journal refused", fault=str(fault))
            self.journal_fault = str(fault)
            self.parts.timers.at(asyncio.get_running_loop().time() + 1.0, self.wake_all)
            return False
        self.journal_fault = None
        for record in records:
            self.memory.apply(record)
        if self.parts.journal.wants_compaction:
            self.parts.journal.compact(self.memory.snapshot())
        return True

    def wake(self, *keys: AttemptKey) -> None:
        """Looks at these attempts again, in the next turn of the event loop."""
        self._dirty.update(keys)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def wake_all(self) -> None:
        self.wake(*self.memory.attempts)

    def changed(self) -> None:
        """Something that a beat says is different now."""
        self._beat_soon(self.name)

    def _turn(self) -> None:
        self._is_scheduled = False
        dirty, self._dirty = self._dirty, set()
        here = self.here()
        for key in dirty:
            attempt = self.memory.attempts.get(key)
            if attempt is not None:
                self.actions.advance(attempt, here)

    # What comes in.

    def on_wanted(self, document: Mapping[str, Any]) -> None:
        """A pushed document; raises ProtocolError for one that cannot be trusted."""
        self._take(parse_document(document, node=self.name))

    def on_reply(self, reply: Mapping[str, Any], *, seq: int, sent_at: float) -> None:
        """The leader's answer to our beat `seq`; raises ProtocolError."""
        if reply.get("status") == "duplicate_name":
            self._is_rival = True
            self._shout("this node's name is taken", message=reply.get("message"))
            return
        yard, token = reply.get("yard"), parse_token(reply.get("token"))
        if not isinstance(yard, str) or not self._is_of(yard):
            return
        met = intake.token_records(self.memory, token)
        if isinstance(met, intake.Refused):
            self.tokens_refused += 1
            self.log.warning("reply refused", why=str(met), token=token)
            return
        if met and not self.write(*met):
            return
        if self._is_rival:
            self._is_rival = False
            self.log.info("this node's name is its own again")
        if reply.get("status") == "ok" and isinstance(reply.get("lease_s"), int | float):
            self.fences.renewed(sent_at, float(reply["lease_s"]))
        self._acknowledge(reply, sent_at)
        if intake.is_current(self.memory, reply):
            self._confirm(seq)
        if (document := reply.get("wanted")) is not None:
            self._take(parse_document(document, node=self.name))

    def on_listed(self) -> None:
        """The runtime has told what exists: a document that waited for it can be taken now."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._take(pending)
        self.fences.on_listed()
        self.wake_all()
        self.changed()

    def _take(self, document: Document) -> None:
        if not self._is_of(document.yard):
            return
        if not self.engine.is_listed:
            # Who is alive must be known first: a document decides about the living.
            if self._pending is None or document.order > self._pending.order:
                self._pending = document
            return
        records = intake.document_records(self.memory, document, self.here())
        if isinstance(records, intake.Refused):
            self._note_refused(document, records)
            return
        if not self.write(*records):
            return
        for key in document.entries:
            self.memory.attempts[key].confirmations = 0
        # At once, not in the next turn: this is the way of every dispatch.
        self._dirty.update(self.memory.attempts)
        self._turn()
        self.changed()

    def _note_refused(self, document: Document, why: intake.Refused) -> None:
        """Told once of each; that the applied one comes again is no news."""
        self.tokens_refused += why is intake.Refused.LOWER_TOKEN
        order, applied = document.order, self.memory.applied
        if order not in (applied, self._refused):
            self._refused = order
            self.log.warning("document refused", why=str(why), order=order, applied=applied)

    def _is_of(self, yard: str) -> bool:
        """True where the yard is ours; a node that has none yet, or nothing left of its old one,
        joins this one."""
        if yard == self.memory.yard:
            return True
        if self.memory.yard is not None and self.memory.attempts:
            self._shout(
                "another yard's coordinator answers, and attempts of ours are left",
                ours=self.memory.yard,
                theirs=yard,
            )
            return False
        self._join(yard)
        return True

    def _join(self, yard: str) -> None:
        journal = self.parts.journal
        if self.memory.yard is not None:
            self.log.warning("joining another yard", before=self.memory.yard, yard=yard)
            if isinstance(journal, FileJournal):
                journal.set_aside(self.memory.yard)
            self.memory = Memory()
        runtime = runtime_record(self.inventory.description.runtime)
        if self.write({"k": "yard", "yard": yard}, runtime, self._generation_record()):
            self.engine.start(yard)

    def _acknowledge(self, reply: Mapping[str, Any], sent_at: float) -> None:
        stored = reply.get("log_chunks")
        if isinstance(stored, Mapping):
            for text, count in stored.items():
                if type(count) is int:
                    self.actions.acknowledge_logs(str(text), count, sent_at)

    def _confirm(self, seq: int) -> None:
        """Attempts that beat `seq` reported as unexpected and that still nobody names."""
        confirmed = self._picture.unexpected(seq)
        intake.confirm(attempt for attempt in confirmed if attempt.entry is None)
        self.wake(*(attempt.key for attempt in confirmed))

    def _shout(self, event: str, **fields: Any) -> None:
        if self.now() - self._last_shout >= _SHOUT_EVERY_S:
            self._last_shout = self.now()
            self.log.error(event, **fields)

    # What goes out.

    @property
    def can_beat_now(self) -> bool:
        return self.parts.journal.is_synced

    async def beat(self, seq: int) -> Beat | None:
        """The whole picture; what it claims is on the disk before this returns."""
        facts = self.inventory.facts
        if facts is None:
            return None
        try:
            await self.parts.journal.sync()
        except JournalError as fault:
            self._shout("journal not synced", fault=str(fault))
            return None
        return self._picture.beat(seq, facts)

    async def sample(self) -> None:
        """Reads the GPUs; a change of the facts goes out at once."""
        is_first = self.inventory.facts is None
        if await self.inventory.sample(self._own()) or is_first:
            self.on_facts()
        self.actions.measure(self.inventory.by_uuid)

    def locate(self, address: str | None) -> None:
        """Learns under which address other nodes reach this one; None says nothing."""
        if self.inventory.locate(address):
            self.on_facts()

    def on_facts(self) -> None:
        if self.inventory.digest != self.memory.facts_digest:
            self.write(self._generation_record())
        self.wake_all()
        self.changed()

    def _generation_record(self) -> Record:
        inventory, about = self.inventory, self.inventory.description
        return {
            "k": "generation",
            "n": inventory.generation,
            "digest": inventory.digest,
            "docker": about.docker_version,
            "injection": about.gpu_injection,
            "address": about.address,
        }

    def _own(self) -> OwnProcesses:
        alive = [a.container for a in self._alive() if a.container is not None]
        return OwnProcesses(
            containers=frozenset(seen.container_id for seen in alive if seen.container_id),
            pids=frozenset(pid for seen in alive for pid in seen.pids),
        )

    @property
    def running(self) -> int:
        """How many attempts have a container that has not ended."""
        return sum(1 for _ in self._alive())

    def _alive(self) -> Iterable[Attempt]:
        return (
            attempt
            for attempt in self.memory.attempts.values()
            if attempt.container is not None and attempt.exit is None
        )

    async def read_logs(self, request: Mapping[str, Any]) -> LogsReply:
        return await self.actions.read_logs(request)

    # Going down for good.

    @property
    def is_quiet(self) -> bool:
        """True once nothing of this yard runs here or is about to."""
        return not any(
            attempt.busy is not None or (attempt.container is not None and attempt.result is None)
            for attempt in self.memory.attempts.values()
        )

    @property
    def is_settled(self) -> bool:
        """True once the coordinator has taken in every end."""
        return self.is_quiet and not any(
            attempt.result is not None for attempt in self.memory.attempts.values()
        )

    def stop_jobs(self) -> None:
        """`gpuyard down`: ends what runs, with its grace, and starts nothing any more."""
        self.is_stopping = True
        self.wake_all()
        self.changed()
