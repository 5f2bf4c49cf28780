"""The state in the bucket: one snapshot at take-over, then one fenced commit at a time.

A commit is one atomic batch. Its first message expects that `leader.epoch` still has the sequence
of this leader's token, so the server refuses it once somebody else leads. Its last one is the
commit record: a random id that expects the record before it, so that a commit whose answer was
lost is resolved by reading one key, and a copy of it that turns up late is refused.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    JetStream,
    Publication,
    Stale,
    Stored,
    Undecided,
    read_last_values,
)
from gpuyard.errors import GpuyardError, LocalProtocolError, RemoteProtocolError, Unavailable
from gpuyard.messages import JobDocument, NodeDocument, OutRecord, Token

MAX_WRITES: Final = MAX_BATCH_MESSAGES - 1
"""The commit record takes one message of the batch."""
MARKER_TTL_S: Final = 10
"""A delete marker only says that the key is gone, which nothing that comes later must know."""
_LIVE: Final = ("job", "node", "tenant", "out")
_NEXT_TRY_S: Final = 0.1
_UNDECIDED_S: Final = 0.005
log = logging.getLogger(__name__)


class Fenced(GpuyardError):
    """Somebody else leads: nothing of this commit was written, and nothing will be."""


@dataclass(frozen=True, slots=True)
class Write:
    """One key of a commit; `data` None deletes it. Made by `put` and `delete`."""

    key: str
    data: bytes | None
    ttl_s: float | None = None


def put(key: str, document: Mapping[str, Any] | bytes, *, ttl_s: float | None = None) -> Write:
    """Store `document` at `key`; it vanishes after `ttl_s` (from 1 s) where that is given."""
    data = document if isinstance(document, bytes) else codec.encode(document)
    return Write(key=key, data=data, ttl_s=ttl_s)


def delete(key: str) -> Write:
    """Remove `key`: a marker takes its place and vanishes by itself."""
    return Write(key=key, data=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live documents. `outs` are in order; the next out record is `last_sequence + 1`."""

    jobs: list[JobDocument]
    nodes: list[NodeDocument]
    tenants: list[dict[str, Any]]
    outs: list[tuple[int, OutRecord]]
    last_sequence: int
    unreadable: list[str]
    """Keys whose documents could not be decoded; they are left as they are."""


class Store:
    """The bucket as one leader sees it. Without a token it only reads.

    Make a new one for every leadership: the token is the fence of all its commits.
    """

    def __init__(self, jetstream: JetStream, *, token: Token | None = None) -> None:
        self._jetstream = jetstream
        self._epoch = token[1] if token is not None else None
        self._record: int | None = None
        """Sequence of the last commit record; None until it was read once."""
        self._committing = False
        self.commits = 0

    async def snapshot(self) -> Snapshot:
        """Everything live, complete up to the take-over when called after `acquire`."""
        stored = await read_last_values(
            self._jetstream,
            subjects.STATE_STREAM,
            [subjects.state(f"{prefix}.>") for prefix in _LIVE],
        )
        # Read after the values: it must not be lower than any number that was ever used.
        state = await self._jetstream.state(subjects.STATE_STREAM)
        return _snapshot(stored, state.last_sequence)

    async def commit(self, writes: Sequence[Write]) -> int:
        """Write all or nothing, and return the sequence of the commit record.

        Returns only when the writes are stored, and raises `Fenced` only when they never will be;
        outages are waited out. Any other refusal of the server is a `StreamRefusal`: nothing was
        written. One commit at a time; more than 400 messages or 8 MiB, the same key twice, or no
        token is a LocalProtocolError.
        """
        epoch = self._check(writes)
        self._committing = True
        try:
            sequence = await self._settle(writes, epoch, secrets.token_bytes(16))
        finally:
            self._committing = False
        self._record = sequence
        self.commits += 1
        return sequence

    async def get_done(self, tenant: str, job: str) -> JobDocument | None:
        """The record of a finished job, or None. One round trip."""
        key = subjects.state(subjects.done_key(tenant, job))
        stored = await self._jetstream.direct_last(subjects.STATE_STREAM, key)
        if stored is None or stored.is_marker:
            return None
        return cast(JobDocument, codec.decode(stored.data))

    async def list_done(
        self, tenant: str | None, *, cursor: int = 0, limit: int = 1000
    ) -> tuple[list[JobDocument], int | None]:
        """A page of finished jobs in the order they were stored, and the next page's cursor.

        `tenant` None reads all tenants; cursor 0 starts with the oldest, and None says that this
        was the last page.
        """
        page = await self._jetstream.read_page(
            subjects.STATE_STREAM,
            subject=subjects.state(f"done.{tenant}.*" if tenant else "done.*.*"),
            from_sequence=cursor,
            limit=limit,
        )
        jobs = [
            cast(JobDocument, codec.decode(stored.data))
            for stored in page.messages
            if not stored.is_marker
        ]
        return jobs, page.next_sequence

    def _check(self, writes: Sequence[Write]) -> int:
        if self._epoch is None:
            raise LocalProtocolError("a store without a token only reads")
        if self._committing:
            raise LocalProtocolError("a commit is in flight already")
        if not 0 < len(writes) <= MAX_WRITES:
            raise LocalProtocolError(f"a commit of {len(writes)} writes; 1 to {MAX_WRITES} fit")
        if len({write.key for write in writes}) != len(writes):
            raise LocalProtocolError("a commit writes the same key twice")
        return self._epoch

    async def _settle(self, writes: Sequence[Write], epoch: int, commit_id: bytes) -> int:
        """Try until it is known to be stored or fenced. The same id makes a repetition safe."""
        first = _publications(writes, epoch)
        while True:
            try:
                if self._record is None:
                    self._record, _ = await self._last_record()
                ack = await self._jetstream.publish_batch(
                    [*first, _commit_record(commit_id, self._record)]
                )
                return ack.sequence
            except Undecided:
                await asyncio.sleep(_UNDECIDED_S)
            except Stale:
                log.info("commit refused as stale")
            except Unavailable as fault:
                log.warning("commit not answered", extra={"fault": str(fault)})
                await asyncio.sleep(_NEXT_TRY_S)
            if (sequence := await self._outcome(epoch, commit_id)) is not None:
                return sequence

    async def _outcome(self, epoch: int, commit_id: bytes) -> int | None:
        """The sequence if that commit is stored, None to try again; raises `Fenced`."""
        while True:
            try:
                sequence, stored_id = await self._last_record()
                if stored_id == commit_id:
                    return sequence
                leader = await self._jetstream.last(
                    subjects.STATE_STREAM, subjects.state(subjects.EPOCH_KEY)
                )
            except Unavailable:
                await asyncio.sleep(_NEXT_TRY_S)
                continue
            if leader is None or leader.sequence != epoch:
                raise Fenced("somebody else leads")
            self._record = sequence
            return None

    async def _last_record(self) -> tuple[int, bytes]:
        stored = await self._jetstream.last(
            subjects.STATE_STREAM, subjects.state(subjects.COMMIT_KEY)
        )
        return (0, b"") if stored is None else (stored.sequence, stored.data)


def _publications(writes: Sequence[Write], epoch: int) -> list[Publication]:
    return [
        Publication(
            subject=subjects.state(write.key),
            data=b"" if write.data is None else write.data,
            marker="DEL" if write.data is None else None,
            ttl_s=MARKER_TTL_S if write.data is None else write.ttl_s,
            expected=None if number else epoch,
            expected_on=None if number else subjects.state(subjects.EPOCH_KEY),
        )
        for number, write in enumerate(writes)
    ]


def _commit_record(commit_id: bytes, before: int) -> Publication:
    return Publication(subjects.state(subjects.COMMIT_KEY), commit_id, expected=before)


def _snapshot(stored: Sequence[Stored], last_sequence: int) -> Snapshot:
    found: dict[str, list[Any]] = {prefix: [] for prefix in _LIVE}
    unreadable = []
    skip = len(subjects.state(""))
    for message in stored:
        key = message.subject[skip:]
        prefix, _, rest = key.partition(".")
        try:
            document = codec.decode(message.data)
            found[prefix].append((int(rest), document) if prefix == "out" else document)
        except (RemoteProtocolError, ValueError) as fault:
            # One unreadable document must not keep the yard from having a leader.
            log.error("stored document cannot be read", extra={"key": key, "fault": str(fault)})
            unreadable.append(key)
    return Snapshot(
        jobs=found["job"],
        nodes=found["node"],
        tenants=found["tenant"],
        outs=sorted(found["out"], key=lambda entry: entry[0]),
        last_sequence=last_sequence,
        unreadable=unreadable,
    )


__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_WRITES",
    "Fenced",
    "Snapshot",
    "Store",
    "Write",
    "delete",
    "put",
]
