"""An Engine API that runs nothing and notes when it is asked to create a container.

It speaks as much of the API as the agent's docker runtime uses, on a unix socket of the event loop
that it is started in. So an agent in a process of its own takes every step that it takes with a
real engine, and the moment of its create call is known here on this process's clock. A container
"ends" with code 0 as soon as its start was answered.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

_EPOCH: Final = "0001-01-01T00:00:00Z"
_CONTAINER: Final = re.compile(r"/containers/([^/]+)(/\w+)?")


class Answer(NamedTuple):
    status: int
    body: Any = None


class _Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    at: float


@dataclass(slots=True)
class _Container:
    id: str
    name: str
    payload: dict[str, Any]
    status: str = "created"
    started_at: str = _EPOCH
    finished_at: str = _EPOCH
    over: asyncio.Event = field(default_factory=asyncio.Event)


class RecordingEngine:
    """`on_create(labels, at)` is called for each create call; `at` is `time.perf_counter()` of the
    moment when its first bytes had arrived."""

    def __init__(self, path: Path, on_create: Callable[[dict[str, str], float], None]) -> None:
        self.path = path
        self._on_create = on_create
        self._containers: dict[str, _Container] = {}
        self._listeners: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                if request.path == "/events":
                    await self._stream_events(reader, writer)
                elif request.path.endswith("/logs"):
                    await self._stream_logs(request, writer)
                else:
                    await _write(writer, self._answer(request))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the agent closed it
        finally:
            self._listeners.discard(writer)
            writer.close()

    def _answer(self, request: _Request) -> Answer:
        fixed = {
            "/_ping": "OK",
            "/version": {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"},
            "/info": {"ServerVersion": "20.10.24", "Runtimes": {}, "DockerRootDir": "/"},
        }
        if request.path in fixed:
            return Answer(200, fixed[request.path])
        if request.path.startswith("/images/"):
            return Answer(200, {"Id": f"sha256:{'0' * 64}", "RepoDigests": [], "Config": {}})
        if request.path == "/containers/json":
            return Answer(200, [_listed(c) for c in self._containers.values()])
        if request.path == "/containers/create":
            return self._create(request)
        match = _CONTAINER.fullmatch(request.path)
        container = self._find(unquote(match[1])) if match else None
        if match is None or container is None:
            return Answer(404, {"message": f"No such container: {request.path}"})
        return self._on_container(request.method, match[2] or "", container)

    def _create(self, request: _Request) -> Answer:
        payload = json.loads(request.body)
        self._on_create(payload.get("Labels") or {}, request.at)
        name = request.query.get("name", [""])[0]
        container = _Container(secrets.token_hex(32), name, payload)
        self._containers[container.id] = container
        return Answer(201, {"Id": container.id, "Warnings": []})

    def _on_container(self, method: str, action: str, container: _Container) -> Answer:
        if method == "GET" and action == "/json":
            return Answer(200, _inspected(container))
        if method == "DELETE":
            del self._containers[container.id]
            return Answer(204)
        if action == "/start":
            container.status, container.started_at = "running", _now()
            asyncio.get_running_loop().call_soon(self._end, container)
        return Answer(204)

    def _end(self, container: _Container) -> None:
        container.status, container.finished_at = "exited", _now()
        container.over.set()
        event = {
            "Type": "container",
            "Action": "die",
            "Actor": {"ID": container.id, "Attributes": {"exitCode": "0"}},
            "timeNano": time.time_ns(),
        }
        line = json.dumps(event).encode() + b"\n"
        for listener in self._listeners:
            listener.write(_chunk(line))

    def _find(self, name: str) -> _Container | None:
        by_name = (c for c in self._containers.values() if c.name == name)
        return self._containers.get(name) or next(by_name, None)

    async def _stream_events(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(_head(200, "application/json"))
        self._listeners.add(writer)
        await reader.read()

    async def _stream_logs(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        """Nothing was written; a followed log stays open until the container is over."""
        writer.write(_head(200, "application/vnd.docker.multiplexed-stream"))
        match = _CONTAINER.fullmatch(request.path)
        container = self._find(match[1]) if match else None
        if container is not None and request.query.get("follow") == ["1"]:
            await container.over.wait()
        writer.write(_chunk(b""))
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    first = await reader.read(1)
    if not first:
        return None
    at = time.perf_counter()
    lines = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    fields = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    parts = urlsplit(target)
    path = re.sub(r"^/v\d+\.\d+(?=/)", "", parts.path)
    return _Request(method, path, parse_qs(parts.query), body, at)


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    body = b"" if answer.body is None else json.dumps(answer.body).encode()
    head = f"HTTP/1.1 {answer.status} .\r\nContent-Type: application/json\r\n"
    if answer.status != 204:
        head += f"Content-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()


def _head(status: int, kind: str) -> bytes:
    return (
        f"HTTP/1.1 {status} .\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())


def _listed(container: _Container) -> dict[str, Any]:
    labels = container.payload.get("Labels") or {}
    return {"Id": container.id, "State": container.status, "Labels": labels}


def _inspected(container: _Container) -> dict[str, Any]:
    payload = container.payload
    return {
        "Id": container.id,
        "Name": f"/{container.name}",
        "Image": f"sha256:{'0' * 64}",
        "Created": container.started_at,
        "State": {
            "Status": container.status,
            "Pid": 0,
            "ExitCode": 0,
            "OOMKilled": False,
            "Error": "",
            "StartedAt": container.started_at,
            "FinishedAt": container.finished_at,
        },
        "Config": {key: payload.get(key) for key in ("Labels", "Env", "Tty")},
        "HostConfig": payload.get("HostConfig") or {},
    }
