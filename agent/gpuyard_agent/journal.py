"""The node's memory on disk: one line of JSON per record, appended, replayed, compacted.

Rules of this file:
1. A record is with the kernel when `append` returns, so it outlives the process; it is on the disk
   when `sync` returns, so it outlives the host. Only what a beat is to say needs the second.
2. A last line that was cut off is dropped. Damage before it, or no file, is no journal: the caller
   adopts what runs and trusts nothing that it was told before.
3. A write that failed leaves the file as it was.
4. One agent at a time per folder (`DirectoryLock`).
"""

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from gpuyard.errors import GpuyardError

Record = dict[str, Any]
VERSION: Final = 1
COMPACT_BYTES: Final = 1024 * 1024
"""Growth since the last compaction that asks for the next one."""
_HEADER: Final[Record] = {"k": "journal", "v": VERSION}


class JournalError(GpuyardError):
    """The folder or the journal cannot be used; one line that says why."""


class Journal(Protocol):
    """Where records are kept."""

    @property
    def is_synced(self) -> bool: ...

    @property
    def wants_compaction(self) -> bool: ...

    def append(self, records: Iterable[Record]) -> None:
        """Writes them as one; raises JournalError with the file unchanged."""

    async def sync(self) -> None:
        """Returns when everything appended before is on the disk; raises JournalError."""

    def compact(self, snapshot: Iterable[Record]) -> None:
        """Replaces all records by those of `snapshot`, durably."""

    def close(self) -> None: ...


class MemoryJournal:
    """For nodes whose attempts end with the agent (large simulations): nothing is remembered."""

    is_synced = True
    wants_compaction = False

    def append(self, records: Iterable[Record]) -> None:
        return None

    async def sync(self) -> None:
        return None

    def compact(self, snapshot: Iterable[Record]) -> None:
        return None

    def close(self) -> None:
        return None


class FileJournal:
    """A journal in `<directory>/journal`, readable by its owner alone: jobs' env may be secret."""

    def __init__(self, directory: Path, *, is_durable: bool = True) -> None:
        """Without `is_durable` it outlives the process and not the host: for a memory of what ends
        with the host as well, `sync` has nothing to do."""
        self.path = directory / "journal"
        self._is_durable = is_durable
        self._fd = -1
        self._size = 0
        self._compacted_size = 0
        self._synced_size = 0
        self._syncing: asyncio.Task[None] | None = None

    def open(self) -> list[Record] | None:
        """The records kept so far, or None where there is no journal that can be trusted."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            records = self._read()
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = os.fstat(self._fd).st_size
            if not self._size:
                self.append([_HEADER])
        except OSError as fault:
            raise JournalError(f"cannot use {self.path}: {fault.strerror}") from fault
        self._compacted_size = self._size
        return records

    @property
    def is_synced(self) -> bool:
        return not self._is_durable or self._synced_size >= self._size

    @property
    def wants_compaction(self) -> bool:
        grown = self._size - self._compacted_size
        return grown > max(COMPACT_BYTES, self._compacted_size) and self._syncing is None

    def append(self, records: Iterable[Record]) -> None:
        data = b"".join(map(_line, records))
        if not data:
            return
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError(None, "the disk is full")
        except OSError as fault:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise JournalError(f"cannot write {self.path}: {fault.strerror}") from fault
        self._size += len(data)

    async def sync(self) -> None:
        while not self.is_synced:
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)

    def compact(self, snapshot: Iterable[Record]) -> None:
        fresh = self.path.with_name("journal.new")
        data = b"".join(map(_line, (_HEADER, *snapshot)))
        try:
            with open(fresh, "wb", opener=_private) as file:
                file.write(data)
                file.flush()
                if self._is_durable:
                    os.fsync(file.fileno())
            os.replace(fresh, self.path)
            if self._is_durable:
                _sync_directory(self.path.parent)
            os.close(self._fd)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND)
        except OSError as fault:
            raise JournalError(f"cannot write {self.path}: {fault.strerror}") from fault
        self._size = self._compacted_size = self._synced_size = len(data)

    def set_aside(self, suffix: str) -> None:
        """Starts an empty journal; the old one stays beside it as `journal.<suffix>`."""
        os.close(self._fd)
        os.replace(self.path, self.path.with_name(f"journal.{suffix}"))
        self._synced_size = 0
        self.open()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _sync(self) -> None:
        size = self._size
        try:
            await asyncio.to_thread(os.fsync, self._fd)
        except OSError as fault:
            raise JournalError(f"cannot write {self.path}: {fault.strerror}") from fault
        finally:
            self._syncing = None
        self._synced_size = max(self._synced_size, size)

    def _read(self) -> list[Record] | None:
        if not self.path.exists():
            return None
        data = self.path.read_bytes()
        records, good = _parse(data)
        if good < 0 or not records:
            os.replace(self.path, self.path.with_name("journal.damaged"))
            return None
        if records[0].get("k") != "journal" or records[0].get("v") != VERSION:
            raise JournalError(f"{self.path} was written by an agent of another kind or version")
        if good < len(data):
            os.truncate(self.path, good)
        return records[1:] or None


class DirectoryLock:
    """Held while an agent uses a folder; a second agent there is told so in one line."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._fd = -1

    def acquire(self) -> None:
        """Raises JournalError where another agent holds it; the kernel frees it at its end."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as fault:
            raise JournalError(f"cannot use {self._path.parent}: {fault.strerror}") from fault
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip()
            self.release()
            who = f" (pid {holder})" if holder else ""
            raise JournalError(f"another agent{who} uses {self._path.parent}") from fault
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line(record: Record) -> bytes:
    return (
        json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
        + b"\n"
    )


def _parse(data: bytes) -> tuple[list[Record], int]:
    """The records, and the bytes that hold them whole; -1 where the damage is not at the end."""
    records: list[Record] = []
    good = 0
    for line in _split(data):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict):
            return records, good if good + len(line) == len(data) else -1
        records.append(record)
        good += len(line)
    return records, good


def _split(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
