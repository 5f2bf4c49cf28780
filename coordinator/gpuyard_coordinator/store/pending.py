"""Writes that are committed but not at their keys yet. Pure.

A checkpoint may be cut short between any two of its batches, and new commits may come in between,
because of three rules. A log record is deleted only together with or after every key that it or an
older record writes; records are deleted oldest first, so that those left are the newest; and a key
gets its newest write. Then for every key, at any moment: if a record that is left writes it, so
does the newest one that ever wrote it, and replaying them in order ends with that write. If none
does, the key left this map with its newest write, which the bucket has. Either way replaying what
is left over what the bucket has gives the state, also over keys that are newer than a record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuyard_coordinator.store.records import WalNumber, Write

MESSAGE_BYTES: Final = 160
"""What a message of a batch takes besides its key and its data, about."""
_WRITTEN_ONCE: Final = "out."
"""Keys that carry a number which is never used again: before its first write such a key is in no
bucket, so that a record which was relayed before the checkpoint leaves no trace."""


class _Entry(NamedTuple):
    write: Write
    since: WalNumber | None
    """The oldest log record left that writes the key; None where no record does."""
    is_new: bool
    """The bucket cannot have the key yet."""


@dataclass(frozen=True, slots=True)
class Part:
    """One batch of a checkpoint: keys, and the log records covered once they are stored."""

    writes: list[Write]
    logs: list[WalNumber]
    is_whole: bool
    """Nothing is pending after it."""

    @property
    def is_empty(self) -> bool:
        return not self.writes and not self.logs


class Pending:
    """The newest write of each key, in the order of its oldest log record, and those records."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._logs: list[WalNumber] = []
        self.taken_over = 0
        """How many of the records another leader wrote; they are the oldest."""
        self.bytes = 0

    def __len__(self) -> int:
        """Messages that a checkpoint would have."""
        return len(self._entries) + len(self._logs)

    def copy(self) -> "Pending":
        other = Pending()
        other._entries, other._logs = dict(self._entries), list(self._logs)
        other.taken_over, other.bytes = self.taken_over, self.bytes
        return other

    @property
    def last_number(self) -> int:
        """The number of the newest record; 0 where there is none."""
        return self._logs[-1][1] if self._logs else 0

    def get(self, key: str) -> Write | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.write

    def writes(self, prefix: str = "") -> Iterator[Write]:
        """The newest writes to keys that begin with `prefix`."""
        return (e.write for key, e in self._entries.items() if key.startswith(prefix))

    def add(
        self, writes: Sequence[Write], log: WalNumber | None, *, is_replay: bool = False
    ) -> None:
        """Note a commit, whose record `log` is stored; None is for writes that no record has.

        In a replay any key may be in the bucket, from a checkpoint that was cut short.
        """
        if log is not None:
            self._logs.append(log)
            self.taken_over += is_replay
        for write in writes:
            entry = self._entries.get(write.key)
            if entry is None:
                is_new = write.data is not None and write.key.startswith(_WRITTEN_ONCE)
                self._append(_Entry(write, log, is_new and not is_replay))
            elif write.data is None and entry.is_new:
                self._remove(write.key)
            elif entry.since is None:
                # To the end: the order of the keys is that of their oldest records.
                self._remove(write.key)
                self._append(_Entry(write, log, entry.is_new))
            else:
                self._entries[write.key] = entry._replace(write=write)
                self.bytes += write.size - entry.write.size

    def add_void(self, logs: Sequence[WalNumber]) -> None:
        """Note records that say nothing and only have to be deleted."""
        self._logs += logs
        self.taken_over += len(logs)

    def part(self, *, max_messages: int, max_bytes: int) -> Part:
        """The oldest writes that fit one batch; never empty while anything is pending."""
        entries = list(self._entries.values())
        writes = [entry.write for entry in entries]
        count = self._fitting(writes, max_messages, max_bytes)
        left = next((entry.since for entry in entries[count:] if entry.since), None)
        covered = self._logs if left is None else self._logs[: self._logs.index(left)]
        logs = covered[: max_messages - count]
        return Part(
            writes=writes[:count],
            logs=logs,
            is_whole=count == len(entries) and len(logs) == len(self._logs),
        )

    def note_sent(self, part: Part) -> None:
        """From here on the bucket may have these keys, whatever is heard of the batch."""
        for write in part.writes:
            entry = self._entries.get(write.key)
            if entry is not None and entry.is_new:
                self._entries[write.key] = entry._replace(is_new=False)

    def note_stored(self, part: Part) -> None:
        for write in part.writes:
            self._remove(write.key)
        del self._logs[: len(part.logs)]
        self.taken_over = max(0, self.taken_over - len(part.logs))

    def _append(self, entry: _Entry) -> None:
        self._entries[entry.write.key] = entry
        self.bytes += entry.write.size

    def _remove(self, key: str) -> None:
        self.bytes -= self._entries.pop(key).write.size

    def _fitting(self, writes: Sequence[Write], max_messages: int, max_bytes: int) -> int:
        """How many of all that are pending fit one batch."""
        if self.bytes + MESSAGE_BYTES * len(writes) > max_bytes:
            size = 0
            for count, write in enumerate(writes[:max_messages]):
                size += write.size + MESSAGE_BYTES
                if count and size > max_bytes:
                    return count
        return min(len(writes), max_messages)
