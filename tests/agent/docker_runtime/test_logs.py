"""Logs: every byte once, per stream and in order, from any position to the very end."""

import asyncio
import itertools
import struct
from collections.abc import Iterable

import pytest

from gpuyard_agent.core.containers import Exit
from gpuyard_agent.docker_runtime import logs
from gpuyard_agent.docker_runtime.logs import LogReader, MessageDecoder
from gpuyard_agent.docker_runtime.streams import EngineStream, StreamBroken
from gpuyard_agent.runtime import LogPiece, LogPosition
from tests.agent.docker_runtime.bench import Bench
from tests.agent.docker_runtime.conftest import MakeBench

_SAID = b"".join(b"line %d\n" % number for number in range(50_000))


async def test_fifty_thousand_lines_come_whole_and_in_order(bench: Bench) -> None:
    lines = "awk 'BEGIN { for (i = 0; i < 50000; i++) print \"line \" i }'"
    launch = bench.shell(f"{lines} & {lines} >&2; wait")
    await bench.start(launch)

    assert await bench.read(launch.key) == (_SAID, _SAID)


async def test_a_log_is_whole_every_time_though_its_container_ends_meanwhile(
    bench: Bench,
) -> None:
    wanted = b"".join(b"%d\n" % number for number in range(1, 4001))
    for _ in range(12):
        launch = bench.launch_of("seq", "4000", network="host")
        await bench.start(launch)
        assert await bench.read(launch.key) == (wanted, b"")
        await bench.runtime.remove(launch.key)


async def test_reading_goes_on_from_a_position_after_a_restart(
    bench: Bench, make_bench: MakeBench
) -> None:
    launch = bench.shell("echo abc; echo defg >&2; echo xyz; sleep 1; echo later")
    await bench.start(launch)
    await asyncio.sleep(0.5)
    await bench.runtime.close()

    later = await make_bench(bench.engine, yard=bench.yard)

    assert await later.read(launch.key, stdout=6, stderr=2) == (b"z\nlater\n", b"fg\n")
    assert await later.read(launch.key, stdout=14, stderr=5) == (b"", b"")


async def test_the_first_bytes_come_while_it_runs(bench: Bench) -> None:
    launch = bench.shell("echo first; sleep 600")
    await bench.start(launch)

    pieces = bench.runtime.logs(launch.key, LogPosition())
    first = await asyncio.wait_for(anext(pieces), 2)

    assert first == LogPiece(1, 0, b"first\n")


async def test_a_long_line_without_an_end_comes_whole(bench: Bench) -> None:
    launch = bench.shell("head -c 100000 /dev/zero | tr '\\0' a; printf b >&2")
    await bench.start(launch)

    assert await bench.read(launch.key) == (b"a" * 100_000, b"b")


async def test_a_terminal_has_one_stream(bench: Bench) -> None:
    launch = bench.shell("echo out; echo err >&2", tty=True)
    await bench.start(launch)

    assert await bench.read(launch.key) == (b"out\r\nerr\r\n", b"")


async def test_a_cancelled_reader_leaves_the_container_alone(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600")
    await bench.start(launch)
    reading = asyncio.create_task(bench.read(launch.key))
    await asyncio.sleep(0.3)

    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(await bench.runtime.seen()) == 1


async def test_the_log_of_a_container_that_is_gone_ends(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600")
    await bench.start(launch)
    reading = asyncio.create_task(bench.read(launch.key))
    await asyncio.sleep(0.3)
    await bench.runtime.remove(launch.key)

    assert await asyncio.wait_for(reading, 15) == (b"", b"")
    assert await bench.read(launch.key) == (b"", b"")


def _frame(stream: int, text: bytes, at: int) -> bytes:
    line = b"2026-01-01T00:00:00.%09dZ " % at + text
    return struct.pack(">BxxxL", stream, len(line)) + line


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_are_put_together_from_pieces_of_any_size(size: int) -> None:
    raw = _frame(1, b"a b\n", 1) + _frame(1, b"", 2) + _frame(2, b"c", 3) + _frame(1, b"d\n", 4)
    decoder = MessageDecoder()

    out = {1: b"", 2: b""}
    for begin in range(0, len(raw), size):
        for stream, data in decoder.feed(raw[begin : begin + size]):
            out[stream] += data

    assert out == {1: b"a b\nd\n", 2: b"c"}
    assert decoder.last == (1, b"2026-01-01T00:00:00.000000004Z")


def test_a_fault_that_the_engine_reports_inside_the_stream_is_no_log() -> None:
    with pytest.raises(StreamBroken, match="error grabbing logs"):
        MessageDecoder().feed(struct.pack(">BxxxL", 3, 19) + b"error grabbing logs")


class _Answer(EngineStream):
    """An engine's answer played from memory; after its parts it ends, breaks or hangs."""

    def __init__(self, parts: Iterable[bytes], after: str) -> None:
        self._parts = iter(parts)
        self._after = after
        self._closed = asyncio.Event()

    async def read(self) -> bytes:
        for part in self._parts:
            return part
        if self._after == "hangs":
            await self._closed.wait()
        if self._after != "ends":
            raise StreamBroken("cut")
        return b""

    def close(self) -> None:
        self._closed.set()


class _Engine:
    """Answers each opening of the log with the next of `answers`, and keeps what was asked."""

    def __init__(self, *answers: _Answer) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    async def open(self, query: str) -> EngineStream:
        self.asked.append(query)
        return next(self._answers)


async def _read(engine: _Engine, *, over: bool, position: LogPosition | None = None) -> bytes:
    exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    ended = Exit(0, "2026-01-01T00:00:01.000Z")
    if over:
        exit.set_result(ended)
    else:
        asyncio.get_running_loop().call_later(0.1, exit.set_result, ended)
    reader = LogReader(engine.open, tty=False, position=position or LogPosition())
    return b"".join([piece.data async for piece in reader.pieces(exit)])


_LINES = [_frame(1, b"%d\n" % number, number) for number in range(5)]


async def test_a_follow_that_is_cut_short_at_the_end_is_read_again() -> None:
    engine = _Engine(
        _Answer(_LINES[:3], "ends"), _Answer(_LINES[-1:], "ends"), _Answer(_LINES, "ends")
    )

    assert await _read(engine, over=False) == b"0\n1\n2\n3\n4\n"
    assert ["follow=1" in query for query in engine.asked] == [True, False, False]


async def test_a_follow_that_is_whole_is_not_read_twice() -> None:
    engine = _Engine(_Answer(_LINES, "ends"), _Answer(_LINES[-1:], "ends"))

    assert await _read(engine, over=False) == b"0\n1\n2\n3\n4\n"
    assert "tail=1" in engine.asked[-1]


async def test_a_follow_that_hangs_after_the_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "SILENT_S", 0.2)
    engine = _Engine(_Answer(_LINES[:2], "hangs"), _Answer(_LINES, "ends"))

    assert await asyncio.wait_for(_read(engine, over=False), 5) == b"0\n1\n2\n3\n4\n"


async def test_a_follow_that_breaks_goes_on_where_it_was() -> None:
    engine = _Engine(
        _Answer(_LINES[:2], "breaks"),
        _Answer(_LINES[:4], "breaks"),
        *(_Answer(_LINES, "ends") for _ in range(2)),
    )

    assert await _read(engine, over=False) == b"0\n1\n2\n3\n4\n"


async def test_a_log_that_is_broken_itself_is_not_read_for_ever() -> None:
    engine = _Engine(*itertools.repeat(_Answer([], "breaks"), 20))

    assert await asyncio.wait_for(_read(engine, over=True), 10) == b""


async def test_a_log_whose_beginning_was_dropped_goes_on_with_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "ROTATED_S", 0.1)

    class _Late(_Answer):
        """The last message comes long after the others."""

        async def read(self) -> bytes:
            self._read = getattr(self, "_read", 0)
            if self._read == len(_LINES) - 1:
                await asyncio.sleep(0.15)
            self._read += 1
            return await super().read()

    engine = _Engine(_Late(_LINES, "ends"), _Answer(_LINES[-1:], "ends"))

    assert await _read(engine, over=False, position=LogPosition(stdout=1000)) == b"4\n"
