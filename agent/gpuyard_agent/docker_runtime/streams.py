"""Answers of an engine, read by the event loop without a thread; the long ones as they come.

Just enough HTTP/1.1 for an engine: one request, one answer, one connection. Waiting for the next
byte is tied to no call's timeout.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gpuyard_agent.docker_runtime.failures import refusal, unavailable

CHUNK_BYTES: Final = 64 * 1024
_CONNECT_S: Final = 10.0
_LONGEST_ERROR: Final = 64 * 1024

_NO_HEAD: Final = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)

T = TypeVar("T")


class Address(NamedTuple):
    """Where an engine listens: a socket's path, or host and port."""

    path: str | None
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Address":
        """Takes `unix:///…` and `tcp://host:port`; ValueError for all else.

        An agent uses the engine of its own host, so there is neither TLS nor ssh.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(parts.path, "", 0)
        if parts.scheme == "tcp" and parts.hostname:
            return cls(None, parts.hostname, parts.port or 2375)
        raise ValueError(f"'{url}' is no engine's address; write unix:///var/run/docker.sock")

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class StreamBroken(Exception):
    """The connection ended before the answer did, or what came is no engine's answer."""


class EngineStream:
    """The body of one answer. Close it; a cancelled reader leaves nothing behind but that."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        chunked: bool,
        length: int | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._chunks = ChunkDecoder() if chunked else None
        self._length = length

    async def read(self) -> bytes:
        """The next bytes as they come; b"" at the answer's end; raises `StreamBroken`."""
        chunks = self._chunks
        while chunks is None or not chunks.ended:
            try:
                raw = await self._reader.read(CHUNK_BYTES)
            except OSError as error:
                raise StreamBroken(str(error)) from error
            if chunks is None:
                return raw
            if not raw:
                raise StreamBroken("the engine closed the connection")
            data = chunks.feed(raw)
            if data:
                return data
        return b""

    async def read_all(self) -> bytes:
        """The whole answer of a short call; raises `StreamBroken` where it was cut off."""
        if self._length is not None:
            try:
                return await self._reader.readexactly(self._length)
            except (OSError, asyncio.IncompleteReadError) as error:
                raise StreamBroken(str(error)) from error
        parts = []
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    @property
    def peer_pid(self) -> int | None:
        """The process id behind a local socket, None where there is none to see."""
        sock = self._writer.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX:
            return None
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", found)[0]) or None

    def close(self) -> None:
        """Ends the connection; a reader that waits gets `StreamBroken`."""
        self._writer.transport.abort()


class ChunkDecoder:
    """HTTP's chunked coding, fed in pieces of any size."""

    def __init__(self) -> None:
        self.ended = False
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the chunk at hand that are still to come, its closing line break included."""

    def feed(self, raw: bytes) -> bytes:
        """The payload that `raw` completes; raises `StreamBroken` for what is no such coding."""
        self._buffer += raw
        out = bytearray()
        while not self.ended:
            if self._left > 2:
                taken = self._buffer[: self._left - 2]
                out += taken
                del self._buffer[: len(taken)]
                self._left -= len(taken)
            if self._left > 2 or len(self._buffer) < self._left:
                break
            del self._buffer[: self._left]
            self._left = 0
            end = self._buffer.find(b"\r\n")
            if end < 0:
                break
            size = self._size(bytes(self._buffer[:end]))
            del self._buffer[: end + 2]
            self.ended = size == 0
            self._left = size + 2
        return bytes(out)

    @staticmethod
    def _size(line: bytes) -> int:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise StreamBroken(f"no chunk begins with {line[:20]!r}")
        return size


async def open_stream(
    address: Address,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    head_timeout_s: float = 60.0,
) -> EngineStream:
    """Sends the request, with `body` as JSON where there is one, and returns once the answer's
    head is there.

    Raises `EngineUnavailable`, and `EngineRefused` for a status that is no success.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await _connect(address)
    except (OSError, TimeoutError) as error:
        raise unavailable(error, str(address)) from error
    try:
        async with asyncio.timeout(head_timeout_s):
            writer.write(_request(method, path, headers or {}, body))
            status, answer = _head(await reader.readuntil(b"\r\n\r\n"))
            # An answer of these kinds has no body, whatever the connection does next.
            length = 0 if status in (204, 304) else _length(answer.get("content-length"))
            stream = EngineStream(
                reader,
                writer,
                chunked=answer.get("transfer-encoding") == "chunked",
                length=length,
            )
            if status >= 300:
                raise refusal(status, await _message(stream, reader, length))
    except (OSError, TimeoutError, StreamBroken, *_NO_HEAD) as error:
        writer.transport.abort()
        raise unavailable(error, str(address)) from error
    except BaseException:
        writer.transport.abort()
        raise
    return stream


def json_of(raw: bytes, kind: type[T]) -> T:
    """The JSON document of an answer, None for an empty one; raises `StreamBroken` where that is
    none, or not of this kind."""
    try:
        found = json.loads(raw) if raw.strip() else None
    except (ValueError, RecursionError):
        raise StreamBroken(f"no JSON begins with {raw[:40]!r}") from None
    if not isinstance(found, kind):
        raise StreamBroken(f"no such answer begins with {raw[:40]!r}")
    return found


async def read_json(
    stream: EngineStream, *, idle_s: float | None = None
) -> AsyncIterator[dict[str, Any]]:
    """The JSON maps of a stream, one a line; TimeoutError after `idle_s` without a byte, and
    `StreamBroken` for a line that is none."""
    rest = b""
    while True:
        async with asyncio.timeout(idle_s):
            data = await stream.read()
        lines = (rest + data).split(b"\n")
        rest = lines.pop() if data else b""
        for line in lines:
            if line.strip():
                yield json_of(line, dict)
        if not data:
            return


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path is not None:
        return await asyncio.open_unix_connection(address.path, limit=CHUNK_BYTES)
    return await asyncio.open_connection(address.host, address.port, limit=CHUNK_BYTES)


def _request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: docker", "Connection: close"]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    if body:
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[1].isdecimal():
        raise StreamBroken(f"no HTTP answer begins with {first[:40]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return int(parts[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(told: str | None) -> int | None:
    if told is not None and not told.isdecimal():
        raise StreamBroken(f"no length is {told[:20]!r}")
    return None if told is None else int(told)


async def _message(stream: EngineStream, reader: asyncio.StreamReader, length: int | None) -> str:
    """The engine's words in an error reply."""
    if length is not None:
        body = await reader.readexactly(min(length, _LONGEST_ERROR))
    else:
        body = b""
        while len(body) < _LONGEST_ERROR and (data := await stream.read()):
            body += data
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
