"""The relay of committed effects: events, audit and usage records, each stored exactly once.

One lane per stream, in the order of the records. A lane sends single messages while it keeps up
and atomic batches when it falls behind. A message that was stored before, by this relay or by one
that died, is refused by the server and counts as done: events and usage have a subject of their
own each and expect it to be empty; audit records, whose subjects repeat, form a chain, and each
carries its number so that the last one stored tells which are.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpuyard import subjects
from gpuyard.bus import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    JetStream,
    Publication,
    Stale,
    StorageFull,
    StreamRefusal,
    Undecided,
)
from gpuyard.errors import LocalProtocolError, Unavailable
from gpuyard.messages import OutRecord, Token
from gpuyard_coordinator.out_records import PackedMessage, packed_messages

NUMBER_HEADER: Final = "Gpuyard-Out"
"""`<generation>.<n>.<index>` of an audit record."""
BATCH_FROM: Final = 6
"""Above so many waiting messages an atomic batch is quicker than one after the other."""
_UNDECIDED_S: Final = 0.005
_NEXT_TRY_S: Final = 0.1
_REFUSED_S: Final = 1.0
_LANES: Final = {
    "gpuyard.events.": subjects.EVENTS_STREAM,
    "gpuyard.usage.": subjects.USAGE_STREAM,
    "gpuyard.audit.": subjects.AUDIT_STREAM,
}
log = logging.getLogger(__name__)

Number = tuple[int, int, int]


class _Item(NamedTuple):
    number: Number
    subject: str
    data: bytes


class Outbox:
    """Publishes the messages of out records in order, for as long as this leadership lasts.

    `n` grows over all leaders: start from the snapshot's `next_out`. A record whose messages are
    all stored is acknowledged; its key `out.<n>` is then deleted by whoever takes the number
    (`take_acknowledged`): the loop, which lets the store forget it.
    """

    def __init__(self, jetstream: JetStream, *, token: Token) -> None:
        self._jetstream = jetstream
        self._token = token
        self._open: dict[int, int] = {}
        """Messages not stored yet, per record."""
        self._acknowledged: list[int] = []
        self._moved = asyncio.Event()
        self._lanes = {
            stream: _AuditLane(jetstream, stream, self._note_stored)
            if stream == subjects.AUDIT_STREAM
            else _Lane(jetstream, stream, self._note_stored)
            for stream in _LANES.values()
        }

    @property
    def pending(self) -> int:
        """Records pushed whose messages are not all stored yet."""
        return len(self._open)

    @property
    def acknowledged(self) -> int:
        """Numbers that `take_acknowledged` would hand out."""
        return len(self._acknowledged)

    @property
    def blocked(self) -> dict[str, str]:
        """Why messages wait, for each stream that does not take them."""
        return {stream: lane.blocked for stream, lane in self._lanes.items() if lane.blocked}

    def push(self, n: int, record: OutRecord) -> None:
        """Start publishing a record that is committed."""
        self.push_packed(n, packed_messages(record))

    def push_packed(self, n: int, messages: Sequence[PackedMessage]) -> None:
        """The same, of messages whose bodies are packed already."""
        if n in self._open:
            raise LocalProtocolError(f"out record {n} was pushed already")
        if not messages:
            self._acknowledged.append(n)
            return
        self._open[n] = len(messages)
        generation = self._token[0]
        for index, (subject, data) in enumerate(messages):
            self._lanes[_stream_of(subject)].add(_Item((generation, n, index), subject, data))

    async def drain(self, outs: Sequence[tuple[int, OutRecord]]) -> None:
        """Publish what an earlier leader left behind, and wait for it: call before any `push`."""
        for n, record in sorted(outs, key=lambda entry: entry[0]):
            self.push(n, record)
        while self._open:
            self._moved.clear()
            await self._moved.wait()

    def take_acknowledged(self) -> list[int]:
        """The numbers whose keys `out.<n>` can be deleted now; each is handed out once."""
        taken, self._acknowledged = self._acknowledged, []
        return taken

    async def close(self) -> None:
        """Stop publishing; what is not stored yet is left to the next leader's `drain`."""
        for lane in self._lanes.values():
            await lane.close()

    def _note_stored(self, items: Sequence[_Item]) -> None:
        for n, count in Counter([item.number[1] for item in items]).items():
            self._open[n] -= count
            if not self._open[n]:
                del self._open[n]
                self._acknowledged.append(n)
                self._moved.set()


class _Lane:
    """The messages for one stream, whose subjects are unique."""

    def __init__(
        self, jetstream: JetStream, stream: str, note_stored: Callable[[Sequence[_Item]], None]
    ) -> None:
        self.stream = stream
        self.blocked: str | None = None
        """Why its oldest message is not stored yet."""
        self._jetstream = jetstream
        self._note_stored = note_stored
        self._waiting: deque[_Item] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, item: _Item) -> None:
        self._waiting.append(item)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"outbox-{self.stream}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._step()
            except Undecided:
                await asyncio.sleep(_UNDECIDED_S)
            except (StorageFull, StreamRefusal) as fault:
                # Full, or not made yet: an effect that was committed is never given up.
                self.blocked = str(fault)
                log.error("stream refuses", extra={"stream": self.stream, "fault": str(fault)})
                await asyncio.sleep(_REFUSED_S)
            except Unavailable as fault:
                self.blocked = str(fault)
                await asyncio.sleep(_NEXT_TRY_S)
            else:
                self.blocked = None

    async def _step(self) -> None:
        """Store the oldest waiting message, or many; a raise leaves all that is open waiting."""
        if len(self._waiting) < BATCH_FROM:
            await self._send_one()
            return
        items = self._head()
        try:
            await self._jetstream.publish_batch(self._publications(items))
        except Stale:
            # At least one was stored before; one by one tells which.
            for _ in items:
                await self._send_one()
        else:
            self._note(items)

    async def _send_one(self) -> None:
        item = self._waiting[0]
        try:
            await self._jetstream.publish(self._publications([item])[0])
        except Stale:
            log.info("stored before", extra={"subject": item.subject})
        self._note([item])

    def _publications(self, items: Sequence[_Item]) -> list[Publication]:
        return [Publication(item.subject, item.data, expected=0) for item in items]

    def _head(self) -> list[_Item]:
        """The oldest messages that fit one batch."""
        items: list[_Item] = []
        size = 0
        for item in self._waiting:
            size += len(item.data) + len(item.subject) + 300
            if len(items) == MAX_BATCH_MESSAGES or (items and size > MAX_BATCH_BYTES):
                break
            items.append(item)
        return items

    def _note(self, items: Sequence[_Item]) -> None:
        for _ in items:
            self._waiting.popleft()
        self._note_stored(items)


class _AuditLane(_Lane):
    """The audit chain: every message expects the last sequence of the whole stream."""

    def __init__(
        self, jetstream: JetStream, stream: str, note_stored: Callable[[Sequence[_Item]], None]
    ) -> None:
        super().__init__(jetstream, stream, note_stored)
        self._last: int | None = None

    async def _step(self) -> None:
        if self._last is None:
            await self._look()
            return
        items = self._head()
        publications = self._publications(items)
        try:
            if len(items) == 1:
                ack = await self._jetstream.publish(publications[0])
            else:
                ack = await self._jetstream.publish_batch(publications)
        except Stale:
            self._last = None
            return
        except Unavailable:
            self._last = None
            raise
        self._last = ack.sequence
        self._note(items)

    async def _look(self) -> None:
        """Where the chain ends, and which of the waiting records are in it already."""
        state = await self._jetstream.state(self.stream)
        stored = await self._jetstream.first_from(self.stream, max(1, state.last_sequence))
        if stored is not None:
            reached = _parse_number(stored.headers.get(NUMBER_HEADER, ""))
            self._note([item for item in self._waiting if item.number <= reached])
        self._last = state.last_sequence

    def _publications(self, items: Sequence[_Item]) -> list[Publication]:
        return [
            Publication(
                item.subject,
                item.data,
                expected_in_stream=None if index else self._last,
                headers={NUMBER_HEADER: ".".join(map(str, item.number))},
            )
            for index, item in enumerate(items)
        ]


def _stream_of(subject: str) -> str:
    for prefix, stream in _LANES.items():
        if subject.startswith(prefix):
            return stream
    raise LocalProtocolError(f"no stream for {subject}")


def _parse_number(text: str) -> Number:
    try:
        generation, n, index = (int(part) for part in text.split("."))
    except ValueError:
        return (0, 0, 0)
    return (generation, n, index)
