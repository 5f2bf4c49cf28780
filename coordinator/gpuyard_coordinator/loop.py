"""One leadership: events in, one commit a turn, then what was committed is told.

A turn drains the inbox, applies all of it, plans, commits all of it at once, and only then
acknowledges, pushes, replies and answers reads. Whatever arrives meanwhile is the next turn.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Delivery, Message
from gpuyard.errors import Unavailable
from gpuyard.messages import BeatReply, JobDocument
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import arrays, documents, follow_ups, quota, shares
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import BeatOutcome, Effects, Outcome
from gpuyard_coordinator.core.events import (
    CancelRequested,
    Event,
    NodeBeat,
    Refused,
    Submitted,
    Tick,
)
from gpuyard_coordinator.core.plan import Plan, Planner
from gpuyard_coordinator.core.state import Node, Now
from gpuyard_coordinator.deposed import is_deposed
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.log_ledger import LogLedger
from gpuyard_coordinator.out_records import PackedMessage, encode_record, packed_records
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.record import Recorder
from gpuyard_coordinator.store import Fenced, Store, Write, delete, put

TICK_S: Final = 1.0
EVENTS_PER_TURN: Final = 500
BEATS_PER_TURN: Final = 100
"""Few, since a turn keeps the renewal of the lease waiting, and each may bring a node to look at."""
READS_PER_TURN: Final = 20
WRITES_PER_TURN: Final = 250
"""Keys that a turn may change before it commits; well below the 399 of a commit."""
KIB_PER_TURN: Final = 3072
PLACEMENTS_PER_TURN: Final = 100
DONE_KEPT_S: Final = 30 * 86_400
CANCEL_KEPT_S: Final = 86_400
"""How long a cancel that came before its job is remembered."""


class Beats(Protocol):
    """Where the beats wait."""

    @property
    def arrived(self) -> int:
        """How many ever came."""

    def __len__(self) -> int: ...

    def take(self) -> NodeBeat | None:
        """The oldest; None for one that is not for this turn."""

    def close(self) -> None: ...


class Asker(Protocol):
    """Whoever waits for an outcome: a request. Submissions are acknowledged instead."""

    def answer(self, outcome: Outcome) -> None: ...


@dataclass(slots=True)
class Arrival:
    """An event for the core, with a look-up of its id among ended jobs that may still run."""

    event: Event
    look_up: "asyncio.Task[JobDocument | None] | None" = None
    ended: "asyncio.Task[dict[str, str]] | None" = None
    """Final states of the jobs that it names in `after`, of those whose records are kept."""


@dataclass(slots=True)
class Query:
    """A read: called between commits, when the state is exactly what is committed."""

    run: Callable[[Cluster], None]


@dataclass(slots=True)
class Leader:
    """Everything of one leadership. Ends by an exception or when the lease is lost."""

    bus: Bus
    leadership: Leadership
    store: Store
    outbox: Outbox
    inbox: Inbox
    beats: Beats
    cluster: Cluster
    planner: Planner
    clock: Clock
    log: FilteringBoundLogger
    next_out: int
    logs: LogLedger
    ended: Callable[[JobKey, int], None] = lambda key, attempts: None
    """Told of every job that is over, and of its number of attempts, after the commit."""
    recorder: Recorder | None = None
    """Keeps what each plan went by and what it decided."""
    commits: int = 0
    _is_stopping: bool = False
    _usual_reply: bytes = b""
    """What nearly every beat is answered: all is well, and there is no news."""
    unexplained: list[JobKey] = field(default_factory=list)
    """Jobs that came while a plan was cut short: told why they wait once one is whole."""
    _cleared: list[str] = field(default_factory=list)

    def clear_away(self, keys: list[str]) -> None:
        """Deletes keys of jobs that are over with the next checkpoint, as they were before."""
        self._cleared += keys
        self.inbox.wake()

    def stop(self) -> None:
        """Let `run` return after the turn in which it is."""
        self._is_stopping = True
        self.inbox.wake()

    async def run(self) -> None:
        """Turns until the lease is lost; raises Fenced when a commit shows that it was."""
        await self._announce()
        next_tick = self.clock.monotonic()
        while not (self._is_stopping or self.leadership.lost.is_set()):
            wake_at = min(next_tick, self.store.checkpoint_at)
            await self.inbox.wait(max(0.0, wake_at - self.clock.monotonic()))
            if self.clock.monotonic() >= next_tick:
                self.inbox.put(Arrival(Tick()))
                next_tick = self.clock.monotonic() + TICK_S
            await self._let_others_run()
            await self.turn()
            await self._tidy()

    async def _let_others_run(self) -> None:
        """Between two turns, of which neither may have waited for anything: what came on the
        connection is read, beats that are older than others go unread, the lease is renewed."""
        for _ in range(READS_PER_TURN):
            arrived = self.beats.arrived
            await asyncio.sleep(0)
            if self.beats.arrived == arrived:
                return

    async def turn(self) -> None:
        """(1) apply, (2) plan, (3) commit, (4) tell."""
        now = self.clock.now()
        effects, deliveries, queries = Effects(), list[Delivery](), list[Query]()
        self._apply_beats(now, effects)
        await self._apply_arrivals(now, effects, deliveries, queries)
        plan = self._plan(now, effects)
        records = packed_records(effects.out)
        writes = self._writes(effects, records)
        if writes:
            await self.store.commit(writes)
            self.commits += 1
        elif (queries or effects.outcomes) and await is_deposed(
            self.leadership, self.store, self.clock
        ):
            raise Fenced
        for messages in records:
            self.outbox.push_packed(self.next_out, messages)
            self.next_out += 1
        await self._tell(effects, deliveries)
        if self.recorder is not None:
            self.recorder.take(now, plan, writes)
        for query in queries:
            query.run(self.cluster)

    async def _tell(self, effects: Effects, deliveries: list[Delivery]) -> None:
        for name in effects.wanted:
            await self._push_wanted(name)
        for delivery in deliveries:
            delivery.ack()
        for outcome in effects.outcomes:
            self._answer(outcome)
        for key in effects.ended:
            self.ended(key, len(effects.done[key]["attempts"]))
        for beat in effects.beats:
            await self._answer_beat(beat, effects)

    def _apply_beats(self, now: Now, effects: Effects) -> None:
        for _ in range(min(BEATS_PER_TURN, len(self.beats))):
            if _is_large(effects):
                break
            if (event := self.beats.take()) is not None:
                apply(self.cluster, event, now, effects)
        if len(self.beats):
            self.inbox.wake()

    async def _apply_arrivals(
        self, now: Now, effects: Effects, deliveries: list[Delivery], queries: list[Query]
    ) -> None:
        for _ in range(min(EVENTS_PER_TURN, len(self.inbox))):
            if _is_large(effects) or self._must_plan_first():
                self.inbox.wake()
                return
            item = self.inbox.take()
            if isinstance(item, Query):
                queries.append(item)
            elif isinstance(item, Arrival):
                event = await _with_known(item)
                ref = getattr(event, "ref", None)
                if isinstance(ref, Delivery):
                    deliveries.append(ref)
                apply(self.cluster, event, now, effects)

    def _must_plan_first(self) -> bool:
        """True where the next job would find its tenant's queue full while some of what is in it
        may start at once: only what stays queued counts against the limit."""
        item = self.inbox.first
        event = item.event if isinstance(item, Arrival) else None
        if not isinstance(event, Submitted) or not self.planner.is_behind:
            return False
        document = self.cluster.tenants.get(event.tenant)
        waiting = self.cluster.queue.waiting[event.tenant]
        return quota.is_queue_full(document, waiting, arrays.count(event.spec))

    def _plan(self, now: Now, effects: Effects) -> Plan:
        # Tasks of an array are not told one by one why they wait: `why` tells it of the array.
        new = [k for k in effects.jobs if k in self.cluster.jobs and ids.array_of(k[1]) is None]
        room = max(1, min(PLACEMENTS_PER_TURN, WRITES_PER_TURN - effects.keys))
        if self.recorder is not None:
            self.recorder.notice(room)
        plan = self.planner.plan(room, now)
        for decided in plan.events:
            apply(self.cluster, decided, now, effects)
        self.unexplained += new
        if follow_ups.are_left(self.cluster):
            self.inbox.put(Arrival(Tick()))
        if plan.is_partial:
            self.inbox.wake()
            return plan
        if self.planner.is_behind:
            self.inbox.wake()
        waiting_keys, self.unexplained = self.unexplained, []
        for waiting in self.planner.explain_new(waiting_keys, now):
            apply(self.cluster, waiting, now, effects)
        return plan

    def _writes(self, effects: Effects, records: list[list[PackedMessage]]) -> list[Write]:
        """Jobs by their acceptance: a standby lists them in the order in which it hears of them."""
        cluster = self.cluster
        jobs = [job for key in effects.jobs if (job := cluster.jobs.get(key)) is not None]
        writes = [
            put(subjects.job_key(*job.key), documents.encode_job(job))
            for job in sorted(jobs, key=lambda job: job.submit_seq)
        ]
        writes += [delete(subjects.job_key(*key)) for key in sorted(effects.deleted)]
        for key, document in effects.done.items():
            is_early_cancel = not document["spec_sha256"] and document["reason"] == "cancelled"
            ttl_s = CANCEL_KEPT_S if is_early_cancel else DONE_KEPT_S
            writes.append(put(subjects.done_key(*key), dict(document), ttl_s=ttl_s))
        for name in sorted(effects.nodes):
            node = documents.node_document(cluster.nodes[name])
            writes.append(put(subjects.node_key(name), dict(node)))
        writes += [delete(subjects.node_key(name)) for name in sorted(effects.forgotten)]
        for name in sorted(effects.tenants):
            tenant, at = cluster.tenants.get(name), subjects.tenant_key(name)
            writes.append(delete(at) if tenant is None else put(at, {"v": 1, **tenant}))
        for name in sorted(effects.shares):
            share = shares.share_document(cluster, name)
            writes.append(put(subjects.share_key(name), share, ttl_s=shares.DOCUMENT_KEPT_S))
        if effects.mix:
            writes.append(put(subjects.MIX_KEY, cluster.priced.to_document()))
        for n, messages in enumerate(records, self.next_out):
            writes.append(put(subjects.out_key(n), encode_record(messages)))
        return writes

    async def _push_wanted(self, name: str) -> None:
        """A push is for latency alone: one that is lost is repaired by the next beat's reply."""
        node = self.cluster.nodes[name]
        body = documents.encode_wanted(self.cluster, node)
        try:
            await self.bus.agents.publish(subjects.wanted(name), body)
        except Unavailable:
            self.log.debug("push not sent", node=name)

    def _answer(self, outcome: Outcome) -> None:
        ref = outcome.ref
        if ref is not None and not isinstance(ref, Delivery):
            ref.answer(outcome)  # type: ignore[attr-defined]  # every other ref is an Asker

    async def _answer_beat(self, outcome: BeatOutcome, effects: Effects) -> None:
        message = outcome.ref
        if not isinstance(message, Message) or not self._may_answer_beats():
            return
        node = self.cluster.nodes[outcome.node]
        is_wanted = outcome.needs_wanted and outcome.node not in effects.wanted
        log_chunks = self.logs.stored(node) if node.attempts else {}
        body: Mapping[str, Any] | bytes
        if is_wanted or log_chunks or outcome.status != "ok" or message.is_json:
            body = self._beat_reply(outcome, node if is_wanted else None, log_chunks)
        else:
            body = self._usual_reply or self._encode_usual_reply()
        try:
            await self.bus.agents.respond(
                message, body, caller_prefix=subjects.agent_inbox(outcome.node)
            )
        except Unavailable:
            self.log.debug("beat not answered", node=outcome.node)

    def _encode_usual_reply(self) -> bytes:
        self._usual_reply = codec.encode(self._beat_reply(None, None, {}))
        return self._usual_reply

    def _beat_reply(
        self, outcome: BeatOutcome | None, wanted: Node | None, log_chunks: dict[str, int]
    ) -> BeatReply:
        """To a node whose wanted set is to be told, or None; `outcome` is None where all is well."""
        is_rival = outcome is not None and outcome.status != "ok"
        return {
            "v": 1,
            "yard": self.cluster.yard,
            "token": list(self.cluster.token),
            "lease_s": self.cluster.settings.lost_s,
            "status": "duplicate_name" if is_rival else "ok",
            "message": outcome.message if outcome is not None else None,
            "wanted": documents.wanted_document(self.cluster, wanted) if wanted else None,
            "log_chunks": log_chunks,
        }

    def _may_answer_beats(self) -> bool:
        """An answer renews a node's lease, so it needs a lease of our own."""
        return self.leadership.is_valid(self.clock.monotonic())

    async def _announce(self) -> None:
        """Shows every known node its document under the new token, so that it beats at once."""
        for name in list(self.cluster.nodes):
            await self._push_wanted(name)

    async def _tidy(self) -> None:
        """Lets go of relayed records, most of them before the bucket ever had them, and moves one
        batch of commits to their keys where that is due; works on new prices a little."""
        relayed = [subjects.out_key(n) for n in self.outbox.take_acknowledged()]
        live = {subjects.job_key(*key) for key in self.cluster.jobs} if self._cleared else set()
        self.store.forget([*relayed, *(key for key in self._cleared if key not in live)])
        self._cleared.clear()
        if self.store.checkpoint_due(self.clock.monotonic()):
            await self.store.checkpoint()
        if (priced := self.planner.repricing.go_on()) is not None:
            self.inbox.put(Arrival(priced))
        elif self.planner.repricing.is_busy:
            self.inbox.wake()


def _is_large(effects: Effects) -> bool:
    return effects.keys >= WRITES_PER_TURN or effects.kib >= KIB_PER_TURN


async def _with_known(arrival: Arrival) -> Event:
    event = arrival.event
    if arrival.look_up is not None and isinstance(event, Submitted | Refused | CancelRequested):
        event = replace(event, known=await arrival.look_up)
    if arrival.ended is not None and isinstance(event, Submitted):
        event = replace(event, ended=await arrival.ended)
    return event
