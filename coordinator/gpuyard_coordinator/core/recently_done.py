"""The jobs that ended of late, as their records are stored."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from gpuyard.messages import JobDocument
from gpuyard.model.ids import JobKey
from gpuyard_coordinator import fast_codec

MOST: Final = 5_000
MOST_BYTES: Final = 32 * 1024 * 1024
"""Whichever is reached first; older ends are looked up in the store."""


@dataclass(slots=True)
class RecentlyDone:
    """Packed, since hardly any is ever looked at; the one that ended last is kept longest."""

    _records: OrderedDict[JobKey, bytes] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._records)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._records

    def get(self, key: JobKey) -> JobDocument | None:
        """The record, unpacked anew each time; None where no job of that key ended of late."""
        packed = self._records.get(key)
        return None if packed is None else cast(JobDocument, fast_codec.decode_own(packed))

    def put(self, key: JobKey, packed: bytes) -> None:
        """A job is over. Takes the place of a record that has its key."""
        self.discard(key)
        self._records[key] = packed
        self._bytes += len(packed)
        while len(self._records) > MOST or self._bytes > MOST_BYTES:
            self.discard(next(iter(self._records)))

    def discard(self, key: JobKey) -> None:
        """A job that did not end of late is no error."""
        packed = self._records.pop(key, None)
        if packed is not None:
            self._bytes -= len(packed)
