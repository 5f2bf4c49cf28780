"""Intake of a stream through a durable consumer: strictly in order, nothing skipped.

Rules of this file. `_next` is the sequence that is handed out next. A delivery below it is a
redelivery: acknowledged at once if its effect is stored, else remembered for its fresh reply
subject. A delivery above it leaves a gap: what is missing was delivered and lost on the way, by us
or by a leader that died, and is read from the stream itself; what the stream has no more was
purged. The consumer acknowledges all up to a sequence, so one message acknowledges a commit.
"""

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpuyard import codec
from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.link import Subscription
from gpuyard.bus.message import Message
from gpuyard.bus.publication import Stored
from gpuyard.bus.refusals import StreamRefusal
from gpuyard.errors import Unavailable

PULL_MESSAGES: Final = 256
EXPIRES_S: Final = 5.0
HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 2.5
ACK_WAIT_S: Final = 10.0
MAX_ACK_PENDING: Final = 4000
log = logging.getLogger(__name__)


class Delivery:
    """One stored message, handed out once per `PullLoop`. `ack` when its effect is stored."""

    __slots__ = ("_loop", "at", "data", "headers", "sequence", "subject")

    def __init__(
        self,
        loop: "PullLoop",
        *,
        subject: str,
        data: bytes,
        headers: Mapping[str, str],
        sequence: int,
        at: datetime | None,
    ) -> None:
        self._loop = loop
        self.subject = subject
        self.data = data
        self.headers = headers
        self.sequence = sequence
        """Its sequence in the stream."""
        self.at = at
        """When the server stored it."""

    def body(self) -> dict[str, Any]:
        """The decoded body; raises RemoteProtocolError."""
        return codec.decode(self.data, headers=self.headers)

    def ack(self) -> None:
        """Never deliver it again, to whoever leads. Returns at once; a lost acknowledgement only
        means a redelivery, which this loop answers by itself."""
        self._loop.note_done(self.sequence)


class PullLoop:
    """Hands the messages of a stream to `deliver`, in order, until stopped.

    It survives every outage: reconnects, server restarts, lost deliveries and lost
    acknowledgements. `deliver` is called from the event loop and must not block.
    """

    def __init__(
        self,
        jetstream: JetStream,
        *,
        stream: str,
        durable: str,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._durable = durable
        self._deliver = deliver
        self._next = 1
        self._floor = 0
        self._done: set[int] = set()
        self._handed: dict[int, str] = {}
        """Sequence to reply subject of what was handed out and is above the floor, in order."""
        self._held: dict[int, Message] = {}
        self._inbox = ""
        self._pulls = itertools.count(1)
        self._pull = 0
        self._left = 0
        self._heard = 0.0
        self._subscription: Subscription | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._repairing: asyncio.Task[None] | None = None
        self._ack_due = False
        self._stopped = False
        self._forget_hook: Callable[[], None] | None = None

    @property
    def floor(self) -> int:
        """Everything up to this sequence of the stream is done: it may be purged."""
        return self._floor

    async def start(self) -> None:
        """Take over where the last acknowledgement stood, what is undelivered and what is not."""
        link = self._jetstream.link
        info = await self._consumer_info()
        self._floor = info["ack_floor"]["stream_seq"]
        self._next = self._floor + 1
        self._inbox = link.new_inbox()
        self._subscription = await link.subscribe(f"{self._inbox}.*", self._receive)
        self._forget_hook = link.on_reconnect(self._reconnected)
        self._repair(info["delivered"]["stream_seq"])
        self._pull_more()
        self._spawn(self._watch())

    async def stop(self) -> None:
        """Hand nothing out any more. What is not acknowledged goes to the next loop."""
        self._stopped = True
        if self._forget_hook is not None:
            self._forget_hook()
            self._forget_hook = None
        if self._subscription is not None:
            await self._subscription.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def note_done(self, sequence: int) -> None:
        """The effect of this message is stored."""
        if sequence <= self._floor or self._stopped:
            return
        self._done.add(sequence)
        if not self._ack_due:
            # All messages of one commit are noted in a row: one acknowledgement serves them all.
            self._ack_due = True
            asyncio.get_running_loop().call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_due = False
        reply = ""
        while self._handed and (sequence := next(iter(self._handed))) in self._done:
            self._done.discard(sequence)
            reply = self._handed.pop(sequence) or reply
            self._floor = sequence
        if reply:
            self._spawn(self._send_ack(reply))

    async def _send_ack(self, reply: str) -> None:
        try:
            await self._jetstream.link.publish(reply, b"+ACK")
        except Unavailable:
            log.debug("acknowledgement not sent; the redelivery will be answered")

    def _receive(self, message: Message) -> None:
        self._heard = asyncio.get_running_loop().time()
        status = message.headers.get("Status")
        if status is not None:
            self._note_status(message, status)
            return
        self._left -= 1
        if self._left <= 0:
            self._pull_more()
        sequence = _sequence_of(message)
        if sequence < self._next:
            self._note_redelivery(sequence, message.reply)
        elif sequence == self._next:
            self._hand_out(message, sequence)
            self._release_held()
        else:
            self._held[sequence] = message
            self._repair(sequence - 1)

    def _note_status(self, message: Message, status: str) -> None:
        if status == "100":
            # It names the last sequence that was delivered to anybody: by that, deliveries that
            # were lost with nothing after them are noticed too.
            self._repair(int(message.headers.get("Nats-Last-Stream", "0")))
            return
        if message.subject.rsplit(".", 1)[1] != str(self._pull):
            return
        if status in ("404", "408", "409"):
            self._pull_more()
        # Anything else (503: nobody there) is left to the watch, which waits before it asks again.

    def _note_redelivery(self, sequence: int, reply: str) -> None:
        if sequence <= self._floor:
            self._spawn(self._send_ack(reply))
        elif sequence in self._handed:
            self._handed[sequence] = reply

    def _hand_out(self, message: Message, sequence: int) -> None:
        delivery = Delivery(
            self,
            subject=message.subject,
            data=message.data,
            headers=message.headers,
            sequence=sequence,
            at=_time_of(message),
        )
        self._hand(delivery, message.reply)

    def _hand(self, delivery: Delivery, reply: str) -> None:
        self._next = delivery.sequence + 1
        self._handed[delivery.sequence] = reply
        self._deliver(delivery)

    def _release_held(self) -> None:
        while (message := self._held.pop(self._next, None)) is not None:
            self._hand_out(message, self._next)

    def _repair(self, until: int) -> None:
        """Read what is missing up to `until`, unless that is being done already."""
        if until < self._next or self._stopped:
            return
        if self._repairing is None or self._repairing.done():
            self._repairing = self._spawn(self._read_missing(until))

    async def _read_missing(self, until: int) -> None:
        while self._next <= until or self._held:
            until = max(until, min(self._held, default=1) - 1)
            wanted = self._next
            try:
                stored = await self._jetstream.first_from(self._stream, wanted)
            except (Unavailable, StreamRefusal):
                await asyncio.sleep(HEARTBEAT_S / 2)
                continue
            if self._next != wanted:
                continue
            if stored is not None and stored.sequence <= until:
                self._hand_stored(stored)
            else:
                self._next = until + 1
            self._release_held()
            self._drop_stale_held()

    def _hand_stored(self, stored: Stored) -> None:
        delivery = Delivery(
            self,
            subject=stored.subject,
            data=stored.data,
            headers=stored.headers,
            sequence=stored.sequence,
            at=stored.at,
        )
        self._hand(delivery, "")

    def _drop_stale_held(self) -> None:
        for sequence in [held for held in self._held if held < self._next]:
            self._note_redelivery(sequence, self._held.pop(sequence).reply)

    def _pull_more(self) -> None:
        self._pull = next(self._pulls)
        self._left = PULL_MESSAGES
        self._heard = asyncio.get_running_loop().time()
        self._spawn(self._send_pull(f"{self._inbox}.{self._pull}"))

    async def _send_pull(self, reply: str) -> None:
        request = {
            "batch": PULL_MESSAGES,
            "expires": int(EXPIRES_S * 1e9),
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}"
        try:
            await self._jetstream.link.publish(subject, json.dumps(request).encode(), reply=reply)
        except Unavailable:
            log.debug("pull not sent; the reconnect pulls again")

    def _reconnected(self) -> None:
        if not self._stopped:
            self._spawn(self._resume())

    async def _resume(self) -> None:
        """Pull again at once, and look for deliveries that the broken connection swallowed."""
        self._pull_more()
        try:
            info = await self._consumer_info()
        except (Unavailable, StreamRefusal):
            # The next silence ends here again.
            self._heard = 0.0
            return
        self._repair(info["delivered"]["stream_seq"])

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            if self._jetstream.link.is_connected and loop.time() - self._heard > SILENCE_S:
                await self._resume()

    async def _consumer_info(self) -> dict[str, Any]:
        """Create the consumer or find it; the same call does both."""
        config = {
            "durable_name": self._durable,
            "ack_policy": "all",
            "ack_wait": int(ACK_WAIT_S * 1e9),
            "max_ack_pending": MAX_ACK_PENDING,
            "deliver_policy": "all",
            "replay_policy": "instant",
        }
        return await self._jetstream.call(
            f"CONSUMER.CREATE.{self._stream}.{self._durable}",
            {"stream_name": self._stream, "config": config},
            attempts=3,
        )

    def _spawn(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _sequence_of(message: Message) -> int:
    return int(message.reply.split(".")[-4])


def _time_of(message: Message) -> datetime | None:
    nanoseconds = int(message.reply.split(".")[-2])
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
