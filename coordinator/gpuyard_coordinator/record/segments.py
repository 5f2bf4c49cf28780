"""The segments on the disk: written by a thread of their own, oldest ones deleted.

Nobody ever waits for it, and nothing that goes wrong here goes further: what cannot be written is
dropped with one line in the log, and the record goes on in another segment.
"""

import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from gpuyard_coordinator.record.frames import MAGIC, SUFFIX

MOST_WAITING: Final = 16 * 1024 * 1024
"""Bytes that wait for the disk; more are dropped."""
log = structlog.get_logger()


class Segments:
    """A folder that takes at most about `most_bytes`. Readable by its owner alone, since a record
    holds the specs of jobs with their environment."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.is_broken = False
        """What was given is not all in the segment: only a new one can go on."""
        self._folder = folder
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting = 0
        self._told: str | None = None
        """What was wrong last, so that it is said once and not each minute."""
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._thread = threading.Thread(target=self._run, name="decision-record", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """What is put from now on is a new segment."""
        self.is_broken = False
        self._queue.put(b"")

    def put(self, frames: bytes) -> None:
        """Appends them some time; never blocks."""
        if self.is_broken:
            return
        with self._lock:
            self._waiting += len(frames)
            is_full = self._waiting > MOST_WAITING
        if is_full:
            self._break("the disk does not keep up")
        self._queue.put(frames)

    def close(self, *, timeout_s: float = 1.0) -> None:
        """Writes what waits, as far as that takes no longer than this."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (frames := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= len(frames)
            try:
                self._take(frames)
            except OSError as fault:
                self._end()
                self._break(fault.strerror or str(fault))
        self._end()

    def _take(self, frames: bytes) -> None:
        if not frames:
            self._end()
            self._file, self._told = self._open(), None
        elif self._file is not None and not self.is_broken:
            self._file.write(frames)

    def _open(self) -> BinaryIO:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room()
        name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.fdopen(os.open(self._folder / f"{name}{SUFFIX}", flags, 0o600), "wb", buffering=0)
        file.write(MAGIC)
        return file

    def _make_room(self) -> None:
        """Deletes the oldest segments, so that one of a quarter of all may be added."""
        found = [(path, path.stat().st_size) for path in sorted(self._folder.glob(f"*{SUFFIX}"))]
        size = sum(bytes for _, bytes in found)
        for path, bytes in found:
            if size <= self.most_bytes * 3 // 4:
                return
            path.unlink(missing_ok=True)
            size -= bytes

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _break(self, why: str) -> None:
        self.is_broken = True
        if why != self._told:
            self._told = why
            log.warning("decisions not recorded for a while", reason=why, dir=str(self._folder))
