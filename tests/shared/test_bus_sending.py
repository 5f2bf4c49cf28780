"""The short way to publish sends the very bytes that the library would."""

import asyncio
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
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
