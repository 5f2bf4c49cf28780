"""What is written: single keys, log records of whole commits, and the commit record of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from gpuyard import bucket_rules, codec, subjects
from gpuyard.bus import MAX_BATCH_MESSAGES, Publication, Stored
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import Token
from gpuyard_coordinator import fast_codec

MAX_WRITES: Final = MAX_BATCH_MESSAGES - 1
"""The commit record takes one message of the batch."""
MAX_WAL_BYTES: Final = 512 * 1024
"""Of a log record: half of what the bus lets one message have."""
MAX_WAL_WRITES: Final = 200
"""Above it writing the keys at once is cheaper than a log record and a checkpoint soon after."""
TAKEN_OVER_TTL_S: Final = 3600
"""Longer for a log record that another leader left: its author may still want to know whether it
was stored, and the marker says so."""
_EPOCH: Final = subjects.state(subjects.EPOCH_KEY)

WalNumber = bucket_rules.LogNumber


class Write(NamedTuple):
    """One key of a commit; `data` None deletes it. Made by `put` and `delete`."""

    key: str
    data: bytes | None
    ttl_s: float | None = None

    @property
    def size(self) -> int:
        """Bytes in a message, about."""
        return len(self.key) + len(self.data or b"")


def put(key: str, document: Mapping[str, Any] | bytes, *, ttl_s: float | None = None) -> Write:
    """Store `document` at `key`; it vanishes after `ttl_s` (from 1 s) where that is given, counted
    from the checkpoint."""
    data = document if isinstance(document, bytes) else fast_codec.encode(document)
    return Write(key=key, data=data, ttl_s=ttl_s)


def delete(key: str) -> Write:
    """Remove `key`: a marker takes its place and vanishes by itself."""
    return Write(key=key, data=None)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The last message of every batch."""

    id: bytes = b""
    taken_over: bytes = b""
    """The id of the last record of the leader before, who may still want to know of it."""
    covered: WalNumber = (0, 0)
    """Log records up to that one are in the bucket, and void if they turn up."""
    sequence: int = 0
    """Where it is stored; 0 where there is none yet."""

    def encode(self) -> bytes:
        return fast_codec.encode(
            {"v": 1, "id": self.id, "taken_over": self.taken_over, "covered": list(self.covered)}
        )

    def covering(self, numbers: Sequence[WalNumber]) -> "CommitRecord":
        """This one after a checkpoint of those records, too."""
        if not numbers or self.is_void(numbers[-1]):
            return self
        return replace(self, covered=numbers[-1])

    def is_void(self, number: WalNumber) -> bool:
        """Whether a log record of that number says nothing (`bucket_rules.is_covered`)."""
        return bucket_rules.is_covered(number, self.covered, self.sequence)


def encode_wal(writes: Sequence[Write]) -> bytes:
    """A commit as one message."""
    return fast_codec.encode(
        {"v": 1, "writes": [{"key": w.key, "data": w.data, "ttl_s": w.ttl_s} for w in writes]}
    )


def decode_wal(stored: Stored) -> list[Write]:
    """The writes of a log record. Raises RemoteProtocolError where it cannot be read: to go on
    without it would undo a commit, so nobody may lead until a program that can read it does."""
    document = codec.decode(stored.data)
    try:
        return [Write(w["key"], w["data"], w["ttl_s"]) for w in document["writes"]]
    except (KeyError, TypeError) as fault:
        raise RemoteProtocolError(f"{stored.subject} is no list of writes") from fault


def wal_publication(token: Token, number: int, data: bytes) -> Publication:
    """A commit's message. Its id is never used twice, so that the server drops a late copy."""
    key = subjects.wal_key(token[1], number)
    return Publication(
        subjects.state(key),
        data,
        expected=token[1],
        expected_on=_EPOCH,
        message_id=f"{token[0]}.{key}",
    )


def batch_publications(
    writes: Sequence[Write], logs: Sequence[WalNumber], record: CommitRecord, epoch: int
) -> list[Publication]:
    """The messages of a batch: writes, deletes of log records, and `record` in place of the one
    at its sequence."""
    messages = [_publication(write) for write in writes]
    messages += [
        _marker(key, bucket_rules.marker_ttl_s(key) if number[0] == epoch else TAKEN_OVER_TTL_S)
        for number in logs
        for key in [subjects.wal_key(*number)]
    ]
    messages[0] = messages[0]._replace(expected=epoch, expected_on=_EPOCH)
    last = Publication(
        subjects.state(subjects.COMMIT_KEY), record.encode(), expected=record.sequence
    )
    return [*messages, last]


def _publication(write: Write) -> Publication:
    if write.data is None:
        return _marker(write.key, bucket_rules.marker_ttl_s(write.key))
    return Publication(subjects.state(write.key), write.data, ttl_s=write.ttl_s)


def _marker(key: str, ttl_s: float) -> Publication:
    return Publication(subjects.state(key), b"", marker="DEL", ttl_s=ttl_s)


def read_commit_record(stored: Stored | None) -> CommitRecord:
    if stored is None:
        return CommitRecord()
    document = codec.decode(stored.data)
    try:
        epoch, number = document["covered"]
        return CommitRecord(
            document["id"], document["taken_over"], (epoch, number), stored.sequence
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise RemoteProtocolError(f"{stored.subject} is no commit record") from fault
