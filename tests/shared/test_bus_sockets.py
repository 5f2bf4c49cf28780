"""No socket outlives its connection, however that ends: one that does is closed by the garbage
collector, at some later moment and with a warning."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuyard import Client
from gpuyard.bus import Bus, connect, dialling
from gpuyard.client import sync_client
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import load_config
from gpuyard.errors import Unavailable
from tests.support.nats_server import NatsServer

_GREETING: Final = {"version": "2.12.0", "max_payload": 64 * 1024 * 1024}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.contextmanager
def no_socket_left() -> Iterator[None]:
    gc.collect()  # what others left is not ours
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    texts = [str(warning.message) for warning in told]
    assert [text for text in texts if "event loop" not in text] == []


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server of the test's own; at the end every client has to have hung up."""
    handlers = []

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
            await reader.read()
        writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.create_task(whole(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(10):
        await asyncio.gather(*handlers)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a nats-server does, up to the first pong."""
    writer.write(b"INFO " + json.dumps(_GREETING).encode() + b"\r\n")
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
            return


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greet(reader, writer)
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")


def connected(url: str, **options: Any) -> Coroutine[Any, Any, Bus]:
    return connect(url, name="test", inbox_prefix="_INBOX.x", **options)


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Bus | bool]) -> bool:
    """Cancels the work after that many turns of the loop; False where it was done before."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    is_cut_short = task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(ended, Bus):
        await ended.close()
    return is_cut_short


def test_a_connect_that_is_cancelled_at_any_moment() -> None:
    async def whole() -> None:
        async with serving(answer) as url:
            turns = 0
            while await cancelled_after(turns, connected(url)):
                turns += 1
            assert turns > 5

    with no_socket_left():
        asyncio.run(whole())


def test_a_close_while_a_client_is_replaced_at_any_moment() -> None:
    async def whole() -> None:
        async with serving(answer) as url:
            turns, is_cut_short = 0, True
            while is_cut_short:
                bus = await connected(url)
                is_cut_short = await cancelled_after(turns, bus._link._revive())
                await bus.close()
                turns += 1
            assert turns > 5

    with no_socket_left():
        asyncio.run(whole())


def test_a_close_that_is_cancelled_at_any_moment() -> None:
    async def whole() -> None:
        async with serving(answer) as url:
            turns, is_cut_short = 1, True  # one that did not begin closes nothing
            while is_cut_short:
                bus = await connected(url)
                closing = asyncio.ensure_future(bus.close())
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_cut_short = closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                turns += 1
            assert turns > 5

    with no_socket_left():
        asyncio.run(whole())


def test_a_reconnect_whose_greeting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "RECONNECT_WAIT_S", 0.01)
    tries = 0
    again = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await greet(reader, writer)
            writer.transport.abort()
            return
        writer.write(b"not a greeting\r\n")
        if tries == 4:
            again.set()

    async def whole() -> None:
        async with serving(serve) as url, await connected(url):
            await again.wait()

    with no_socket_left():
        asyncio.run(whole())


def test_a_close_that_has_much_to_send_yet() -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while data := await reader.read(2**20):
            received.extend(data)

    async def whole() -> None:
        async with serving(serve) as url, await connected(url) as bus:
            for _ in range(16):  # more than the system's buffers take
                await bus.app.publish("a", b"x" * 1024 * 1024)

    with no_socket_left():
        asyncio.run(whole())
    assert received.count(b"x" * 1024 * 1024) == 16


def test_a_close_while_the_peer_does_not_read(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "CLOSE_TIMEOUT_S", 0.2)

    async def whole() -> None:
        async with await connected(nats_server.url) as bus:
            nats_server.freeze()
            for _ in range(16):  # more than the system's buffers take
                await bus.app.publish("a", b"x" * 1024 * 1024)
                await asyncio.sleep(0)

    with no_socket_left():
        asyncio.run(whole())


def test_a_plain_client_that_is_interrupted_while_it_connects() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            os.kill(os.getpid(), signal.SIGUSR1)
            connection.settimeout(10)
            received.append(connection.recv(1))

    received: list[bytes] = []
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with no_socket_left(), socket.create_server(("127.0.0.1", 0)) as listener:
            server = threading.Thread(target=serve, args=(listener,))
            server.start()
            url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
            client = Client(config=load_config(url=url, environ={}, folder=Path("/")))
            with pytest.raises(KeyboardInterrupt):
                client.connect()
            server.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [b""]


@pytest.mark.timeout(30)
def test_a_plain_client_ends_what_swallowed_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def swallows() -> None:
        # As asyncio.wait_for does before Python 3.12, where what it waits for ends meanwhile.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def connect(_: AsyncClient) -> None:
        begun.append(asyncio.create_task(swallows()))
        await asyncio.sleep(0)
        raise Unavailable("no bus")

    begun: list[asyncio.Task[None]] = []
    monkeypatch.setattr(sync_client, "CANCEL_AGAIN_S", 0.05)
    monkeypatch.setattr(AsyncClient, "connect", connect)
    with pytest.raises(Unavailable, match="no bus"):
        Client(config=load_config(environ={}, folder=Path("/"))).connect()
    assert [task.cancelled() for task in begun] == [True]
