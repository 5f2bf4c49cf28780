"""Output files of processes stay bounded, and what is cut out of them is a known gap."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import Unavailable
from gpuyard.messages import LogChunk
from gpuyard_agent.core.attempt import LogMark
from gpuyard_agent.core.launch import LaunchContext, launch_of
from gpuyard_agent.logs import LogShipper
from gpuyard_agent.process_runtime import ProcessRuntime
from gpuyard_agent.process_runtime import runtime as process_runtime
from gpuyard_agent.process_runtime.spool import KEPT_BYTES, Spool
from gpuyard_agent.runtime import LogPosition
from tests.support.agent_builders import NODE, YARD, entry

MIB = 1024 * 1024
CONTEXT = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")


def pattern(size: int) -> bytes:
    """Bytes that differ everywhere: the number of each 8 bytes."""
    return b"".join(n.to_bytes(8, "big") for n in range(size // 8))


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def read(spool: Spool, path: Path) -> dict[int, bytes]:
    """The pieces that a reader from the beginning gets, by offset, joined where nothing lacks."""
    pieces: dict[int, bytes] = {}
    begin = at = 0
    with path.open("rb") as file:
        while True:
            here, size = spool.readable(at, 100_000)
            file.seek(here)
            data = file.read(size)
            if not data:
                return pieces
            if here != at:
                begin = here
            pieces[begin] = pieces.get(begin, b"") + data
            at = here + len(data)


def test_head_and_tail_stay_and_the_middle_is_gone(tmp_path: Path) -> None:
    path, said = tmp_path / "stdout", pattern(16 * MIB)
    path.write_bytes(said)
    spool = Spool(path, head_bytes=2 * MIB)
    spool.trim()

    assert path.stat().st_size == len(said)
    assert disk_bytes(path) < 4 * MIB
    pieces = read(spool, path)
    head, tail = pieces[0], pieces[max(pieces)]
    assert len(pieces) == 2
    assert head == said[: 2 * MIB]
    assert len(tail) >= KEPT_BYTES
    assert tail == said[-len(tail) :]


def test_it_stays_bounded_however_long_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    spool = Spool(path, head_bytes=MIB)
    said, most = b"", 0
    with path.open("ab") as file:
        for n in range(24):
            piece = bytes([n]) * MIB
            said += piece
            file.write(piece)
            file.flush()
            spool.trim()
            most = max(most, disk_bytes(path))
    assert most < 5 * MIB
    # One that was made anew, by an agent that was restarted, knows the same gap.
    pieces = read(Spool(path, head_bytes=MIB), path)
    assert pieces[0] == said[:MIB]
    begin = max(pieces)
    assert pieces[begin] == said[begin:]


def test_little_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(pattern(3 * MIB))
    spool = Spool(path, head_bytes=2 * MIB)
    spool.trim()
    assert read(spool, path) == {0: pattern(3 * MIB)}
    assert not path.with_name("stdout.cut").exists()


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ProcessRuntime]:
    monkeypatch.setattr(process_runtime, "TRIM_EVERY_S", 0.05)
    made = ProcessRuntime(tmp_path, yard=YARD, node=NODE, log_bytes=MIB)
    await made.open()
    yield made
    for seen in await made.seen():
        await made.remove(seen.key)
    await made.close()


def shell(script: str, **spec: Any) -> Any:
    return launch_of(entry(command=["sh", "-c", script], **spec), CONTEXT)


async def test_while_the_bus_is_away_a_flood_is_kept_as_head_tail_and_a_mark(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    total, line = 32 * MIB, b"0123456789abcde\n"
    flood = shell(f"yes 0123456789abcde | head -c {total}; sleep 0.5; echo the last words; sleep 1")
    chunks: list[LogChunk] = []
    is_away = True

    async def publish(chunk: LogChunk) -> None:
        if is_away:
            raise Unavailable("the bus is away")
        chunks.append(chunk)

    await runtime.launch(flood)
    shipper = LogShipper(
        flood.key,
        read=lambda position: runtime.logs(flood.key, position),
        publish=publish,
        mark=LogMark(),
        on_progress=lambda mark: None,
        limit_bytes=MIB,
        clock=asyncio.get_running_loop().time,
    )
    shipper.start()
    await runtime.wait(flood.key)
    (path,) = tmp_path.glob("*/stdout")
    async with asyncio.timeout(10):
        while disk_bytes(path) > 6 * MIB:
            await asyncio.sleep(0.05)
    is_away = False
    async with asyncio.timeout(20):
        while not shipper.is_done:
            await asyncio.sleep(0.05)

    said = line * (total // len(line)) + b"the last words\n"
    carried = sum(len(chunk["data"]) for chunk in chunks)
    lost = sum(chunk["lost_bytes"] for chunk in chunks)
    assert carried + lost == len(said)
    assert carried >= MIB
    for chunk in chunks:
        assert chunk["data"] == said[chunk["offset"] : chunk["offset"] + len(chunk["data"])]
    text = b"".join(chunk["data"] for chunk in chunks)
    assert text.startswith(said[:MIB])
    assert text.endswith(b"the last words\n")
    # Whoever asks the node gets the same, with the gap where it is.
    pieces = [piece async for piece in runtime.logs(flood.key, LogPosition())]
    assert all(said[p.offset : p.offset + len(p.data)] == p.data for p in pieces)
    assert pieces[-1].offset + len(pieces[-1].data) == len(said)
