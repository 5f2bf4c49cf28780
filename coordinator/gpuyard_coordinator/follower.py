"""A standby's picture of the yard: read once, then kept equal to what is committed.

It begins to listen before it reads, so that nothing falls in between, and reads key by key as the
server sends, so that neither the lease's renewal nor a request ever waits for the whole. Beats
reach every coordinator; a standby takes from them what the nodes measure and answers none. A
coordinator stands for election only with such a picture at hand, and leads as soon as that has
reached its own epoch: how long the reading takes is never time without a leader where another one
follows.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import (
    JetStream,
    Stored,
    StreamRefusal,
    Tail,
    last_values,
    read_last_values,
)
from gpuyard.errors import ProtocolError, RemoteProtocolError, Unavailable
from gpuyard.messages import Beat
from gpuyard.model.ids import JobKey
from gpuyard_coordinator import ended_jobs, fast_codec
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import beats, recovery, stored_history
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.store.records import CommitRecord, read_commit_record
from gpuyard_coordinator.store.replay import replay
from gpuyard_coordinator.store.replica import FOLLOWED, Replica, in_order

_NEXT_TRY_S: Final = 0.5
_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)
_KEPT: Final = frozenset((*FOLLOWED, "done"))
_SKIP: Final = len(subjects.state(""))
_CHUNK: Final = 200
"""Messages that are taken between two looks at the event loop, a few milliseconds."""
log = logging.getLogger(__name__)


class Follower:
    """Run it until this coordinator leads; then `cluster` and `planner` are the leader's to keep.

    `ready` is set while the picture is whole and follows, else `unready` is. `cluster` is another
    object after each time that it was read anew. `on_opening` is called where an election may be
    won from now on: the picture is whole, or the lease was given back.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        settings: Settings,
        clock: Clock,
        on_opening: Callable[[], None] = lambda: None,
        on_ended: Callable[[JobKey], None] = lambda key: None,
    ) -> None:
        self.ready, self.unready = asyncio.Event(), asyncio.Event()
        self.clock = clock
        self._jetstream = jetstream
        self._settings = settings
        self._on_opening = on_opening
        self._on_ended = on_ended
        self._moved = asyncio.Event()
        self._replica = Replica(CommitRecord())
        self._yard: bytes | None = None
        self._begin()

    def _begin(self) -> None:
        self._set_ready(False)
        self.cluster = Cluster(yard="", token=(0, 0), settings=self._settings)
        self.planner = Planner(self.cluster, Packer(self._settings))
        self._waiting: deque[Stored] | None = deque()
        """What came while the rest is read; None once it is taken as it comes."""
        self._has_queue = False
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = Tail(
            self._jetstream,
            stream=subjects.STATE_STREAM,
            subject=subjects.STATE_ALL,
            deliver=self._deliver,
        )

    async def run(self) -> None:
        """Read and follow until cancelled; after whatever breaks that, anew."""
        while True:
            self._begin()
            try:
                await self._follow()
                log.warning("out of touch with the bucket for too long: it is read anew")
            except (Unavailable, StreamRefusal, ProtocolError) as fault:
                log.warning("bucket cannot be followed", extra={"fault": str(fault)})
            finally:
                self._set_ready(False)
                await self._tail.stop()
            await asyncio.sleep(_NEXT_TRY_S)

    async def reach(self, sequence: int) -> None:
        """Return once everything up to this sequence of the bucket is in the picture."""
        while not (self.ready.is_set() and self._tail.sequence >= sequence):
            self._moved.clear()
            await self._moved.wait()

    async def catch_up(self) -> None:
        """Return once everything stored before the call is in the picture; raises Unavailable."""
        state = await self._jetstream.state(subjects.STATE_STREAM)
        await self.reach(state.last_sequence)

    def hear(self, beat: Beat) -> None:
        """A node lives, and measured this."""
        recovery.hear(self.cluster, beat, self.clock.now())
        recovery.forget_counts(self.cluster)

    def tick(self) -> None:
        """Nodes that beat too long ago are late; to be called about every second."""
        beats.judge_lateness(self.cluster, self.clock.now(), Effects())
        recovery.forget_counts(self.cluster)

    def _set_ready(self, is_ready: bool) -> None:
        (self.ready if is_ready else self.unready).set()
        (self.unready if is_ready else self.ready).clear()
        self._moved.set()

    async def _follow(self) -> None:
        # Everything of a big yard's picture stays: looking at it again and again for garbage would
        # take as long as reading it, and later stop the leader for half a second at a time.
        # The picture before this one is let go of first.
        gc.unfreeze()
        gc.collect()
        gc.disable()
        try:
            await self._tail.start()
            self._replica = await self._read()
            await self._take_waiting()
            gc.freeze()
        finally:
            gc.enable()
        self._set_ready(True)
        self._on_opening()
        running = asyncio.ensure_future(self._tail.run())
        try:
            await asyncio.wait({running, self._fault}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            running.cancel()
        if self._fault.done():
            self._fault.result()

    async def _take_waiting(self) -> None:
        while self._waiting:
            for _ in range(min(_CHUNK, len(self._waiting))):
                self._take(self._waiting.popleft())
            await asyncio.sleep(0)
        self._waiting = None

    async def _read(self) -> Replica:
        yard = await self._last(subjects.YARD_KEY)
        record = read_commit_record(await self._last(subjects.COMMIT_KEY))
        if (mix := await self._last(subjects.MIX_KEY)) is not None:
            await self._take_keys([mix])
        for prefix in FOLLOWED:
            subject = subjects.state(f"{prefix}.>")
            async for chunk in last_values(self._jetstream, subjects.STATE_STREAM, subject):
                over = await ended_jobs.ended(self._jetstream, chunk) if prefix == "job" else ()
                await self._take_keys([each for each in chunk if each.subject not in over])
        recovery.fill_queue(self.cluster)
        self._has_queue = True
        # After the keys: what is left of the log comes after what they say.
        log_records = await read_last_values(
            self._jetstream, subjects.STATE_STREAM, [subjects.state("wal.>")]
        )
        for write in in_order(list(replay(log_records, record).writes())):
            self._apply(write.key, write.data)
        now = self.clock.now().mono
        for node in self.cluster.nodes.values():
            node.last_beat = now
        replica = Replica(record)
        replica.yard, self._yard = None if yard is None else yard.data, None
        epoch = await self._last(subjects.EPOCH_KEY)
        replica.epoch = 0 if epoch is None else epoch.sequence
        self._note_leader(replica)
        return replica

    async def _last(self, key: str) -> Stored | None:
        return await self._jetstream.last(subjects.STATE_STREAM, subjects.state(key))

    async def _take_keys(self, stored: Sequence[Stored]) -> None:
        for number, each in enumerate(stored, 1):
            if not each.is_marker:
                self._apply(each.subject[_SKIP:], each.data)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)

    def _deliver(self, stored: Stored) -> None:
        if self._waiting is not None:
            self._waiting.append(stored)
        elif not self._fault.done():
            try:
                self._take(stored)
            except ProtocolError as fault:
                self._fault.set_exception(fault)
            self._moved.set()

    def _take(self, stored: Stored) -> None:
        replica = self._replica
        had_resigned = replica.has_resigned
        for write in replica.take(stored):
            self._apply(write.key, write.data)
        if self._yard is not None and replica.yard != self._yard:
            raise RemoteProtocolError("the yard was restored: it is read anew")
        if replica.epoch != self.cluster.token[1] or replica.yard != self._yard:
            self._note_leader(replica)
        if replica.has_resigned and not had_resigned:
            self._on_opening()

    def _note_leader(self, replica: Replica) -> None:
        yard = codec.decode(replica.yard) if replica.yard else {}
        self._yard = replica.yard
        self.cluster.yard = str(yard.get("id", ""))
        self.cluster.token = (int(yard.get("generation", 0)), replica.epoch)

    def _apply(self, key: str, data: bytes | None) -> None:
        kind, _, name = key.partition(".")
        faults = len(self.cluster.unreadable)
        try:
            if data is None:
                self._drop(kind, name)
            else:
                self._put(kind, name, data)
        except (RemoteProtocolError, *_MALFORMED) as fault:
            # One unreadable document must not keep the yard from having a leader.
            self.cluster.unreadable.append(f"{key}: {fault!r}")
        recovery.forget_counts(self.cluster)
        for told in self.cluster.unreadable[faults:]:
            log.error("stored document not understood", extra={"key": key, "fault": told})

    def _put(self, kind: str, name: str, data: bytes) -> None:
        if kind not in _KEPT:
            return
        if kind == "job":
            take = recovery.take_job if self._has_queue else recovery.load_job
            take(self.cluster, data)
            return
        document: Any = fast_codec.decode_own(data)
        if kind == "node":
            recovery.take_node(self.cluster, document)
            if (node := self.cluster.nodes.get(name)) is None:
                return
            node.last_beat = node.last_beat or self.clock.now().mono
        elif kind == "tenant":
            recovery.take_tenant(self.cluster, document)
        elif kind == "share":
            stored_history.take_history(self.cluster, document)
        elif kind == subjects.MIX_KEY:
            recovery.take_mix(self.cluster, document)
        else:
            self.cluster.recently_done.put((document["tenant"], document["id"]), data)

    def _drop(self, kind: str, name: str) -> None:
        if kind == "job":
            tenant, _, id = name.partition(".")
            recovery.drop_job(self.cluster, (tenant, id))
            self._on_ended((tenant, id))
        elif kind == "node":
            recovery.drop_node(self.cluster, name)
        elif kind == "tenant":
            recovery.drop_tenant(self.cluster, name)
        elif kind == "share":
            stored_history.drop_history(self.cluster, name)
