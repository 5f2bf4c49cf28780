"""The short way to publish sends the very bytes that the library would."""

import asyncio
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import BadHeaderError, MaxPayloadError, OutboundBufferLimitError

from gpuyard.bus.parsing import DirectClient
from gpuyard.bus.sending import Outgoing, header_lines, publish_command

SUBJECTS = st.text(string.ascii_letters + "$.-_0123456789", min_size=1, max_size=40)
NAMES = st.text(string.ascii_letters + string.digits + "-_!#$%&'*+.^`|~", min_size=1, max_size=20)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)


async def sent(client: Client, subject: str, *message: object) -> bytes:
    """What a client of that class would write for one message."""
    commands: list[bytes] = []

    async def keep(command: bytes) -> None:
        commands.append(command)

    client._send_command = keep  # type: ignore[method-assign,assignment]
    reply, payload, headers = message
    await client._send_publish(subject, reply, payload, 0, headers)  # type: ignore[arg-type]
    return b"".join(commands)


@given(
    SUBJECTS,
    st.one_of(st.just(""), SUBJECTS),
    st.binary(max_size=200),
    st.none() | st.dictionaries(NAMES, VALUES, max_size=4),
)
def test_sends_what_the_library_would(
    subject: str, reply: str, payload: bytes, headers: dict[str, str] | None
) -> None:
    ours = asyncio.run(sent(DirectClient(), subject, reply, payload, headers))
    assert ours == asyncio.run(sent(Client(), subject, reply, payload, headers))
    lines = None if headers is None else header_lines(headers)
    assert publish_command(subject, reply, payload, lines) == ours


@pytest.mark.parametrize("value", ["two\r\nlines", "one\nmore", "x\ry", "a\r\nB: c"])
def test_a_header_of_several_lines_is_left_to_the_library(value: str) -> None:
    headers = {"X": value}
    assert header_lines(headers) is None
    ours = asyncio.run(sent(DirectClient(), "a", "", b"x", headers))
    assert ours == asyncio.run(sent(Client(), "a", "", b"x", headers))


@pytest.mark.parametrize("name", ["a b", "a:b", "a: b", "ä", "a: 1\r\nb", "a\r\nb: c\r\nd"])
def test_a_name_that_is_none_is_refused_as_before(name: str) -> None:
    with pytest.raises(BadHeaderError):
        asyncio.run(sent(DirectClient(), "a", "", b"", {name: "1"}))


async def sent_at_once(*messages: Outgoing, is_connected: bool = True) -> bytes:
    client, commands = DirectClient(), list[bytes]()

    async def keep(command: bytes, priority: bool = False) -> None:
        commands.append(command)

    client._send_command = keep  # type: ignore[method-assign,assignment]
    client._status = Client.CONNECTED if is_connected else Client.RECONNECTING
    client._max_payload = 10
    try:
        await client.publish_all(messages)
    finally:
        assert len(commands) <= 1
    return commands[0]


def test_many_go_out_at_once_as_they_would_one_by_one() -> None:
    lines = header_lines({"X": "y"})
    messages: list[Outgoing] = [("a", b"1", lines), ("b", b"", None), ("c", b"3", "Z: 0\r\n")]
    each = [publish_command(subject, "", data, lines) for subject, data, lines in messages]
    assert asyncio.run(sent_at_once(*messages)) == b"".join(each)


def test_of_many_none_goes_out_where_one_cannot() -> None:
    good: Outgoing = ("a", b"1", None)
    with pytest.raises(MaxPayloadError):
        asyncio.run(sent_at_once(good, ("b", b"x" * 11, None)))
    with pytest.raises(OutboundBufferLimitError):
        asyncio.run(sent_at_once(good, is_connected=False))


class Socket:
    """Stands in for the writer of a connection and its transport."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent = 0

    @property
    def transport(self) -> "Socket":
        return self

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, commands: list[bytes]) -> None:
        self.writes.append(b"".join(commands))

    async def drain(self) -> None:
        return None


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[DirectClient, Socket]]:
    client, transport, socket = DirectClient(), TcpTransport(), Socket()  # type: ignore[no-untyped-call]
    transport._io_writer, transport._io_reader = socket, socket  # type: ignore[assignment]
    client._transport = transport
    client._status, client._max_payload = Client.CONNECTED, 10
    client._flush_queue = asyncio.Queue()
    client._flusher_task = asyncio.create_task(client._flusher())
    await asyncio.sleep(0)  # it waits for work
    try:
        yield client, socket
    finally:
        client._flusher_task.cancel()


async def rounds() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_first_message_of_a_round_is_written_at_once_the_rest_together() -> None:
    a, b, c = (publish_command(subject, "", b"1", None) for subject in "abc")
    async with connected() as (client, socket):
        await client.publish("a", b"1")
        assert socket.writes == [a]
        await client.publish("b", b"1")
        await client.publish("c", b"1")
        assert socket.writes == [a]
        await rounds()
        assert socket.writes == [a, b + c]
        await client.publish("a", b"1")
        assert socket.writes == [a, b + c, a]


async def test_what_more_follows_goes_out_with_that() -> None:
    a, b = (publish_command(subject, "", b"1", None) for subject in "ab")
    async with connected() as (client, socket):
        await client.publish_all([("a", b"1", None)], more_follows=True)
        await rounds()
        assert socket.writes == []
        await client.publish("b", b"1")
        assert socket.writes == [a + b]


async def test_a_full_socket_is_left_to_the_flusher_which_waits_for_room() -> None:
    async with connected() as (client, socket):
        socket.unsent = 1
        await client.publish("a", b"1")
        assert socket.writes == []
        await rounds()
        assert socket.writes == [publish_command("a", "", b"1", None)]
