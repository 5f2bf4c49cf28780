"""Following a stream from now on: what is stored, in order, none left out that still exists.

Rules of this file. The consumer is short-lived and counts its deliveries: a number left out is a
lost message, and a new consumer goes on after the last one that was handed out. A message that was
overwritten or deleted meanwhile is never seen, its marker or its successor is instead. A marker
vanishes, too: after `MAX_GAP_S` out of touch nobody can tell what was missed, and `run` returns.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.link import Subscription
from gpuyard.bus.message import Message
from gpuyard.bus.publication import Stored, parse_time
from gpuyard.bus.refusals import StreamRefusal
from gpuyard.errors import Unavailable

MAX_GAP_S: Final = 10.0
HEARTBEAT_S: Final = 1.0
SILENCE_S: Final = 2.5
_NEXT_TRY_S: Final = 0.2
log = logging.getLogger(__name__)


class Tail:
    """Hands every new message under `subject` to `deliver`, which must not block.

    `start`, then `run` until it returns or is cancelled, then `stop`.
    """

    def __init__(
        self, jetstream: JetStream, *, stream: str, subject: str, deliver: Callable[[Stored], None]
    ) -> None:
        self.sequence = 0
        """Of the last message handed out; at first, the newest before the tail began."""
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._deliver = deliver
        self._at: datetime | None = None
        """When the server stored that message, on the server's clock."""
        self._number = 0
        self._subscription: Subscription | None = None
        self._consumer = ""
        self._heard = 0.0
        self._broken = asyncio.Event()

    async def start(self) -> None:
        """From here on nothing new is missed; raises Unavailable where the bus does not answer."""
        self.sequence = (await self._jetstream.state(self._stream)).last_sequence
        await self._consume()

    async def run(self) -> None:
        """Go on through outages; returns after one in which something may have been missed."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S / 2):
                    await self._broken.wait()
            except TimeoutError:
                if asyncio.get_running_loop().time() - self._heard < SILENCE_S:
                    continue
            try:
                created = await self._consume()
            except (Unavailable, StreamRefusal):
                await asyncio.sleep(_NEXT_TRY_S)
                continue
            if self._at is None or created - self._at > timedelta(seconds=MAX_GAP_S):
                return

    async def stop(self) -> None:
        """Hand nothing out any more."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        try:
            await subscription.close()
            # It would vanish by itself; nobody needs to wait for that.
            name = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}"
            await self._jetstream.link.publish(name, b"")
        except Unavailable:
            log.debug("the consumer is left to end by itself")

    async def _consume(self) -> datetime:
        """A new consumer in place of the last one; returns the server's time of its making."""
        await self.stop()
        inbox = self._jetstream.link.new_inbox()
        self._number = 0
        self._broken.clear()
        self._heard = asyncio.get_running_loop().time()
        self._subscription = await self._jetstream.link.subscribe(inbox, self._receive)
        answer = await self._jetstream.call(
            f"CONSUMER.CREATE.{self._stream}", self._request(inbox), attempts=2
        )
        self._consumer = str(answer["name"])
        created = parse_time(str(answer.get("created", ""))) or datetime.now(UTC)
        if self._at is None:
            self._at = created
        return created

    def _request(self, inbox: str) -> dict[str, Any]:
        return {
            "stream_name": self._stream,
            "config": {
                "ack_policy": "none",
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": self.sequence + 1,
                "deliver_subject": inbox,
                "filter_subject": self._subject,
                "idle_heartbeat": int(HEARTBEAT_S * 1e9),
                "inactive_threshold": 30_000_000_000,
                "mem_storage": True,
                "num_replicas": 1,
                "replay_policy": "instant",
            },
        }

    def _receive(self, message: Message) -> None:
        headers = message.headers
        if "Status" in headers:
            if headers["Status"] == "100" and self._number != int(
                headers.get("Nats-Last-Consumer", self._number)
            ):
                self._broken.set()
            self._heard = asyncio.get_running_loop().time()
            return
        tokens = message.reply.split(".")
        number = int(tokens[-3])
        if number != self._number + 1 or self._broken.is_set():
            self._broken.set()
            return
        self._number, self._heard = number, asyncio.get_running_loop().time()
        self.sequence = int(tokens[-4])
        self._at = datetime.fromtimestamp(int(tokens[-2]) / 1e9, UTC)
        self._deliver(
            Stored(
                subject=message.subject,
                sequence=self.sequence,
                data=message.data,
                headers=headers,
                at=self._at,
            )
        )
