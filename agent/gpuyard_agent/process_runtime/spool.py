"""Bounds an output file that its writer appends to: its middle is cut out, its offsets stay.

Nobody stands between a command and its files, so they cannot be rotated under it. A hole is punched
instead, which gives the blocks back to the disk. The head is never cut, since it may still have to
be shipped; of what follows the last `KEPT_BYTES` stay. A file beside it, `<name>.cut`, says where
the hole ends, and is written first. Where the file system knows no holes nothing is cut.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

from gpuyard_agent.process_runtime.shim import write_whole

KEPT_BYTES: Final = 1024 * 1024
_WORTH_BYTES: Final = 1024 * 1024
"""Less than that is not cut."""
_BLOCK_BYTES: Final = 64 * 1024
"""Holes begin and end at multiples of it: parts of a block would only be zeroed."""
_PUNCH_KEEP_SIZE: Final = 0x2 | 0x1
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE of linux/falloc.h."""


class Spool:
    """One output file."""

    def __init__(self, path: Path, *, head_bytes: int) -> None:
        self._path = path
        self._mark = path.with_name(f"{path.name}.cut")
        self._begin = -(-head_bytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def trim(self) -> None:
        """Cuts what is surplus now; raises OSError where the file cannot be written."""
        end = (self._path.stat().st_size - KEPT_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES
        if end - self._begin < _WORTH_BYTES:
            return
        before = max(self._begin, self._end())
        if end - before < _WORTH_BYTES:
            return
        write_whole(self._mark, str(end))
        fd = os.open(self._path, os.O_WRONLY)
        try:
            _punch(fd, before, end - before)
        finally:
            os.close(fd)

    def readable(self, offset: int, size: int) -> tuple[int, int]:
        """Where to read from instead of `offset`, and how many of `size` bytes at most."""
        if offset + size <= self._begin:
            return offset, size
        end = self._end()
        if end <= offset:
            return offset, size
        return (end, size) if offset >= self._begin else (offset, self._begin - offset)

    def _end(self) -> int:
        try:
            return int(self._mark.read_text())
        except (OSError, ValueError):
            return 0


def _punch(fd: int, begin: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int(_PUNCH_KEEP_SIZE), ctypes.c_int64(begin), ctypes.c_int64(size))
    if libc.fallocate64(ctypes.c_int(fd), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
