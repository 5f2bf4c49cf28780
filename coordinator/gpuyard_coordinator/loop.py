"""One leadership: events in, one commit a turn, then what was committed is told.

A turn drains the inbox, applies all of it, plans, commits all of it at once, and only then
acknowledges, pushes, replies and answers reads. Whatever arrives meanwhile is the next turn.

While the bus stores a commit the leader works on: it packs what follows, reads beats, and where
enough of them wait decides the next turn. That one is committed after this one, and nothing is told
or read between: should this one not be stored, both end with the leadership.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from gpuyard import subjects
from gpuyard.bus import Delivery
from gpuyard.messages import JobDocument
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard.model.states import JobState
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import arrays, follow_ups, quota
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import (
    CancelRequested,
    Event,
    NodeBeat,
    Refused,
    Submitted,
    Tick,
)
from gpuyard_coordinator.core.plan import Plan, Planner
from gpuyard_coordinator.core.state import Now
from gpuyard_coordinator.deposed import is_deposed
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.out_records import PackedMessage, encode_record, packed_records
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.record import Recorder
from gpuyard_coordinator.store import Fenced, Store, Write, put
from gpuyard_coordinator.telling import Packed, Teller
from gpuyard_coordinator.turn_writes import writes_of

TICK_S: Final = 1.0
EVENTS_PER_TURN: Final = 500
BEATS_PER_TURN: Final = 100
"""Few, since a turn keeps the renewal of the lease waiting, and each may bring a node to see."""
READS_PER_TURN: Final = 20
WRITES_PER_TURN: Final = 250
"""Keys that a turn may change before it commits; well below the 399 of a commit."""
KIB_PER_TURN: Final = 3072
PLACEMENTS_PER_TURN: Final = 100


class Beats(Protocol):
    """Where the beats wait."""

    @property
    def arrived(self) -> int:
        """How many ever came."""

    def __len__(self) -> int: ...

    def take(self) -> NodeBeat | None:
        """The oldest; None for one that is not for this turn."""

    def read_ahead(self) -> bool:
        """Reads some that `take` gives later; False where none is to be read now."""

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
class Turn:
    """What one turn decided, and what is stored and told of it."""

    now: Now
    effects: Effects = field(default_factory=Effects)
    deliveries: list[Delivery] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    outs: list[tuple[int, list[PackedMessage]]] = field(default_factory=list)
    """Out records with their numbers."""
    writes: list[Write] = field(default_factory=list)

    @property
    def has_asked(self) -> bool:
        """Somebody waits for an answer to it."""
        return bool(self.queries or self.effects.outcomes)


@dataclass(slots=True)
class Leader:
    """Everything of one leadership. Ends by an exception or when the lease is lost."""

    leadership: Leadership
    store: Store
    outbox: Outbox
    inbox: Inbox
    beats: Beats
    cluster: Cluster
    planner: Planner
    clock: Clock
    teller: Teller
    next_out: int
    recorder: Recorder | None = None
    """Keeps what each plan went by and what it decided."""
    commits: int = 0
    _is_stopping: bool = False
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
        await self.teller.announce()
        next_tick = self.clock.monotonic()
        ahead: Turn | None = None
        while not self.leadership.lost.is_set() and (ahead or not self._is_stopping):
            if ahead is None:
                wake_at = min(next_tick, self.store.checkpoint_at)
                await self.inbox.wait(max(0.0, wake_at - self.clock.monotonic()))
            if self.clock.monotonic() >= next_tick:
                self.inbox.put(Arrival(Tick()))
                next_tick = self.clock.monotonic() + TICK_S
            await self._let_others_run()
            ahead = await self.turn(ahead)
            await self._tidy()

    async def _let_others_run(self) -> None:
        """Between two turns, of which neither may have waited for anything: what came on the
        connection is read, beats that are older than others go unread, the lease is renewed."""
        for _ in range(READS_PER_TURN):
            arrived = self.beats.arrived
            await asyncio.sleep(0)
            if self.beats.arrived == arrived:
                return

    async def turn(self, decided: Turn | None = None) -> Turn | None:
        """(1) apply, (2) plan, (3) commit, (4) tell. Takes a turn that is decided already, and
        gives the next one where that was while this one was stored."""
        turn = decided or await self._decide()
        ahead: Turn | None = None
        if turn.writes:
            async with self._storing(self.store.commit(turn.writes)):
                packed = self._pack(turn)
                if self._goes_on_at_once() and not turn.queries:
                    ahead = await self._decide()
            self.commits += 1
        else:
            packed = self._pack(turn)
            if turn.has_asked and await is_deposed(self.leadership, self.store, self.clock):
                raise Fenced
        await self._tell(turn, packed)
        return ahead

    async def _decide(self) -> Turn:
        turn = Turn(self.clock.now())
        self._apply_beats(turn)
        await self._apply_arrivals(turn)
        turn.plan = self._plan(turn)
        turn.outs = list(enumerate(packed_records(turn.effects.out), self.next_out))
        self.next_out += len(turn.outs)
        turn.writes = writes_of(self.cluster, turn.effects)
        turn.writes += [put(subjects.out_key(n), encode_record(out)) for n, out in turn.outs]
        return turn

    def _goes_on_at_once(self) -> bool:
        """A whole turn waits. Else it is better to wait for what comes besides: fewer commits, and
        sooner told."""
        is_full = len(self.beats) >= BEATS_PER_TURN or self.planner.is_behind
        return is_full and not self._is_stopping

    @asynccontextmanager
    async def _storing(self, work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
        """Done once both `work` and the block are; until then beats are read, some at a time."""
        storing = asyncio.create_task(work)
        try:
            await asyncio.sleep(0)  # its first round, in which it is sent
            yield
            while not storing.done() and self.beats.read_ahead():
                await asyncio.sleep(0)
            await storing
        finally:
            storing.cancel()

    def _pack(self, turn: Turn) -> Packed:
        """What is told of a turn once it is stored, from the state as it is now."""
        if self.recorder is not None:
            self.recorder.take(turn.now, turn.plan, turn.writes)
        return self.teller.pack(turn.effects)

    async def _tell(self, turn: Turn, packed: Packed) -> None:
        for n, messages in turn.outs:
            self.outbox.push_packed(n, messages)
        if self.recorder is not None:
            self.recorder.keep(turn.now)
        await self.teller.send(packed, turn.effects, turn.deliveries)
        for query in turn.queries:
            query.run(self.cluster)

    def _apply_beats(self, turn: Turn) -> None:
        for _ in range(min(BEATS_PER_TURN, len(self.beats))):
            if _is_large(turn.effects):
                break
            if (event := self.beats.take()) is not None:
                apply(self.cluster, event, turn.now, turn.effects)
        if len(self.beats):
            self.inbox.wake()

    async def _apply_arrivals(self, turn: Turn) -> None:
        for _ in range(min(EVENTS_PER_TURN, len(self.inbox))):
            if _is_large(turn.effects) or self._must_plan_first():
                self.inbox.wake()
                return
            item = self.inbox.take()
            if isinstance(item, Query):
                turn.queries.append(item)
            elif isinstance(item, Arrival):
                event = await _with_known(item)
                ref = getattr(event, "ref", None)
                if isinstance(ref, Delivery):
                    turn.deliveries.append(ref)
                apply(self.cluster, event, turn.now, turn.effects)

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

    def _plan(self, turn: Turn) -> Plan:
        now, effects = turn.now, turn.effects
        new = self._queued_in(effects)
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

    def _queued_in(self, effects: Effects) -> list[JobKey]:
        """Jobs that came or came back. Tasks of an array are not told one by one why they wait:
        `why` tells it of the array."""
        jobs = (job for key in effects.jobs if (job := self.cluster.jobs.get(key)) is not None)
        queued = [job.key for job in jobs if job.state is JobState.QUEUED]
        return [key for key in queued if ids.array_of(key[1]) is None]

    async def _tidy(self) -> None:
        """Lets go of relayed records, most of them before the bucket ever had them, and moves one
        batch of commits to their keys where that is due; works on new prices a little."""
        relayed = [subjects.out_key(n) for n in self.outbox.take_acknowledged()]
        live = {subjects.job_key(*key) for key in self.cluster.jobs} if self._cleared else set()
        self.store.forget([*relayed, *(key for key in self._cleared if key not in live)])
        self._cleared.clear()
        if self.store.checkpoint_due(self.clock.monotonic()):
            async with self._storing(self.store.checkpoint()):
                pass
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
