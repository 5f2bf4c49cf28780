"""The parser between the wire and our callbacks: every cut of the same bytes is alike."""

import asyncio
from typing import Any, cast

import pytest
from nats.aio.client import Client

from gpuyard.bus import Message
from gpuyard.bus.parsing import DirectClient, parse_headers

HEADERS = b"NATS/1.0\r\nNats-Batch-Id: 7\r\nX:y: z\r\n\r\n"
STATUS = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 12\r\n\r\n"
WIRE = (
    b"MSG a.b 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG a.c 1 9 3\r\nMSG\r\n"
    + b"HMSG a.d 1 %d %d\r\n" % (len(HEADERS), len(HEADERS) + 4)
    + HEADERS
    + b"\r\n\r\n\r\n"
    + b"MSG q.q 2 _INBOX.r 2\r\nok\r\n"
    + b"HMSG a.e 1 $JS.ACK.5 %d %d\r\n" % (len(STATUS), len(STATUS))
    + STATUS
    + b"\r\n+OK\r\nMSG a.f 1 0\r\n\r\n"
)
EXPECTED = [
    ("a.b", "", b"hello", {}),
    ("a.c", "9", b"MSG", {}),
    ("a.d", "", b"\r\n\r\n", {"Nats-Batch-Id": "7", "X": "y: z"}),
    (
        "a.e",
        "$JS.ACK.5",
        b"",
        {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": "12"},
    ),
    ("a.f", "", b"", {}),
]


class Taker:
    """What stands in a subscription where the library expects a future."""

    def __init__(self) -> None:
        self.taken: list[Message] = []

    def cancelled(self) -> bool:
        return False

    def set_result(self, message: Message) -> None:
        self.taken.append(message)


class Subscribed:
    def __init__(self, future: Any) -> None:
        self._future = future


async def parsed(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[Taker, list[bytes]]:
    """(what the taker of subscription 1 was given, what the library was given of subscription 2)"""
    client, taker, left = DirectClient(), Taker(), list[bytes]()

    async def to_library(
        self: Client, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        left.append(subject)

    async def pong(self: Client) -> None:
        left.append(b"PING")

    monkeypatch.setattr(Client, "_process_msg", to_library)
    monkeypatch.setattr(Client, "_process_ping", pong)
    known = {1: Subscribed(taker), 2: Subscribed(asyncio.get_running_loop().create_future())}
    client._subs = cast(Any, known)
    for piece in pieces:
        await client._ps.parse(piece)
    assert bytes(client._ps.buf) == b""
    return taker, left


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(WIRE)])
async def test_however_the_bytes_are_cut_the_messages_are_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [WIRE[start : start + size] for start in range(0, len(WIRE), size)]

    taker, left = await parsed(pieces, monkeypatch)

    assert [(m.subject, m.reply, m.data, m.headers) for m in taker.taken] == EXPECTED
    assert left == [b"PING", b"q.q"]


@pytest.mark.parametrize("size", [1, 100])
async def test_a_subject_that_is_no_text_ends_no_connection(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lets them pass, and whoever may publish can send one."""
    wire = b"MSG a.\xff 1 _INBOX.\xfe 2\r\nhi\r\nMSG a.b 1 2\r\nho\r\n"
    pieces = [wire[start : start + size] for start in range(0, len(wire), size)]

    taker, _ = await parsed(pieces, monkeypatch)

    assert [(m.subject, m.reply, m.data) for m in taker.taken] == [
        ("a.\ufffd", "_INBOX.\ufffd", b"hi"),
        ("a.b", "", b"ho"),
    ]


async def test_a_message_of_a_subscription_that_ended_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taker, left = await parsed([b"MSG a 9 2\r\nno\r\nMSG b 1 3\r\nyes\r\n"], monkeypatch)

    assert [message.data for message in taker.taken] == [b"yes"]
    assert left == [b"a"]


def test_a_status_may_have_no_description() -> None:
    assert parse_headers(b"NATS/1.0 503\r\n\r\n") == {"Status": "503"}
