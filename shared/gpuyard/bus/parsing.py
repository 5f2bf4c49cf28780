"""What the server sends, taken apart without a queue and a task's turn for each message; and the
client that does so, which also sends messages the short way (`sending.py`) and ends without leaving
a socket or a task behind.

The library's client looks at each message four times, queues it and wakes a task: most of the time
in which a hundred thousand stored documents are read. Our callbacks never block, so they are called
straight from the parser. What is not a whole message of ours is left to the library's own parser,
which calls back through `DirectClient._process_msg`: the order of messages stays that of the
server.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport
from nats.errors import MaxPayloadError, OutboundBufferLimitError
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from gpuyard.bus.message import Message
from gpuyard.bus.sending import Outgoing, header_lines, publish_command

_MESSAGE: Final = re.compile(
    # Subject, subscription, perhaps where to answer, with headers their length, the whole length.
    rb"(?:(H)MSG|MSG) ([^ \r\n]+) (\d+) (?:([^ \r\n]+) )??(?(1)(\d+) )(\d+)\r\n"
)
_LINE_END: Final = 2
_HEADER: Final = re.compile(r"\n([^:\r\n]+):[ \t]*([^\r\n]*)")
_FIRST_LINE: Final = len("NATS/1.0")
_STATUS_DIGITS: Final = 3


class DirectClient(Client):
    """The library's client with a `DirectParser`, and publishing by `publish_command`.

    A subscription is made with something in the place of a future, whose `set_result` takes each of
    its messages; that must neither block nor raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = DirectParser(self)
        self._has_written = False
        """In this round of the event loop."""

    def taker_of(self, sid: int) -> Callable[[Message], None] | None:
        """Who takes the messages of a subscription; None where the library's queue does."""
        future: Any = getattr(self._subs.get(sid), "_future", None)
        return None if future is None or isinstance(future, asyncio.Future) else future.set_result

    def abort(self) -> None:
        """Break the connection at once, without what is still to be sent; safe to call twice."""
        if isinstance(self._transport, TcpTransport):
            writer = self._transport._bare_io_writer  # below TLS
            # asyncio fails on one whose close was over once the last bytes were sent.
            if writer is not None and writer.get_extra_info("socket").fileno() != -1:
                writer.transport.abort()
        elif self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    def background_tasks(self) -> "list[asyncio.Task[None]]":
        """What goes on beside the calls: reading, pings, flushing, reconnecting."""
        tasks = (
            self._reading_task,
            self._ping_interval_task,
            self._flusher_task,
            self._reconnection_task,
        )
        return [task for task in tasks if task is not None]

    async def _connect_to_server(self, s: Srv) -> None:
        # The library forgets the connection of a reconnect that failed in the greeting.
        self.abort()
        # What the last one did not take any more: whoever sent it was told that it broke.
        self._pending, self._pending_data_size = [], 0
        await super()._connect_to_server(s)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        take = self.taker_of(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            headings = parse_headers(headers) if headers else None
            take(Message(_text(subject), data, _text(reply), headings))

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: dict[str, Any] | None,
    ) -> None:
        lines = None if headers is None else header_lines(headers)
        if not subject or (headers is not None and lines is None):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        await self._send_commands([publish_command(subject, reply, payload, lines)])

    async def publish_all(
        self, messages: Sequence[Outgoing], *, more_follows: bool = False
    ) -> None:
        """Publish in one go, each as `publish` would; raises as it does, then none is sent. With
        `more_follows` they wait for the next message, and go out with it."""
        if self.is_draining_pubs or not self.is_connected:
            raise OutboundBufferLimitError
        if max((len(payload) for _, payload, _ in messages), default=0) > self._max_payload:
            raise MaxPayloadError
        await self._send_commands(
            [publish_command(subject, "", payload, lines) for subject, payload, lines in messages],
            more_follows=more_follows,
        )

    async def _send_commands(
        self, commands: Sequence[bytes], *, more_follows: bool = False
    ) -> None:
        self.stats["out_msgs"] += len(commands)
        joined = commands[0] if len(commands) == 1 else b"".join(commands)
        self.stats["out_bytes"] += len(joined)
        await self._send_command(joined)
        if more_follows or self._write_now():
            return
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def _write_now(self) -> bool:
        """The first commands of a round of the event loop go out in this very moment: the library's
        flusher is a task that gets its turn after all that waits. What follows in the same round,
        or finds the socket full, is left to it and goes out together."""
        if self._has_written or not isinstance(self._transport, TcpTransport):
            return False
        writer = self._transport._io_writer
        if writer is None or not self.is_connected or writer.transport.get_write_buffer_size():
            return False
        self._has_written = True
        asyncio.get_running_loop().call_soon(self._begin_round)
        commands, self._pending, self._pending_data_size = self._pending, [], 0
        writer.writelines(commands)
        return True

    def _begin_round(self) -> None:
        self._has_written = False


class DirectParser(Parser):
    """Hands over whole messages; the rest is the library's."""

    nc: DirectClient

    def reset(self) -> None:
        super().reset()
        self._enough = 0
        """How long the buffer has to be before there is a whole message in it."""

    async def parse(self, data: bytes = b"") -> None:
        self.buf.extend(data)
        if self.state == AWAITING_CONTROL_LINE:
            if len(self.buf) < self._enough:
                return
            del self.buf[: self._take_messages(bytes(self.buf))]
            if self._enough:
                return
        await super().parse()

    def _take_messages(self, buffer: bytes) -> int:
        """How many bytes at the beginning were messages, which are taken now."""
        position, sid = 0, b""
        take: Callable[[Message], None] | None = None
        self._enough = 0
        while (found := _MESSAGE.match(buffer, position)) is not None:
            _, subject, number, reply, head_size, size = found.groups()
            head = found.end()
            end = head + int(size)
            if end + _LINE_END > len(buffer):
                self._enough = end + _LINE_END - position
                break
            if number != sid:
                sid, take = number, self.nc.taker_of(int(number))
            if take is None:
                break
            headers = None
            if head_size:
                headers = parse_headers(buffer[head : (head := head + int(head_size))])
            take(Message(_text(subject), buffer[head:end], _text(reply), headers))
            position = end + _LINE_END
        return position


def _text(subject: bytes | None) -> str:
    """A subject as text, empty for none. The server lets any bytes pass in one that are no blanks;
    those that are no text are in no subject of ours."""
    return subject.decode("utf-8", "replace") if subject else ""


def parse_headers(raw: bytes) -> dict[str, str]:
    """The headers of a message; a status in the first line becomes `Status` and `Description`."""
    text = raw.decode("utf-8", "replace")
    end = text.find("\r\n")
    headers: dict[str, str] = dict(_HEADER.findall(text, end))
    if end > _FIRST_LINE:
        status = text[_FIRST_LINE + 1 : end]
        headers["Status"] = status[:_STATUS_DIGITS]
        if description := status[_STATUS_DIGITS:].strip():
            headers["Description"] = description
    return headers
