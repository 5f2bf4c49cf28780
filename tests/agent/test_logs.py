"""Shipping output: at once, in order, bounded, sent again where the bus lost it."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from gpuyard.errors import RuntimeFailure, Unavailable
from gpuyard.messages import MAX_LOG_CHUNK_BYTES, LogChunk
from gpuyard_agent.core.attempt import LogMark
from gpuyard_agent.logs import FLUSH_S, LOST_AFTER_S, TAIL_BYTES, LogShipper
from gpuyard_agent.runtime import LogPiece, LogPosition
from tests.support.agent_builders import key

pytestmark = pytest.mark.looptime
KIB = 1024


class Output:
    """What an engine keeps of two streams; followed until `close`."""

    def __init__(self) -> None:
        self.streams = {1: bytearray(), 2: bytearray()}
        self.order: list[tuple[int, int, int]] = []
        self.is_closed = False
        self.fails = 0
        self._grown = asyncio.Event()

    def say(self, data: bytes, stream: int = 1) -> None:
        offset = len(self.streams[stream])
        self.streams[stream] += data
        self.order.append((stream, offset, len(data)))
        self._grown.set()

    def close(self) -> None:
        self.is_closed = True
        self._grown.set()

    async def read(self, position: LogPosition) -> AsyncIterator[LogPiece]:
        taken = {1: position.stdout, 2: position.stderr}
        index = 0
        while True:
            if self.fails:
                self.fails -= 1
                raise RuntimeFailure("engine away", temporary=True)
            while index < len(self.order):
                stream, offset, length = self.order[index]
                index += 1
                start = max(offset, taken[stream])
                data = bytes(self.streams[stream][start : offset + length])
                if data:
                    yield LogPiece(stream, start, data)
            if self.is_closed:
                return
            self._grown.clear()
            await self._grown.wait()


class Wire:
    """Where chunks arrive, unless it is cut or loses them."""

    def __init__(self) -> None:
        self.chunks: list[LogChunk] = []
        self.times: list[float] = []
        self.is_cut = False
        self.loses: Callable[[LogChunk], bool] = lambda chunk: False

    async def publish(self, chunk: LogChunk) -> None:
        if self.is_cut:
            raise Unavailable("the bus is away")
        if not self.loses(chunk):
            self.chunks.append(chunk)
            self.times.append(asyncio.get_running_loop().time())

    def text(self, stream: int = 1) -> bytes:
        """What a reader makes of it: duplicates dropped by offset, gaps as dots."""
        text = bytearray()
        for chunk in sorted(self.chunks, key=lambda c: c["offset"]):
            if chunk["stream"] == stream and chunk["data"]:
                text += b"." * (chunk["offset"] - len(text))
                text[chunk["offset"] :] = (
                    chunk["data"] + text[chunk["offset"] + len(chunk["data"]) :]
                )
        return bytes(text)

    @property
    def ends(self) -> list[bool]:
        return [chunk["end"] for chunk in self.chunks]


def shipper(
    output: Output, wire: Wire, *, mark: LogMark | None = None, limit: int = 1024 * KIB
) -> LogShipper:
    made = LogShipper(
        key(),
        read=output.read,
        publish=wire.publish,
        mark=mark or LogMark(),
        on_progress=lambda mark: None,
        limit_bytes=limit,
        clock=asyncio.get_running_loop().time,
    )
    made.start()
    return made


async def until(is_so: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_the_first_bytes_go_at_once_and_later_ones_in_time() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    began = asyncio.get_running_loop().time()
    output.say(b"a")
    await asyncio.sleep(0.001)
    assert wire.text() == b"a"
    for letter in b"bcdef":
        output.say(bytes([letter]))
        await asyncio.sleep(0.005)
    await asyncio.sleep(FLUSH_S)
    assert wire.text() == b"abcdef"
    assert len(wire.chunks) <= 3
    assert wire.times[1] - began <= FLUSH_S + 0.01
    await made.stop()


async def test_chunks_are_numbered_bounded_and_ended_once() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    data = bytes(range(256)) * 1000
    for start in range(0, len(data), 40_000):
        output.say(data[start : start + 40_000])
    output.say(b"error", 2)
    output.close()
    await until(lambda: made.is_done)
    assert wire.text() == data
    assert wire.text(2) == b"error"
    assert all(len(chunk["data"]) <= MAX_LOG_CHUNK_BYTES for chunk in wire.chunks)
    assert [chunk["n"] for chunk in wire.chunks] == list(range(len(wire.chunks)))
    assert wire.ends == [False] * (len(wire.chunks) - 1) + [True]
    assert made.mark.chunks == len(wire.chunks)
    assert (made.mark.stdout, made.mark.stderr, made.mark.done) == (len(data), 5, True)


async def test_no_output_is_one_end() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    output.close()
    await until(lambda: made.is_done)
    assert wire.ends == [True]


async def test_alternating_streams_keep_their_order_where_they_are_few() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    for i in range(6):
        output.say(b"%d" % i, 1 + i % 2)
    await until(lambda: len(wire.text()) == 3 and len(wire.text(2)) == 3)
    assert [chunk["data"] for chunk in wire.chunks] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    await made.stop()


async def test_streams_that_alternate_wildly_do_not_make_a_chunk_per_line() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    for i in range(10_000):
        output.say(b"line\n", 1 + i % 2)
    output.close()
    await until(lambda: made.is_done)
    assert wire.text() == wire.text(2) == b"line\n" * 5000
    assert len(wire.chunks) < 50


async def test_over_the_limit_it_is_cut_with_a_marker_and_the_tail_kept() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire, limit=256 * KIB)
    line = b"0123456789abcde\n"
    for _ in range(64):
        output.say(line * 1024)  # 16 KiB each, 1 MiB in all
        await asyncio.sleep(0.06)
    output.say(b"the last words")
    output.close()
    await until(lambda: made.is_done)
    everything = bytes(output.streams[1])
    text = wire.text()
    assert text[: 256 * KIB] == everything[: 256 * KIB]
    assert text.endswith(b"the last words")
    assert text[-TAIL_BYTES:] == everything[-TAIL_BYTES:]
    lost = sum(chunk["lost_bytes"] for chunk in wire.chunks)
    carried = sum(len(chunk["data"]) for chunk in wire.chunks)
    assert lost + carried == len(everything)
    marker = next(chunk for chunk in wire.chunks if chunk["lost_bytes"])
    assert (marker["data"], marker["end"]) == (b"", False)
    assert carried < 256 * KIB + TAIL_BYTES + 2 * MAX_LOG_CHUNK_BYTES


async def test_while_the_bus_is_away_reading_stands_still() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    output.say(b"one ")
    await asyncio.sleep(0.1)
    wire.is_cut = True
    output.say(b"two ")
    await asyncio.sleep(5)
    assert made.is_blocked
    output.say(b"three")
    output.close()
    wire.is_cut = False
    await until(lambda: made.is_done)
    assert not made.is_blocked
    assert wire.text() == b"one two three"
    assert [chunk["n"] for chunk in wire.chunks] == list(range(len(wire.chunks)))


async def test_a_reader_that_breaks_off_goes_on_where_it_was() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    output.say(b"one ")
    await asyncio.sleep(0.1)
    output.fails = 2
    output.say(b"two")
    output.close()
    await until(lambda: made.is_done)
    assert wire.text() == b"one two"


async def test_from_a_mark_it_goes_on_with_the_next_number_and_offset() -> None:
    output, wire = Output(), Wire()
    output.say(b"0123456789")
    output.close()
    made = shipper(output, wire, mark=LogMark(chunks=7, stdout=4, published=4))
    await until(lambda: made.is_done)
    first = wire.chunks[0]
    assert (first["n"], first["offset"], first["data"]) == (7, 4, b"456789")


async def test_what_was_done_is_not_done_again() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire, mark=LogMark(chunks=1, done=True))
    await asyncio.sleep(1)
    assert made.is_done
    assert wire.chunks == []


async def talk(output: Output, count: int) -> None:
    for i in range(count):
        output.say(b"%04d" % i)
        await asyncio.sleep(FLUSH_S * 1.5)


async def test_acknowledged_chunks_are_never_sent_again() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    await talk(output, 5)
    count = len(wire.chunks)
    for _ in range(20):
        await asyncio.sleep(2)
        made.acknowledge(made.mark.chunks, sent_at=asyncio.get_running_loop().time())
    assert len(wire.chunks) == count
    await made.stop()


async def test_a_bus_that_lags_behind_is_no_loss() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    await talk(output, 5)
    count = len(wire.chunks)
    made.acknowledge(2, sent_at=asyncio.get_running_loop().time())
    await asyncio.sleep(LOST_AFTER_S / 2)
    made.acknowledge(2, sent_at=asyncio.get_running_loop().time())
    await asyncio.sleep(0.1)
    assert len(wire.chunks) == count
    await made.stop()


async def test_what_the_bus_lost_is_sent_again_from_the_buffer() -> None:
    output, wire = Output(), Wire()
    wire.loses = lambda chunk: chunk["n"] in (2, 3, 4)
    made = shipper(output, wire)
    await talk(output, 5)
    wire.loses = lambda chunk: False
    await asyncio.sleep(LOST_AFTER_S + 1)
    made.acknowledge(2, sent_at=asyncio.get_running_loop().time())
    await asyncio.sleep(0.1)
    assert wire.text() == b"00000001000200030004"
    assert made.mark.chunks == 5
    output.close()
    await until(lambda: made.is_done)


async def test_what_is_not_in_the_buffer_any_more_is_read_again() -> None:
    output, wire = Output(), Wire()
    wire.loses = lambda chunk: 1 <= chunk["n"] < 50
    made = shipper(output, wire, limit=8 * 1024 * KIB)
    for i in range(64):
        output.say(bytes([65 + i % 26]) * (48 * KIB))
        await asyncio.sleep(FLUSH_S * 1.5)
    wire.loses = lambda chunk: False
    await asyncio.sleep(LOST_AFTER_S + 1)
    made.acknowledge(1, sent_at=asyncio.get_running_loop().time())
    await asyncio.sleep(5)
    output.say(b"more")
    output.close()
    await until(lambda: made.is_done)
    assert wire.text() == bytes(output.streams[1])
    assert wire.ends.count(True) == 1


async def test_a_bus_that_never_stores_is_not_flooded_for_ever() -> None:
    output, wire = Output(), Wire()
    made = shipper(output, wire)
    output.say(b"x")
    for _ in range(500):
        await asyncio.sleep(2)
        made.acknowledge(0, sent_at=asyncio.get_running_loop().time())
    assert len(wire.chunks) < 12
    await made.stop()
