"""What the stream of the bucket says, message by message, to one who follows it. Pure.

In order of sequence every log record is a commit, and every key that a checkpoint writes has the
newest committed value: one batch or commit of a leader is in flight at a time. So whoever takes
each in turn has the state, also where it begins with keys that are newer than a record, as
`pending` argues. A copy of a record that turns up late is void by the commit record before it.
"""

import logging
from collections.abc import Sequence
from typing import Final

from gpuyard import subjects
from gpuyard.bus import Stored
from gpuyard_coordinator.store.records import (
    CommitRecord,
    Write,
    decode_wal,
    read_commit_record,
)

FOLLOWED: Final = (subjects.MIX_KEY, "share", "tenant", "node", "job")
_ORDER: Final = {prefix: place for place, prefix in enumerate(FOLLOWED)}
_LAST: Final = len(FOLLOWED)
_SKIP: Final = len(subjects.state(""))
log = logging.getLogger(__name__)


class Replica:
    """Turns messages into committed writes; begins with the commit record that was read first."""

    def __init__(self, record: CommitRecord) -> None:
        self.has_resigned = False
        """The lease was given back and nobody has taken it since."""
        self.yard: bytes | None = None
        """The record of the yard, once it was seen."""
        self.epoch = 0
        """Sequence of the newest leader's epoch, once one was seen."""
        self._record = record
        self._applied: dict[str, bytes | None] = {}
        """What log records wrote to followed keys and no checkpoint has repeated yet."""

    def take(self, stored: Stored) -> Sequence[Write]:
        """The writes that a message commits, in the order in which to take them; mostly none.

        Raises RemoteProtocolError for a commit that cannot be read: what follows it makes no sense.
        """
        key = stored.subject[_SKIP:]
        prefix = key.partition(".")[0]
        if prefix == "wal":
            return self._take_commit(key, stored)
        if prefix == "leader":
            self._take_leader(key, stored)
            return ()
        if prefix not in FOLLOWED:
            return ()
        data = None if stored.is_marker else stored.data
        if key in self._applied and self._applied.pop(key) == data:
            return ()
        return (Write(key, data),)

    def _take_commit(self, key: str, stored: Stored) -> Sequence[Write]:
        if stored.is_marker:
            return ()
        try:
            number = subjects.parse_wal(key)
        except ValueError:
            log.error("not the key of a commit", extra={"key": key})
            return ()
        if self._record.is_void(number):
            return ()
        writes = in_order(decode_wal(stored))
        for write in writes:
            if write.key.startswith(FOLLOWED):
                self._applied[write.key] = write.data
        return writes

    def _take_leader(self, key: str, stored: Stored) -> None:
        if key == subjects.COMMIT_KEY:
            self._record = read_commit_record(stored)
        elif key == subjects.EPOCH_KEY:
            self.epoch = stored.sequence
        elif key == subjects.YARD_KEY:
            self.yard = stored.data
        elif key == subjects.LEASE_KEY:
            self.has_resigned = stored.is_marker


def in_order(writes: Sequence[Write]) -> list[Write]:
    """Writes of one commit as a follower takes them: a job stands in its node's books, so nodes
    come before jobs, and leave after them."""

    def place(write: Write) -> int:
        prefix = write.key.partition(".")[0]
        if prefix == "node" and write.data is None:
            return _LAST
        return _ORDER.get(prefix, _LAST)

    return sorted(writes, key=place)
