"""A job's bytes to our own stdout and stderr, unchanged, without ever holding up the event loop."""

import asyncio
import threading
from collections import deque
from typing import Final

from gpuyard.cli.streams import write_all

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024


class OutputWriter:
    """Writes in order on a thread of its own, since a pipe may block for as long as its reader.

    `write` waits while too much is under way, and raises what writing raised: BrokenPipeError
    where the reader has gone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._room.set()
        self._work = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._fault: OSError | None = None
        self._is_ending = False
        # A daemon: a reader that never reads again must not keep the process from leaving.
        self._thread = threading.Thread(target=self._run, name="output-writer", daemon=True)
        self._thread.start()

    async def write(self, descriptor: int, data: bytes) -> None:
        with self._work:
            self._waiting.append((descriptor, data))
            self._bytes += len(data)
            if self._bytes > MAX_WAITING_BYTES:
                self._room.clear()
            self._work.notify()
        await self._room.wait()
        self._raise_fault()

    async def drain(self) -> None:
        """Return when everything is written."""
        while self._bytes and self._fault is None:
            self._room.clear()
            with self._work:
                self._work.notify()
                if not self._bytes:
                    break
            await self._room.wait()
        self._raise_fault()

    def end(self) -> None:
        """Let the thread go once it has written what it was given."""
        with self._work:
            self._is_ending = True
            self._work.notify()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._waiting and not self._is_ending:
                    self._work.wait()
                if not self._waiting:
                    return
                descriptor, data = self._waiting.popleft()
            try:
                write_all(descriptor, data)
            except OSError as fault:
                self._fault = fault
            with self._work:
                self._bytes -= len(data)
                has_room = self._fault is not None or self._bytes <= MAX_WAITING_BYTES // 2
            if has_room:
                self._tell()
            if self._fault is not None:
                return

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._room.set)
        except RuntimeError:
            # The loop has closed: nobody waits any more.
            return
