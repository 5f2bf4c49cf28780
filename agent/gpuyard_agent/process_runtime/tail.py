"""Wakes whoever follows a growing file, the moment it grows.

inotify through libc: no polling while nothing is written, wake-ups within a millisecond, and a
restarted agent goes on from a byte offset, which pipes through the shell would not allow (and a
dead agent would block the command on a full pipe). Where inotify is not to be had, followers look
every `POLL_S`.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

POLL_S: Final = 0.05
SLOW_POLL_S: Final = 5.0
"""Beside inotify, against an event that was lost when the kernel's queue overflowed."""
_MASK: Final = 0x2 | 0x8 | 0x80
"""IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO."""
_EVENT: Final = struct.Struct("iIII")


class Growth:
    """An inotify instance shared by all files of one runtime; to be used on one event loop."""

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        self._events: dict[int, set[asyncio.Event]] = {}

    def open(self) -> None:
        """Starts listening; without inotify every `wait` is a short sleep instead."""
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            self._fd = -1
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def watch(self, path: Path, event: asyncio.Event) -> int:
        """Sets `event` whenever the file grows, or a file is renamed into the folder; the number
        is for `unwatch`, -1 where it cannot."""
        if self._fd < 0 or self._libc is None:
            return -1
        watch = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _MASK))
        if watch >= 0:  # else gone already, or the user's limit of watches is reached
            self._events.setdefault(watch, set()).add(event)
        return watch

    def unwatch(self, watch: int, event: asyncio.Event) -> None:
        """Ends one follower's interest; the kernel knows one watch per file, shared by all."""
        events = self._events.get(watch, set())
        events.discard(event)
        if events or self._events.pop(watch, None) is None:
            return
        if self._fd >= 0 and self._libc is not None:
            self._libc.inotify_rm_watch(self._fd, watch)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError as fault:
            if fault.errno not in (errno.EAGAIN, errno.EINTR):
                self.close()
            return
        offset = 0
        while offset + _EVENT.size <= len(data):
            watch, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size + length
            for event in self._events.get(watch, ()):
                event.set()


async def wait_any(event: asyncio.Event, *, is_watched: bool) -> None:
    """Returns when `event` is set, or after the polling interval that is right without it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), SLOW_POLL_S if is_watched else POLL_S)
    event.clear()
