"""Streams of an engine: taken apart however they arrive, and broken off with a clear fault."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard_agent.docker_runtime.client import EngineClient
from gpuyard_agent.docker_runtime.failures import EngineRefused, EngineUnavailable
from gpuyard_agent.docker_runtime.streams import (
    Address,
    ChunkDecoder,
    StreamBroken,
    open_stream,
    read_json,
)

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_chunks_are_put_together_from_pieces_of_any_size(size: int) -> None:
    raw = b"4\r\nab\r\n\r\n1;x=y\r\nc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    decoder = ChunkDecoder()

    out = b"".join(decoder.feed(raw[at : at + size]) for at in range(0, len(raw), size))

    assert out == b"ab\r\nc0123456789"
    assert decoder.ended


def test_what_is_no_chunk_is_a_fault() -> None:
    with pytest.raises(StreamBroken):
        ChunkDecoder().feed(b"HTTP/1.1\r\n")
    with pytest.raises(StreamBroken):
        ChunkDecoder().feed(b"-5\r\nabc")


@pytest.mark.parametrize("url", ["/var/run/docker.sock", "ssh://host", "https://host", "unix://"])
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no engine's address"):
        Address.of(url)


def test_addresses_are_shown_as_people_know_them() -> None:
    assert str(Address.of("unix:///run/docker.sock")) == "/run/docker.sock"
    assert str(Address.of("tcp://127.0.0.1:2375")) == "127.0.0.1:2375"


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _engine(path: Path, answer: Answer) -> AsyncIterator[Address]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield Address(str(path), "", 0)
    finally:
        server.close()
        await server.wait_closed()


def _says(raw: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


async def test_documents_are_read_one_a_line(tmp_path: Path) -> None:
    raw = _CHUNKED + b'9\r\n{"a":1}\n{\r\n7\r\n"b": 2}\r\n0\r\n\r\n'
    async with _engine(tmp_path / "s", _says(raw)) as address:
        stream = await open_stream(address, "GET", "/events")
        assert [one async for one in read_json(stream)] == [{"a": 1}, {"b": 2}]
        assert stream.peer_pid
        stream.close()


async def test_an_answer_that_ends_too_early_is_broken(tmp_path: Path) -> None:
    async with _engine(tmp_path / "s", _says(_CHUNKED + b"9\r\n{")) as address:
        stream = await open_stream(address, "GET", "/events")
        with pytest.raises(StreamBroken, match="closed the connection"):
            _ = [one async for one in read_json(stream)]
        stream.close()


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 22\r\n\r\n" + b'{"message":"no space"}',
        b'Transfer-Encoding: chunked\r\n\r\n16\r\n{"message":"no space"}\r\n0\r\n\r\n',
    ],
)
async def test_a_refusal_carries_the_engines_words(tmp_path: Path, body: bytes) -> None:
    raw = b"HTTP/1.1 507 Full\r\n" + body
    async with _engine(tmp_path / "s", _says(raw)) as address:
        with pytest.raises(EngineRefused, match="no space") as raised:
            await open_stream(address, "GET", "/x")
    assert raised.value.status == 507


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        b"HTTP/1.1 500 No\r\nContent-Length: -1\r\n\r\n{}",
    ],
)
async def test_what_is_no_answer_makes_the_engine_unavailable(tmp_path: Path, raw: bytes) -> None:
    async with _engine(tmp_path / "s", _says(raw)) as address:
        with pytest.raises(EngineUnavailable):
            await open_stream(address, "GET", "/x")


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"[]", b"null", b"", b"[" * 100_000])
async def test_an_answer_that_is_no_engines_is_a_fault_of_the_engine(
    tmp_path: Path, body: bytes
) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with _engine(tmp_path / "s", _says(raw)) as address:
        with pytest.raises(EngineUnavailable):
            await EngineClient(f"unix://{address}").info()


async def test_silence_has_a_limit(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with _engine(tmp_path / "s", says_nothing) as address:
        with pytest.raises(EngineUnavailable, match="does not answer in time"):
            await open_stream(address, "GET", "/x", head_timeout_s=0.1)
        over.set()


async def test_a_closed_stream_ends_its_reader(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def begins(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_CHUNKED)
        await over.wait()

    async with _engine(tmp_path / "s", begins) as address:
        stream = await open_stream(address, "GET", "/x")
        asyncio.get_running_loop().call_later(0.1, stream.close)
        with pytest.raises(StreamBroken):
            await asyncio.wait_for(stream.read(), 5)
        over.set()
