"""The bucket as one leader sees it: commits, checkpoints and reads."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, cast

from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_BYTES,
    JetStream,
    PubAck,
    Stale,
    StorageFull,
    Stored,
    StreamRefusal,
    Undecided,
    read_last_values,
)
from gpuyard.errors import GpuyardError, LocalProtocolError, Unavailable
from gpuyard.messages import JobDocument, Token
from gpuyard_coordinator.store.pending import MESSAGE_BYTES, Part, Pending
from gpuyard_coordinator.store.records import (
    MAX_WAL_BYTES,
    MAX_WAL_WRITES,
    MAX_WRITES,
    CommitRecord,
    Write,
    batch_publications,
    delete,
    encode_wal,
    read_commit_record,
    wal_publication,
)
from gpuyard_coordinator.store.replay import Unpublished, replay, unpublished

CHECKPOINT_IDLE_S: Final = 0.2
CHECKPOINT_AGE_S: Final = 1.0
"""Under load that never pauses so long a commit may be missing in the bucket's own keys."""
CHECKPOINT_MESSAGES: Final = 250
CHECKPOINT_BYTES: Final = 3 * 1024 * 1024
PART_BYTES: Final = MAX_BATCH_BYTES - 64 * 1024
"""Leaves room for the commit record and the deletes of log records."""
_PLACES: Final = 2**16
"""A cursor is the sequence to go on from times this, and how many from there were shown."""
_NEXT_CHECKPOINT_S: Final = 1.0
_NEXT_TRY_S: Final = 0.1
_UNDECIDED_S: Final = 0.005
_FULL_S: Final = 1.0
"""Room comes back when somebody frees it."""
log = logging.getLogger(__name__)


class Fenced(GpuyardError):
    """Somebody else leads: nothing of this commit was written, and nothing will be."""

    def __init__(self) -> None:
        super().__init__("somebody else leads")


class Store:
    """The bucket as one leader sees it. Without a token it only reads, up to a second late.

    Make a new one for every leadership: the token is the fence of all its commits. One commit or
    checkpoint at a time; `clock` is monotonic and tells when checkpoints are due.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        token: Token | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.commits = 0
        self.blocked: str | None = None
        """Why the commit in flight is not stored yet; None where none waits."""
        self.refused = 0
        """Writes that were not taken any more, since somebody else leads."""
        self._jetstream = jetstream
        self._token = token
        self._clock = clock
        self._pending = Pending()
        self._has_begun = False
        """Whether it was read what the leader before left."""
        self._predecessor = b""
        """The id of that leader's last commit record."""
        self._record: CommitRecord | None = None
        """The last one stored; None while that is not certain."""
        self._number = 0
        self._is_busy = False
        self._oldest_at = self._newest_at = 0.0
        """When the oldest and the newest of what is pending was committed."""
        self._put_off_until = 0.0

    async def take_over(self) -> Unpublished:
        """What earlier leaders left to publish, complete when called after `acquire`; all else of
        the state is for one who has followed that.

        Raises RemoteProtocolError where a commit that is not in the bucket cannot be read.
        """
        # Log records first: what a checkpoint moves meanwhile is then seen in both places.
        record, pending = await self._read_commits()
        if not self._has_begun:
            self._begin(record, pending.copy())
        return unpublished(await self._read("out"), pending, self._epoch)

    async def commit(self, writes: Sequence[Write]) -> int:
        """Write all or nothing, and return the sequence of the message that decided it.

        Returns only when the writes are stored, and raises `Fenced` only when they never will be;
        outages are waited out. Any other refusal of the server is a `StreamRefusal`: nothing was
        written, but a try before it that had no answer may still arrive, so end the leadership.
        One commit at a time; more than 399 writes or 8 MiB, the same key twice, or no token is a
        LocalProtocolError.
        """
        size = sum([write.size for write in writes])
        token = self._check(writes, size)
        with self._alone():
            await self._ensure_begun()
            # Its own log records come after those of others are gone; `replay` relies on it.
            try:
                is_small = len(writes) <= MAX_WAL_WRITES and size <= MAX_WAL_BYTES
                if is_small and not self._pending.taken_over:
                    sequence = await self._log(writes, token)
                else:
                    sequence = await self._write_through(writes)
            except Fenced:
                self.refused += len(writes)
                raise
        self.commits += 1
        return sequence

    def forget(self, keys: Iterable[str]) -> None:
        """Delete `keys` with the next checkpoint. A crash before that brings them back, so it is
        for what does no harm then: records that are published already."""
        self._check_idle()
        was_empty = not len(self._pending)
        self._pending.add([delete(key) for key in keys], None)
        if was_empty:
            self._oldest_at = self._newest_at = self._clock()

    @property
    def checkpoint_at(self) -> float:
        """When the next checkpoint is due, on this store's clock; infinite while none is needed."""
        pending = self._pending
        if not len(pending):
            return math.inf
        due_at = min(self._newest_at + CHECKPOINT_IDLE_S, self._oldest_at + CHECKPOINT_AGE_S)
        if len(pending) > CHECKPOINT_MESSAGES or pending.bytes > CHECKPOINT_BYTES:
            due_at = self._oldest_at
        return max(due_at, self._put_off_until)

    def checkpoint_due(self, now: float) -> bool:
        return now >= self.checkpoint_at

    async def checkpoint(self) -> bool:
        """Move one batch of what is committed to the keys it is about; True once all of it is.

        What the server does not take is put off, and nothing is lost by that. Raises Fenced.
        """
        self._check_idle()
        with self._alone():
            await self._ensure_begun()
            try:
                await self._move_part()
            except (Unavailable, StreamRefusal) as fault:
                log.warning("checkpoint put off", extra={"fault": str(fault)})
                self._put_off_until = self._clock() + _NEXT_CHECKPOINT_S
        return not len(self._pending)

    async def still_leads(self) -> bool:
        """Whether, as the bus has it now, nobody has taken over since; raises Unavailable."""
        leader = await self._last(subjects.EPOCH_KEY)
        return leader is not None and leader.sequence == self._epoch

    async def get_done(self, tenant: str, job: str) -> JobDocument | None:
        """The record of a finished job, or None. One round trip at most."""
        key = subjects.done_key(tenant, job)
        if (write := self._pending.get(key)) is not None:
            return None if write.data is None else cast(JobDocument, codec.decode(write.data))
        stored = await self._jetstream.direct_last(subjects.STATE_STREAM, subjects.state(key))
        if stored is None or stored.is_marker:
            return None
        return cast(JobDocument, codec.decode(stored.data))

    async def list_done(
        self, tenant: str | None, *, cursor: int = 0, limit: int = 1000
    ) -> tuple[list[JobDocument], int | None]:
        """Up to `limit` finished jobs in the order they were stored, and the next page's cursor.

        `tenant` None reads all tenants; cursor 0 starts with the oldest, and None says that this
        was the last page. What no checkpoint has moved yet comes at the end.
        """
        sequence, skipped = divmod(cursor, _PLACES)
        # Taken before the page is read: what a checkpoint moves meanwhile is then in one of both.
        prefix = f"done.{tenant}." if tenant else "done."
        pending = {subjects.state(w.key): w.data for w in self._pending.writes(prefix)}
        page = await self._jetstream.read_page(
            subjects.STATE_STREAM,
            subject=subjects.state(f"{prefix}*" if tenant else "done.*.*"),
            from_sequence=sequence,
            limit=limit + skipped,
        )
        found = {
            stored.subject: stored.data
            for stored in page.messages
            if not stored.is_marker and pending.get(stored.subject, stored.data) == stored.data
        }
        moved = len(found)
        if page.next_sequence is None:
            found |= {key: data for key, data in pending.items() if data is not None}
        end = skipped + limit
        jobs = [cast(JobDocument, codec.decode(d)) for d in list(found.values())[skipped:end]]
        if page.next_sequence is not None:
            return jobs, page.next_sequence * _PLACES + max(0, skipped - moved)
        if len(found) <= end:
            return jobs, None
        # A checkpoint keeps their order, so that after it as many are to be skipped.
        after = page.messages[-1].sequence + 1 if page.messages else sequence
        return jobs, after * _PLACES + end - moved

    def _check(self, writes: Sequence[Write], size: int) -> Token:
        if self._token is None:
            raise LocalProtocolError("a store without a token only reads")
        self._check_idle()
        if not 0 < len(writes) <= MAX_WRITES:
            raise LocalProtocolError(f"a commit of {len(writes)} writes; 1 to {MAX_WRITES} fit")
        if len({write.key for write in writes}) != len(writes):
            raise LocalProtocolError("a commit writes the same key twice")
        size += MESSAGE_BYTES * len(writes)
        if size > PART_BYTES:
            raise LocalProtocolError(f"a commit of {size} bytes is above {PART_BYTES}")
        return self._token

    def _check_idle(self) -> None:
        if self._is_busy:
            raise LocalProtocolError("a commit is in flight already")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _ensure_begun(self) -> None:
        while not self._has_begun:
            try:
                self._begin(*await self._read_commits())
            except Unavailable as fault:
                log.warning("commits cannot be read", extra={"fault": str(fault)})
                await asyncio.sleep(_NEXT_TRY_S)

    def _begin(self, record: CommitRecord, pending: Pending) -> None:
        self._record, self._predecessor = record, record.id
        self._pending, self._has_begun = pending, True
        self._number = max(record.covered[1], pending.last_number)
        self._oldest_at = self._newest_at = self._clock()

    async def _log(self, writes: Sequence[Write], token: Token) -> int:
        """Commit by one message, the log record. Its number is used up even if it is refused: a
        late copy must never be taken for another commit."""
        self._number += 1
        publication = wal_publication(token, self._number, encode_wal(writes))

        async def find() -> int | None:
            stored = await self._jetstream.last(subjects.STATE_STREAM, publication.subject)
            # A marker says the same: the leader that took it over has deleted it.
            return None if stored is None else stored.sequence

        sequence = await self._settle(lambda: self._jetstream.publish(publication), find)
        self._newest_at = self._clock()
        if not len(self._pending):
            self._oldest_at = self._newest_at
        self._pending.add(writes, (token[1], self._number))
        return sequence

    async def _write_through(self, writes: Sequence[Write]) -> int:
        """Commit by one batch, which takes along whatever is pending: an older log record that
        was left would undo it in a replay."""
        while True:
            merged = self._pending.copy()
            merged.add(writes, None)
            part = merged.part(max_messages=MAX_WRITES, max_bytes=PART_BYTES)
            if part.is_whole:
                break
            try:
                await self._move_part()
            except (Unavailable, Stale, Undecided) as fault:
                log.warning("checkpoint not stored", extra={"fault": str(fault)})
                await asyncio.sleep(_NEXT_TRY_S)
        commit_id = secrets.token_bytes(16)

        async def find() -> int | None:
            stored = await self._read_record()
            return stored.sequence if commit_id in (stored.id, stored.taken_over) else None

        self._pending.note_sent(part)
        sequence = await self._settle(lambda: self._send(part, commit_id), find)
        self._pending = Pending()
        return sequence

    async def _move_part(self) -> None:
        """One attempt at one batch. Where its outcome stays unknown the next one repeats it."""
        part = self._pending.part(max_messages=MAX_WRITES, max_bytes=PART_BYTES)
        if part.is_empty:
            return
        self._pending.note_sent(part)
        try:
            await self._send(part, secrets.token_bytes(16))
        except Stale:
            # Deposed, or an earlier batch of ours was stored after all.
            if not await self.still_leads():
                self.refused += len(part.writes)
                raise Fenced from None
            await self._send(part, secrets.token_bytes(16))
        self._pending.note_stored(part)

    async def _send(self, part: Part, commit_id: bytes) -> PubAck:
        before = self._record or await self._read_record()
        # From here on it is not certain which one is stored, until the answer is here.
        self._record = None
        record = replace(before.covering(part.logs), id=commit_id, taken_over=self._predecessor)
        ack = await self._jetstream.publish_batch(
            batch_publications(part.writes, part.logs, record, self._epoch)
        )
        self._record = replace(record, sequence=ack.sequence)
        return ack

    async def _settle(
        self, send: Callable[[], Awaitable[PubAck]], find: Callable[[], Awaitable[int | None]]
    ) -> int:
        """Send until it is known to be stored or fenced; sending it twice must be safe."""
        try:
            while True:
                try:
                    return (await send()).sequence
                except Undecided:
                    await asyncio.sleep(_UNDECIDED_S)
                except Stale:
                    log.info("commit refused as stale")
                except Unavailable as fault:
                    self.blocked = str(fault)
                    log.warning("commit not stored", extra={"fault": str(fault)})
                    full = isinstance(fault, StorageFull)
                    await asyncio.sleep(_FULL_S if full else _NEXT_TRY_S)
                if (sequence := await self._outcome(find)) is not None:
                    return sequence
        finally:
            self.blocked = None

    async def _outcome(self, find: Callable[[], Awaitable[int | None]]) -> int | None:
        """The sequence if it is stored, None to try again; raises `Fenced`."""
        while True:
            try:
                # In this order: once somebody else leads, what cannot be found never will be.
                leads = await self.still_leads()
                sequence = await find()
            except Unavailable:
                await asyncio.sleep(_NEXT_TRY_S)
                continue
            if sequence is None and not leads:
                raise Fenced
            return sequence

    @property
    def _epoch(self) -> int:
        return 0 if self._token is None else self._token[1]

    async def _read_commits(self) -> tuple[CommitRecord, Pending]:
        record = await self._read_record()
        return record, replay(await self._read("wal"), record)

    async def _read_record(self) -> CommitRecord:
        return read_commit_record(await self._last(subjects.COMMIT_KEY))

    async def _last(self, key: str) -> Stored | None:
        return await self._jetstream.last(subjects.STATE_STREAM, subjects.state(key))

    async def _read(self, prefix: str) -> list[Stored]:
        wildcard = subjects.state(f"{prefix}.>")
        return await read_last_values(self._jetstream, subjects.STATE_STREAM, [wildcard])
