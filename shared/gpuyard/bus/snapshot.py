"""Reading many keys of a bucket at once: the last value of each, without what was deleted."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from nats.aio.msg import Msg

from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.publication import Stored
from gpuyard.bus.repeating import repeated
from gpuyard.errors import Unavailable

PULL_MESSAGES: Final = 4096
PULL_BYTES: Final = 32 * 1024 * 1024
"""Per pull: far below what the server would queue for one client before it cuts it off."""
SILENCE_S: Final = 3.0
ATTEMPTS: Final = 5


async def read_last_values(
    jetstream: JetStream, stream: str, subjects: Sequence[str]
) -> list[Stored]:
    """The live messages on `subjects` in order of sequence; wildcards allowed.

    Complete for everything stored before the call. A read that breaks is started anew.
    """
    found: dict[str, Stored] = {}
    # One consumer per subject: with several filters on a stream whose keys were overwritten the
    # server takes twenty times as long.
    for subject in subjects:
        found |= await repeated(
            partial(_read, jetstream, stream, subject), attempts=ATTEMPTS, pause_s=0.3
        )
    live = [stored for stored in found.values() if not stored.is_marker]
    return sorted(live, key=lambda stored: stored.sequence)


async def _read(jetstream: JetStream, stream: str, subject: str) -> dict[str, Stored]:
    return await _Reading(jetstream, stream).run(subject)


class _Reading:
    """One pass of a short-lived consumer. A gap in its own numbering means a lost message."""

    def __init__(self, jetstream: JetStream, stream: str) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._found: dict[str, Stored] = {}
        self._expected = 1
        self._left = 0
        self._pending = 0
        self._broken = False
        self._moved = asyncio.Event()

    async def run(self, subject: str) -> dict[str, Stored]:
        link = self._jetstream.link
        inbox = link.new_inbox()
        subscription = await link.subscribe(inbox, self._receive)
        consumer = ""
        try:
            answer = await self._jetstream.call(
                f"CONSUMER.CREATE.{self._stream}", _consumer(self._stream, subject)
            )
            consumer = answer["name"]
            self._pending = answer["num_pending"]
            await self._pull_all(consumer, inbox)
        finally:
            await subscription.close()
            if consumer and link.is_connected:
                # It would vanish by itself; nobody needs to wait for that.
                await link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")
        return self._found

    async def _pull_all(self, consumer: str, inbox: str) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
        request = f'{{"batch":{PULL_MESSAGES},"max_bytes":{PULL_BYTES},"expires":10000000000}}'
        while self._pending:
            if self._left <= 0:
                self._left = PULL_MESSAGES
                await self._jetstream.link.publish(subject, request.encode(), reply=inbox)
            self._moved.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._moved.wait()
            except TimeoutError as fault:
                raise Unavailable(f"reading {self._stream} stalled") from fault
            if self._broken:
                raise Unavailable(f"reading {self._stream} lost a message")

    def _receive(self, message: Msg) -> None:
        headers = message.headers
        if headers and "Status" in headers:
            # The pull is over before its count was: a byte limit, or the consumer is gone.
            self._left = 0
            self._moved.set()
            return
        tokens = message.reply.split(".")
        number, pending = int(tokens[-3]), int(tokens[-1])
        if number != self._expected:
            self._broken = True
        self._expected = number + 1
        self._left -= 1
        self._pending = pending
        self._found[message.subject] = Stored(
            subject=message.subject,
            sequence=int(tokens[-4]),
            data=message.data,
            headers=headers or {},
            at=None,
        )
        if self._left <= 0 or not pending or self._broken:
            self._moved.set()


def _consumer(stream: str, subject: str) -> dict[str, object]:
    return {
        "stream_name": stream,
        "config": {
            "ack_policy": "none",
            "deliver_policy": "last_per_subject",
            "filter_subject": subject,
            "inactive_threshold": 30_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        },
    }
