"""The connection: it stays alive through every fault, and says clearly why it cannot."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, NoResponders, connect, dialling, patience_s, redact
from gpuyard.bus import link as link_module
from gpuyard.bus.dialling import in_words
from gpuyard.bus.parsing import DirectClient
from gpuyard.errors import BusTooOld, LocalProtocolError, RemoteProtocolError, Unavailable
from tests.support.nats_server import MakeNatsServer, NatsServer


@asynccontextmanager
async def bus_on(url: str, **options: Any) -> AsyncIterator[Bus]:
    options = {"name": "test", "inbox_prefix": subjects.COORDINATOR_INBOX} | options
    bus = await connect(url, **options)
    try:
        yield bus
    finally:
        await bus.close()


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> float:
    """Seconds until the condition held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "it never happened"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


async def test_a_request_is_answered_in_the_form_it_was_asked_in(
    module_nats_server: NatsServer,
) -> None:
    async with bus_on(module_nats_server.url) as bus:

        async def answer(message: Message) -> None:
            body = {"you_said": message.body()["text"]}
            await bus.tenants.respond(message, body, caller_prefix=bus.inbox_prefix)

        await bus.tenants.serve("echo.*", answer, queue="q")

        packed = await bus.tenants.request("echo.a", {"text": "hi"})
        text = await bus.tenants.request("echo.a", b'{"text": "hi"}')

        assert packed.body() == text.body() == {"you_said": "hi"}
        assert text.data == b'{"you_said":"hi"}'
        assert not codec.is_json(packed.data)


async def test_an_answer_goes_only_to_the_callers_own_inbox(
    module_nats_server: NatsServer,
) -> None:
    stolen: list[Message] = []
    async with bus_on(module_nats_server.url) as bus:
        await bus.app.subscribe("$KV.gpuyard.leader.epoch", stolen.append)
        await bus.app.subscribe(f"{subjects.AGENTS_INBOX}.node-11.x", stolen.append)
        mine: list[Message] = []
        await bus.agents.subscribe(f"{subjects.AGENTS_INBOX}.node-1.>", mine.append)

        async def answer(message: Message) -> None:
            prefix = subjects.agent_inbox("node-1")
            await bus.agents.respond(message, {"v": 1}, caller_prefix=prefix)

        await bus.agents.serve("beat.node-1", answer)
        for reply in (
            "$KV.gpuyard.leader.epoch",
            f"{subjects.AGENTS_INBOX}.node-11.x",
            "",
            f"{subjects.AGENTS_INBOX}.node-1.x",
        ):
            await bus.agents.publish("beat.node-1", b"{}", reply=reply)

        await until(lambda: len(mine) == 1)
        assert stolen == []
        assert bus.agents.replies_dropped == 3


async def test_a_service_that_is_closed_leaves_no_request_waiting(
    module_nats_server: NatsServer,
) -> None:
    begun, ended = list[Message](), list[Message]()
    async with bus_on(module_nats_server.url) as bus:

        async def never(message: Message) -> None:
            begun.append(message)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(message)

        service = await bus.tenants.serve("never", never, concurrency=2)
        for _ in range(3):
            await bus.tenants.publish("never", b"")
        await until(lambda: len(begun) == 2)
        await service.close()
        await asyncio.sleep(0)
        assert len(begun) == len(ended) == 2


async def test_nobody_there_and_no_answer_are_told_apart(module_nats_server: NatsServer) -> None:
    async with bus_on(module_nats_server.url) as bus:
        with pytest.raises(NoResponders) as nobody:
            await bus.tenants.request("nobody.here", b"", timeout_s=1)
        await bus.app.subscribe("mute", lambda message: None)
        with pytest.raises(Unavailable, match=r"within 0\.2 s") as mute:
            await bus.tenants.request("mute", b"", timeout_s=0.2)

    assert (nobody.value.code, mute.value.code) == ("no_leader", "timeout")


async def test_a_request_is_repeated_only_when_asked_to(module_nats_server: NatsServer) -> None:
    seen: list[Message] = []
    async with bus_on(module_nats_server.url) as bus:

        async def second_time(message: Message) -> None:
            seen.append(message)
            if len(seen) > 1:
                await bus.app.respond(message, {"v": 1}, caller_prefix=bus.inbox_prefix)

        await bus.app.serve("flaky", second_time)

        answer = await bus.app.request("flaky", b"same", timeout_s=0.2, attempts=3)

    assert answer.body() == {"v": 1}
    assert [message.data for message in seen] == [b"same", b"same"]


async def test_a_callback_that_raises_does_not_stop_the_next_message(
    module_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def receive(message: Message) -> None:
        seen.append(message.body())

    async with bus_on(module_nats_server.url) as bus:
        await bus.app.subscribe("mixed", receive)
        await bus.app.publish("mixed", b"\xc1 no body")
        await bus.app.publish("mixed", {"n": 2})
        await until(lambda: seen == [{"n": 2}])

    assert "message callback failed" in caplog.text


async def test_a_handler_that_raises_does_not_stop_the_service(
    module_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bus_on(module_nats_server.url) as bus:

        async def fragile(message: Message) -> None:
            body = message.body()
            await bus.app.respond(message, body, caller_prefix=bus.inbox_prefix)

        await bus.app.serve("fragile", fragile)
        with pytest.raises(Unavailable):
            await bus.app.request("fragile", b"\xc1", timeout_s=0.2)
        assert (await bus.app.request("fragile", {"n": 1})).body() == {"n": 1}

    assert RemoteProtocolError.__name__ in caplog.text


async def test_requests_and_subscriptions_work_again_after_the_server_was_killed(
    nats_server: NatsServer,
) -> None:
    hooks = []
    async with bus_on(nats_server.url) as bus:
        bus.on_reconnect(lambda: hooks.append("reconnected"))
        seen: list[Message] = []
        await bus.app.subscribe("news", seen.append)
        await bus.app.subscribe("mute", lambda message: None)
        waiting = asyncio.create_task(bus.app.request("mute", b"", timeout_s=30))
        await asyncio.sleep(0.1)

        nats_server.kill()
        with pytest.raises(Unavailable, match="broke"):
            await asyncio.wait_for(waiting, 2)
        await until(lambda: not bus.is_connected)
        with pytest.raises(Unavailable, match="not connected"):
            await bus.app.publish("news", b"never sent")
        nats_server.start()

        await until(lambda: bus.is_connected and bool(hooks))
        await bus.app.publish("news", b"after")
        await until(lambda: bool(seen))

    assert [message.data for message in seen] == [b"after"]
    assert hooks == ["reconnected"]


async def test_what_a_broken_connection_did_not_take_is_not_sent_on_the_next(
    nats_server: NatsServer,
) -> None:
    hooks = []
    async with bus_on(nats_server.url) as bus:
        bus.on_reconnect(lambda: hooks.append("reconnected"))
        seen: list[Message] = []
        await bus.app.subscribe("news", seen.append)
        nats_server.freeze()
        for _ in range(100):  # more than all buffers on the way hold
            await bus.app.publish("news", bytes(200_000))
            await asyncio.sleep(0)  # it is written, or waits for room
        nats_server.kill()
        await until(lambda: not bus.is_connected)
        nats_server.start()

        await until(lambda: bool(hooks))
        await bus.app.publish("news", b"after")
        await until(lambda: bool(seen) and seen[-1].data == b"after")
    assert len(seen) == 1


async def test_a_deaf_client_is_replaced(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(link_module, "PROBE_TIMEOUT_S", 0.2)
    hooks = []
    async with bus_on(nats_server.url) as bus:
        bus.on_reconnect(lambda: hooks.append("reconnected"))
        seen: list[Message] = []
        await bus.app.subscribe("news", seen.append)
        # What an exception in the library's own code leaves behind: connected, and not reading.
        reading = bus._link._client._reading_task
        assert reading is not None
        reading.cancel()
        await asyncio.sleep(0)

        await until(lambda: bus.faults["revived"] == 1)
        await bus.app.publish("news", b"heard")
        await until(lambda: bool(seen))

    assert hooks == ["reconnected"]


async def test_a_client_that_closed_for_good_is_replaced(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROBE_EVERY_S", 0.2)
    async with bus_on(nats_server.url) as bus:
        await bus._link._client.close()
        with pytest.raises(Unavailable):
            await bus.app.publish("news", b"")

        await until(lambda: bus.faults["revived"] == 1 and bus.is_connected)
        assert (await bus.jetstream.call("INFO"))["streams"] == 0


async def test_a_replacement_that_is_closed_at_once_is_replaced_too(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROBE_EVERY_S", 0.2)
    async with bus_on(nats_server.url) as bus:
        dial = bus._link._dial
        dialled: list[DirectClient] = []

        async def dial_and_lose_the_first(timeout_s: float) -> DirectClient:
            dialled.append(await dial(timeout_s))
            if len(dialled) == 1:
                await dialled[0].close()
            return dialled[-1]

        monkeypatch.setattr(bus._link, "_dial", dial_and_lose_the_first)
        await bus._link._client.close()

        await until(lambda: bus.faults["revived"] == 2 and bus.is_connected)
        assert (await bus.jetstream.call("INFO"))["streams"] == 0


async def test_a_frozen_server_is_noticed_and_survived(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(link_module, "PROBE_TIMEOUT_S", 0.2)
    async with bus_on(nats_server.url) as bus:
        seen: list[Message] = []
        await bus.app.subscribe("news", seen.append)
        nats_server.freeze()
        with pytest.raises(Unavailable):
            await bus.jetstream.call("INFO", timeout_s=0.5)
        nats_server.thaw()

        await until(lambda: bus.is_connected)
        await bus.jetstream.call("INFO", attempts=5)
        await bus.app.publish("news", b"heard")
        await until(lambda: bool(seen))


async def test_closing_is_quick_and_may_be_repeated(nats_server: NatsServer) -> None:
    bus = await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x")
    nats_server.kill()
    start = time.monotonic()
    await bus.close()
    await bus.close()

    assert time.monotonic() - start < 3
    with pytest.raises(Unavailable):
        await bus.app.publish("a", b"")


async def test_an_unreachable_server_is_one_clear_line() -> None:
    with pytest.raises(Unavailable) as caught:
        async with bus_on("nats://s3cret@127.0.0.1:9", timeout_s=0.5):
            pass

    text = str(caught.value)
    assert text.startswith("cannot reach nats://***@127.0.0.1:9: ")
    assert "s3cret" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (nats.errors.Error("nats: 'Authorization Violation'"), "Authorization Violation"),
        (TimeoutError(), "timed out"),
        (nats.errors.TimeoutError(), "timed out"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "connection refused"),
        (OSError(113, "Connect call failed ('10.0.0.1', 9)"), "no route to host"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 9)"
            ),
            "connection refused",
        ),
        (ssl.SSLError(1, "[SSL] certificate verify failed"), "[SSL] certificate verify failed"),
    ],
)
def test_a_fault_of_connecting_is_told_in_plain_words(fault: Exception, told: str) -> None:
    assert in_words(fault) == told


async def test_a_wrong_token_is_said_at_once(make_nats_server: MakeNatsServer) -> None:
    server = make_nats_server(token="right")
    start = time.monotonic()
    with pytest.raises(Unavailable, match="refused the credentials") as caught:
        async with bus_on(f"nats://wr0ng@127.0.0.1:{server.port}", timeout_s=10):
            pass

    assert time.monotonic() - start < 3
    assert "wr0ng" not in str(caught.value)
    assert "'" not in str(caught.value)
    async with bus_on(server.url) as bus:
        assert bus.is_connected
        assert "right" not in bus.url


@asynccontextmanager
async def fake_server(info: dict[str, Any]) -> AsyncIterator[str]:
    """A server that greets with `info` and answers pings."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_that_is_too_old_is_named_with_both_versions() -> None:
    async with fake_server({"version": "2.11.9", "max_payload": 1048576}) as url:
        with pytest.raises(BusTooOld, match=r"nats-server 2\.11\.9.* needs 2\.12 or newer"):
            await connect(url, name="test", inbox_prefix="_INBOX.x")


async def test_something_else_on_the_port_is_no_hang() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await connect(url, name="test", inbox_prefix="_INBOX.x", timeout_s=0.5)


async def test_the_last_server_of_three_has_its_chance_after_two_that_stay_silent(
    module_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "CONNECT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(dialling, "FIRST_CONNECT_S", 0.5)
    monkeypatch.setattr("nats.aio.client.shuffle", lambda servers: None)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        bad = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        url = f"{bad},{bad.replace('127.0.0.1', 'localhost')},{module_nats_server.url}"
        with pytest.raises(Unavailable):
            await connect(url, name="t", inbox_prefix="_INBOX.x", timeout_s=patience_s(bad) / 2)
        bus = await connect(url, name="t", inbox_prefix="_INBOX.x", timeout_s=patience_s(url))
        await bus.close()


async def test_missing_credentials_and_ca_files_are_named(tmp_path: Path) -> None:
    for option in ("credentials", "ca"):
        with pytest.raises(Unavailable, match="missing"):
            async with bus_on("nats://127.0.0.1:9", **{option: tmp_path / "missing"}):
                pass


async def test_too_large_and_malformed_are_our_fault(module_nats_server: NatsServer) -> None:
    async with bus_on(module_nats_server.url) as bus:
        with pytest.raises(LocalProtocolError, match="1048577 bytes"):
            await bus.app.publish("big", b"x" * 1048577)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://tok@h:1", "nats://***@h:1"),
        ("nats://u:p%40@h:1,nats://u:q@i:2", "nats://***@h:1,nats://***@i:2"),
        ("tls://h:4222", "tls://h:4222"),
    ],
)
def test_a_secret_in_a_url_is_never_shown(url: str, shown: str) -> None:
    assert redact(url) == shown
