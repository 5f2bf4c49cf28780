"""Ships one attempt's output to the bus: cut into chunks, bounded, sent again where lost.

Rules of this file:
1. The first bytes go at once, later ones within `FLUSH_S` or when a chunk is full.
2. `n` and each stream's offsets go on without a gap over restarts of the agent, except where the
   job's limit cut: then `lost_bytes` says how much, and the last bytes of each stream come anyway.
3. While the bus is away reading stands still; the engine's file keeps the rest.
4. What the bus lost is sent again from a bounded buffer, or read again where that is gone. Chunks
   may then be cut differently: readers drop duplicates by offset.
5. The last chunk is empty and says `end`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal

import structlog

from gpuyard.errors import RuntimeFailure, Unavailable
from gpuyard.messages import MAX_LOG_CHUNK_BYTES, VERSION, LogChunk
from gpuyard_agent.core.attempt import LogMark
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.runtime import LogPiece, LogPosition

log = structlog.get_logger()
FLUSH_S: Final = 0.05
TAIL_BYTES: Final = 64 * 1024
"""Of each stream's end, kept and sent where the limit cut."""
BUFFER_BYTES: Final = 1024 * 1024
MAX_MARKS: Final = 1024
LOST_AFTER_S: Final = 8.0
"""A chunk that the bus does not show after that long is lost; its own reports lag up to 4 s."""
MAX_RESENDS: Final = 8
_RETRY_S: Final = 0.25
_MIXED_SEGMENTS: Final = 16
"""Streams that alternate more often than this in one flush are put in order by stream."""

Stream = Literal[1, 2]


@dataclass(slots=True)
class _Segment:
    stream: Stream
    offset: int
    data: bytearray


@dataclass(slots=True)
class _Sent:
    """A chunk that went out, and where reading stood before it."""

    chunk: LogChunk
    before: LogMark
    at: float


@dataclass(slots=True)
class _Tail:
    """Bytes of one stream behind the limit: the last of them, and how many there were."""

    start: int = 0
    data: bytearray = field(default_factory=bytearray)

    def add(self, offset: int, data: bytes) -> None:
        if offset != self.start + len(self.data):  # the first, or the runtime dropped some before
            self.start = offset
            self.data.clear()
        self.data += data
        surplus = len(self.data) - TAIL_BYTES
        if surplus > 0:
            del self.data[:surplus]
            self.start += surplus


class LogShipper:
    """Follows one attempt until its end marker is out; `mark` says how far it has come."""

    def __init__(
        self,
        key: AttemptKey,
        *,
        read: Callable[[LogPosition], AsyncIterator[LogPiece]],
        publish: Callable[[LogChunk], Awaitable[None]],
        mark: LogMark,
        on_progress: Callable[[LogMark], None],
        limit_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is the boot clock, on which beats are timed too."""
        self._key = key
        self._read = read
        self._publish = publish
        self._on_progress = on_progress
        self._limit = limit_bytes
        self._clock = clock
        self.mark = mark
        self._pending: list[_Segment] = []
        self._pending_bytes = 0
        self._wake = asyncio.Event()
        self._last_flush = float("-inf")
        self._tails: dict[Stream, _Tail] = {1: _Tail(), 2: _Tail()}
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._marks: deque[LogMark] = deque(maxlen=MAX_MARKS)
        self._stored = 0
        self._resends = 0
        self._send_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._resending: asyncio.Task[None] | None = None
        self.is_blocked = False
        """True while a chunk waits for the bus."""
        self.is_lacking = False
        """True while a chunk that went out is known not to be stored, so that it goes out again."""

    @property
    def is_done(self) -> bool:
        return self.mark.done

    def start(self) -> None:
        if self._task is None and not self.mark.done:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends reading; what was published stays published."""
        tasks = [task for task in (self._task, self._resending) if task is not None]
        self._task = self._resending = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def acknowledge(self, stored: int, *, sent_at: float) -> None:
        """Takes in how many chunks the bus has, as told in the answer to a beat of `sent_at`."""
        if stored > self._stored:
            self._stored, self._resends, self.is_lacking = stored, 0, False
        while self._sent and self._sent[0].chunk["n"] < self._stored:
            self._forget_oldest()
        oldest = self._sent[0].at if self._sent else None
        overdue = oldest is not None and oldest < sent_at - LOST_AFTER_S * (1 + self._resends)
        if overdue and self._resending is None and self._resends < MAX_RESENDS:
            self._resends += 1
            self.is_lacking = True
            self._resending = asyncio.create_task(self._resend())

    async def _run(self) -> None:
        while not self.mark.done:
            try:
                await self._follow()
            except RuntimeFailure as fault:
                log.info("logs interrupted", job=str(self._key), fault=str(fault))
                await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        """Reads from the mark to the end, then says so; what was pending is read again."""
        self._pending, self._pending_bytes = [], 0
        self._tails = {1: _Tail(), 2: _Tail()}
        is_cut = self.mark.published >= self._limit
        position = LogPosition(self.mark.stdout, self.mark.stderr)
        flusher: asyncio.Task[None] | None = None
        try:
            async for piece in self._read(position):
                if self.mark.published + self._pending_bytes >= self._limit:
                    if is_cut:
                        self._tails[_stream(piece)].add(piece.offset, piece.data)
                    else:
                        await self._announce_cut(piece)
                    is_cut = True
                    continue
                self._take(piece)
                if flusher is None:
                    flusher = asyncio.create_task(self._flush_in_time())
                if self._pending_bytes >= MAX_LOG_CHUNK_BYTES:
                    await self._flush()
            await self._flush()  # after this the flusher is idle: ending it loses nothing
        finally:
            if flusher is not None:
                flusher.cancel()
                await asyncio.gather(flusher, return_exceptions=True)
        await self._finish()

    def _take(self, piece: LogPiece) -> None:
        last = self._pending[-1] if self._pending else None
        stream = _stream(piece)
        if last is not None and last.stream == stream and _end(last) == piece.offset:
            last.data += piece.data
        else:
            self._pending.append(_Segment(stream, piece.offset, bytearray(piece.data)))
        self._pending_bytes += len(piece.data)
        self._wake.set()

    async def _flush_in_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            delay = self._last_flush + FLUSH_S - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            await self._flush()

    async def _flush(self) -> None:
        async with self._send_lock:
            self._wake.clear()
            segments, self._pending, self._pending_bytes = self._pending, [], 0
            if len(segments) > _MIXED_SEGMENTS:
                segments = _by_stream(segments)
            for segment in segments:
                data, offset = bytes(segment.data), segment.offset
                for start in range(0, len(data), MAX_LOG_CHUNK_BYTES):
                    part = data[start : start + MAX_LOG_CHUNK_BYTES]
                    await self._send(segment.stream, offset + start, part)
            self._last_flush = asyncio.get_running_loop().time()

    async def _announce_cut(self, piece: LogPiece) -> None:
        """The marker where the limit cut: an empty chunk whose `lost_bytes` begin the gap."""
        await self._flush()
        async with self._send_lock:
            await self._send(_stream(piece), piece.offset + len(piece.data), b"")

    async def _finish(self) -> None:
        async with self._send_lock:
            for stream, tail in self._tails.items():
                if tail.data:
                    await self._send(stream, tail.start, bytes(tail.data))
            await self._send(1, self.mark.stdout, b"", end=True)

    async def _send(self, stream: Stream, offset: int, data: bytes, *, end: bool = False) -> None:
        """Publishes one chunk, however long the bus is away, and moves the mark behind it."""
        before = self.mark
        reached = before.stdout if stream == 1 else before.stderr
        chunk: LogChunk = {
            "v": VERSION,
            "attempt": self._key.attempt,
            "n": before.chunks,
            "stream": stream,
            "offset": offset,
            "at": _now(),
            "data": data,
            "lost_bytes": max(0, offset - reached),
            "end": end,
        }
        await self._publish_until_sent(chunk)
        moved = {"stdout" if stream == 1 else "stderr": offset + len(data)}
        self.mark = replace(
            before,
            chunks=before.chunks + 1,
            published=before.published + len(data),
            done=end,
            **moved,
        )
        self._marks.append(before)
        self._sent.append(_Sent(chunk, before, self._clock()))
        self._sent_bytes += len(data)
        while self._sent_bytes > BUFFER_BYTES or len(self._sent) > MAX_MARKS:
            self._forget_oldest()
        self._on_progress(self.mark)

    async def _publish_until_sent(self, chunk: LogChunk) -> None:
        while True:
            with contextlib.suppress(Unavailable):
                await self._publish(chunk)
                self.is_blocked = False
                return
            self.is_blocked = True
            await asyncio.sleep(_RETRY_S)

    async def _resend(self) -> None:
        """From the first chunk that the bus lacks: out of the buffer, else by reading again."""
        try:
            first = self._sent[0].chunk["n"] if self._sent else self.mark.chunks
            if first <= self._stored:
                async with self._send_lock:
                    for sent in [s for s in self._sent if s.chunk["n"] >= self._stored]:
                        await self._publish_until_sent(sent.chunk)
                        sent.at = self._clock()
                return
            await self._read_again()
        finally:
            self._resending = None

    async def _read_again(self) -> None:
        mark = next((m for m in reversed(self._marks) if m.chunks <= self._stored), LogMark())
        log.info("logs read again", job=str(self._key), chunk=mark.chunks)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._sent.clear()
        self._sent_bytes = 0
        self.mark = mark
        self.start()

    def _forget_oldest(self) -> None:
        self._sent_bytes -= len(self._sent.popleft().chunk["data"])


def _stream(piece: LogPiece) -> Stream:
    return 1 if piece.stream == 1 else 2


def _end(segment: _Segment) -> int:
    return segment.offset + len(segment.data)


def _by_stream(segments: list[_Segment]) -> list[_Segment]:
    """The segments of one flush, those of a stream joined where nothing lies between them."""
    joined: list[_Segment] = []
    for stream in (1, 2):
        for segment in (s for s in segments if s.stream == stream):
            last = joined[-1] if joined else None
            if last is not None and last.stream == stream and _end(last) == segment.offset:
                last.data += segment.data
            else:
                joined.append(segment)
    return joined


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
