"""Reading a container's logs: every byte once and in order, from any position, to the very end.

Engines keep messages and know no byte positions, and a followed log is no proof of completeness:
around a container's end engines cut it short (seen: 22,313 of 23,893 bytes) or leave it hanging.
So a position is found by reading from the beginning and passing over what was taken, and the last
message that was followed is compared with the last one kept; where they differ the log is read
once more.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from gpuyard_agent.core.containers import Exit
from gpuyard_agent.docker_runtime.failures import EngineRefused, EngineUnavailable
from gpuyard_agent.docker_runtime.streams import EngineStream, StreamBroken
from gpuyard_agent.runtime import LogPiece, LogPosition

OpenLog = Callable[[str], Awaitable[EngineStream]]
"""Opens `/containers/<id>/logs?<query>` of one container."""

SILENT_S: Final = 2.0
"""How long a followed log may stay silent after its container's end before it is given up."""
ROTATED_S: Final = 10.0
"""How long a log may stay silent short of the position asked for before it is held to be cut."""
_SETTLE_S: Final = 2.0
_RETRY_S: Final = 0.2
_HEADER: Final = struct.Struct(">BxxxL")
_SYSTEM_ERROR: Final = 3
_GONE: Final = (404, 409)
"""No such container, and one that is marked for removal."""

Mark = tuple[int, bytes]
"""Stream and time of a message; the engine's times have nanoseconds."""


class MessageDecoder:
    """An engine's multiplexed log with timestamps, fed in pieces of any size."""

    def __init__(self) -> None:
        self.last: Mark | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The messages that `data` completes, runs of one stream joined; times are taken off.

        Raises `StreamBroken` where the engine reports a fault of its own inside the stream.
        """
        buffer = self._buffer
        buffer += data
        runs: list[tuple[int, list[bytes]]] = []
        at, length = 0, len(buffer)
        while length - at >= 8:
            stream, size = _HEADER.unpack_from(buffer, at)
            begin, end = at + 8, at + 8 + size
            if end > length:
                break
            at = end
            if stream == _SYSTEM_ERROR:
                raise StreamBroken(bytes(buffer[begin:end]).decode(errors="replace"))
            space = buffer.find(b" ", begin, begin + 40)
            if space >= 0:
                self.last = (stream, bytes(buffer[begin:space]))
                begin = space + 1
            if not runs or runs[-1][0] != stream:
                runs.append((stream, []))
            runs[-1][1].append(bytes(buffer[begin:end]))
        del buffer[:at]
        return [(stream, b"".join(parts)) for stream, parts in runs]


class RawDecoder:
    """The log of a container with a terminal: bytes of one stream, without messages or times."""

    last: Mark | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        return [(1, data)]


class LogReader:
    """One reading of one container's log."""

    def __init__(self, open_log: OpenLog, *, tty: bool, position: LogPosition) -> None:
        self._open = open_log
        self._tty = tty
        self._taken = {1: position.stdout, 2: position.stderr}
        self._passed = {1: 0, 2: 0}
        """Bytes of the reading at hand that came by, taken before or not."""
        self._reading_since: float | None = None
        self._last: Mark | None = None

    async def pieces(self, exit: "asyncio.Future[Exit]") -> AsyncGenerator[LogPiece, None]:
        """Everything after the position, until `exit` is there and the log is complete.

        A container that is gone ends it. Raises EngineRefused where the log cannot be read.
        """
        delay = _RETRY_S
        while True:
            over = exit.done()
            whole = False
            try:
                async with aclosing(self._reading(exit, follow=not over)) as pieces:
                    async for piece in pieces:
                        delay = _RETRY_S
                        yield piece
                whole = over or await self._followed_to_its_end(exit)
            except StreamBroken:
                whole = over and delay > 1  # a log that is broken itself reads no better for ever
            except EngineUnavailable:
                pass
            except EngineRefused as refused:
                if refused.status not in _GONE:
                    raise
                return
            if whole:
                return
            if not exit.done() or over:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _reading(
        self, exit: "asyncio.Future[Exit]", *, follow: bool
    ) -> AsyncGenerator[LogPiece, None]:
        """What one answer of the engine brings beyond what was taken."""
        stream = await self._open(_query(follow=follow, timestamps=not self._tty))
        guard = asyncio.create_task(self._end_silence(stream, exit)) if follow else None
        decoder = RawDecoder() if self._tty else MessageDecoder()
        self._passed, self._last = {1: 0, 2: 0}, None
        try:
            while data := await self._read(stream):
                for number, run in decoder.feed(data):
                    piece = self._beyond(number, run)
                    if piece is not None:
                        yield piece
                self._last = decoder.last
        finally:
            stream.close()
            if guard is not None:
                guard.cancel()

    async def _read(self, stream: EngineStream) -> bytes:
        catching_up = any(self._passed[number] < self._taken[number] for number in (1, 2))
        self._reading_since = asyncio.get_running_loop().time()
        try:
            if not catching_up:
                return await stream.read()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROTATED_S):
                    return await stream.read()
            # The engine dropped the log's beginning: what it still has of it counts as taken.
            self._passed = dict(self._taken)
            return await stream.read()
        finally:
            self._reading_since = None

    def _beyond(self, number: int, run: bytes) -> LogPiece | None:
        begin = self._passed[number]
        self._passed[number] = begin + len(run)
        new = self._passed[number] - self._taken[number]
        if new <= 0:
            return None
        offset = self._taken[number]
        self._taken[number] += new
        return LogPiece(number, offset, run[-new:])

    async def _followed_to_its_end(self, exit: "asyncio.Future[Exit]") -> bool:
        """True where the container is over and what was followed is all that the engine kept."""
        await asyncio.wait({exit}, timeout=_SETTLE_S)
        if self._tty or not exit.done():
            return False
        stream = await self._open(_query(follow=False, timestamps=True, tail="1"))
        try:
            decoder = MessageDecoder()
            while data := await stream.read():
                decoder.feed(data)
        finally:
            stream.close()
        return decoder.last == self._last

    async def _end_silence(self, stream: EngineStream, exit: "asyncio.Future[Exit]") -> None:
        """Cuts a followed log that hangs although its container is over."""
        await asyncio.wait({exit})
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENT_S / 4)
            since = self._reading_since
            if since is not None and loop.time() - since > SILENT_S:
                stream.close()
                return


def _query(*, follow: bool, timestamps: bool, tail: str = "all") -> str:
    return f"stdout=1&stderr=1&follow={follow:d}&timestamps={timestamps:d}&tail={tail}"
