"""From chunks as they arrive to a job's output as it was written.

Rules: an attempt's chunks come out in order of `n`; bytes come out once, by their offset in their
stream; chunks count only from the node that the job names for the attempt; a later attempt's
output waits until the one before is complete or given up. No I/O: whoever holds a feed asks it
what is missing and hands it what was stored.
"""

import base64
import codecs
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NotRequired, cast

from gpuyard.client.jobs import LogLine
from gpuyard.messages import LogChunk

MAX_HELD_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_CHARACTERS: Final = 1024 * 1024
_STREAMS: Final[dict[int, Literal["stdout", "stderr"]]] = {1: "stdout", 2: "stderr"}


class ShownChunk(LogChunk):
    """A chunk as a reader is handed it."""

    rank: NotRequired[int]
    """Of the gang's member whose node sent it."""


class AttemptOutput:
    """Puts one attempt's chunks in order. `is_complete` once the end chunk's turn has come.

    A chunk's turn has come when every number before it has passed and so have the bytes before
    it, those apart that its sender cut. Chunks sent again may be cut at other places.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.is_complete = False
        self.has_begun = False
        self.held_bytes = 0
        self._next = 0
        self._delivered = {1: 0, 2: 0}
        self._held: list[tuple[int, int, int, int, LogChunk]] = []
        self._arrivals = 0

    @property
    def has_gap(self) -> bool:
        """True while chunks are held because something before them is missing."""
        return bool(self._held)

    def feed(self, chunk: LogChunk) -> list[LogChunk]:
        """Take a chunk, in any order and any number of times; returns what can be shown now."""
        self.has_begun = True
        # The arrival only keeps the heap from comparing two chunks that are the same.
        self._arrivals += 1
        key = (chunk["n"], chunk["stream"], chunk["offset"], self._arrivals)
        heapq.heappush(self._held, (*key, chunk))
        self.held_bytes += len(chunk["data"])
        return self._drain()

    def skip_gap(self) -> list[LogChunk]:
        """Give up what is missing before the held chunks; the next one says how much it was."""
        if not self._held:
            return []
        return self._pass(self._pop()) + self._drain()

    def _drain(self) -> list[LogChunk]:
        ready: list[LogChunk] = []
        while self._held and self._has_turn(self._held[0][-1]):
            ready += self._pass(self._pop())
        return ready

    def _has_turn(self, chunk: LogChunk) -> bool:
        begins = chunk["offset"] - chunk["lost_bytes"]
        return chunk["n"] <= self._next and begins <= self._delivered[chunk["stream"]]

    def _pop(self) -> LogChunk:
        chunk = heapq.heappop(self._held)[-1]
        self.held_bytes -= len(chunk["data"])
        return chunk

    def _pass(self, chunk: LogChunk) -> list[LogChunk]:
        self._next = max(self._next, chunk["n"] + 1)
        self.is_complete = self.is_complete or chunk["end"]
        stream, offset, data = chunk["stream"], chunk["offset"], chunk["data"]
        seen, end = self._delivered[stream], offset + len(data)
        if end <= seen:
            return []
        self._delivered[stream] = end
        if offset < seen:
            return [{**chunk, "offset": seen, "data": data[seen - offset :], "lost_bytes": 0}]
        return [{**chunk, "lost_bytes": offset - seen}]


Source = tuple[int, int]
"""An attempt and the rank of a gang's member in it; 0 for a job on one node."""


class OutputFeed:
    """The output of a whole job: attempt after attempt, from the right nodes only; that of a gang's
    members as it comes, each chunk with its `rank`."""

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[str, ...]] = {}
        """By attempt, in order of ranks."""
        self._outputs: dict[Source, AttemptOutput] = {}
        self._unplaced: dict[int, list[tuple[str, LogChunk]]] = {}
        self._ready: dict[int, deque[ShownChunk]] = {}
        self._given_up: set[Source] = set()
        self._bytes = 0
        """What is ready or unplaced; attempts count what they hold back themselves."""
        self.foreign = 0
        """Chunks passed over because another node sent them."""
        self.dropped = 0
        """Chunks passed over because too much was held; what is stored has them."""

    @property
    def held_bytes(self) -> int:
        return self._bytes + sum(output.held_bytes for output in self._outputs.values())

    def assign(self, attempt: int, *nodes: str) -> None:
        """The job says that this attempt is on this node, or its members by rank on these; what
        arrived before is judged now. One node of several that are known says nothing new."""
        known = self._nodes.get(attempt, ())
        if known == nodes or (len(nodes) == 1 and nodes[0] in known):
            return
        self._nodes[attempt] = nodes
        for rank in range(len(nodes)):
            self._outputs.setdefault((attempt, rank), AttemptOutput(attempt))
        for sender, chunk in self._unplaced.pop(attempt, ()):
            self._bytes -= len(chunk["data"])
            self.live(attempt, sender, chunk)

    def live(self, attempt: int, node: str, chunk: LogChunk) -> None:
        """A chunk as published by `node`."""
        known = self._nodes.get(attempt)
        if known is not None and node not in known:
            self.foreign += 1
        elif self.held_bytes > MAX_HELD_BYTES:
            self.dropped += 1
        elif known is None:
            self._bytes += len(chunk["data"])
            self._unplaced.setdefault(attempt, []).append((node, chunk))
        else:
            self._feed((attempt, known.index(node)), chunk)

    def stored(self, source: Source, chunks: Iterable[LogChunk]) -> None:
        """Chunks that the coordinator keeps of a source whose node is known."""
        for chunk in chunks:
            self._feed(source, chunk)

    def take(self) -> Iterator[ShownChunk]:
        """Everything that can be shown now, each chunk once."""
        for attempt in sorted(self._nodes):
            ready = self._ready.get(attempt)
            while ready:
                chunk = ready.popleft()
                self._bytes -= len(chunk["data"])
                yield chunk
            ranks = range(len(self._nodes[attempt]))
            if not all(self.is_settled((attempt, rank)) for rank in ranks):
                return

    def sources(self) -> list[Source]:
        """Those whose node is known, in order."""
        return sorted(self._outputs)

    def is_settled(self, source: Source) -> bool:
        """Nothing more will come of it."""
        return source in self._given_up or self._outputs[source].is_complete

    def has_begun(self, source: Source) -> bool:
        """Whether any chunk of it has been seen."""
        return self._outputs[source].has_begun

    def has_gap(self, source: Source) -> bool:
        return not self.is_settled(source) and self._outputs[source].has_gap

    def skip_gap(self, source: Source) -> None:
        """Go on after a gap that nothing can fill; the next chunk says how much is missing."""
        self._enqueue(source, self._outputs[source].skip_gap())

    def give_up(self, source: Source) -> None:
        """Show what there is of it, its gaps marked, and wait for no more."""
        output = self._outputs[source]
        while output.has_gap:
            self._enqueue(source, output.skip_gap())
        self._given_up.add(source)

    def _feed(self, source: Source, chunk: LogChunk) -> None:
        self._enqueue(source, self._outputs[source].feed(chunk))

    def _enqueue(self, source: Source, chunks: Iterable[LogChunk]) -> None:
        attempt, rank = source
        is_gang = len(self._nodes[attempt]) > 1
        ready = self._ready.setdefault(attempt, deque())
        for chunk in chunks:
            self._bytes += len(chunk["data"])
            ready.append(of_rank(chunk, rank if is_gang else None))


def of_rank(chunk: LogChunk, rank: int | None) -> ShownChunk:
    """The chunk, marked as one of a gang's member; as it is where there is no gang."""
    return cast(ShownChunk, chunk) if rank is None else {**chunk, "rank": rank}


class OutputLines:
    """Cuts a job's output into lines, that of each of a gang's members by itself."""

    def __init__(self) -> None:
        self._splitters: dict[int | None, LineSplitter] = {}

    def feed(self, chunk: ShownChunk) -> list[LogLine]:
        """The lines that this chunk completes."""
        rank = chunk.get("rank")
        splitter = self._splitters.setdefault(rank, LineSplitter())
        return [replace(line, rank=rank) for line in splitter.feed(chunk)]

    def flush(self) -> list[LogLine]:
        """What stands without a line end."""
        return [
            replace(line, rank=rank)
            for rank, splitter in self._splitters.items()
            for line in splitter.flush()
        ]


class LineSplitter:
    """Cuts chunks into lines, each stream for itself; undecodable bytes become U+FFFD.

    A line above a million characters comes in pieces.
    """

    def __init__(self) -> None:
        self._decoders = {n: codecs.getincrementaldecoder("utf-8")("replace") for n in (1, 2)}
        self._rest = {1: "", 2: ""}
        self._lost = {1: 0, 2: 0}
        self._last: dict[int, LogChunk] = {}

    def feed(self, chunk: LogChunk) -> list[LogLine]:
        """The lines that this chunk completes; an end chunk or a new attempt completes all."""
        lines: list[LogLine] = []
        if any(last["attempt"] != chunk["attempt"] for last in self._last.values()):
            lines += self.flush()
        stream = chunk["stream"]
        self._last[stream] = chunk
        self._lost[stream] += chunk["lost_bytes"]
        text = self._rest[stream] + self._decoders[stream].decode(chunk["data"])
        *whole, rest = text.split("\n")
        if len(rest) > MAX_LINE_CHARACTERS:
            # A line without an end would be copied again with every chunk.
            whole, rest = [*whole, rest], ""
        self._rest[stream] = rest
        lines += [self._line(chunk, line) for line in whole]
        return lines + (self.flush() if chunk["end"] else [])

    def flush(self) -> list[LogLine]:
        """What stands without a line end."""
        lines = []
        for stream, last in sorted(self._last.items()):
            rest = self._rest[stream] + self._decoders[stream].decode(b"", final=True)
            self._decoders[stream].reset()
            self._rest[stream] = ""
            if rest:
                lines.append(self._line(last, rest))
        self._last.clear()
        return lines

    def _line(self, chunk: LogChunk, text: str) -> LogLine:
        stream = chunk["stream"]
        lost, self._lost[stream] = self._lost[stream], 0
        return LogLine(
            stream=_STREAMS[stream],
            text=text.removesuffix("\r"),
            at=chunk["at"],
            attempt=chunk["attempt"],
            lost_bytes=lost,
        )


def parse_chunk(body: Mapping[str, Any]) -> LogChunk | None:
    """The chunk in a body that somebody published; None where it is none."""
    stream, data = body.get("stream"), body.get("data")
    if isinstance(data, str):
        # Where the body was JSON.
        try:
            data = base64.b64decode(data, validate=True)
        except ValueError:
            return None
    numbers = [body.get(key, 0) for key in ("attempt", "n", "offset", "lost_bytes")]
    if any(type(number) is not int or number < 0 for number in numbers):
        return None
    if stream not in (1, 2) or not isinstance(data, bytes) or not isinstance(body.get("at"), str):
        return None
    return {
        "v": 1,
        "attempt": numbers[0],
        "n": numbers[1],
        "stream": stream,
        "offset": numbers[2],
        "at": body["at"],
        "data": data,
        "lost_bytes": numbers[3],
        "end": body.get("end") is True,
    }
