"""Reading many keys of a bucket at once: the last value of each.

Of three servers the one that happens to serve a read may have been away and be behind. So a read
asks the leader of the stream first which message is the newest, and one that does not come to it is
started anew.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.message import Message
from gpuyard.bus.publication import Stored
from gpuyard.bus.repeating import repeated
from gpuyard.errors import Unavailable

PULL_MESSAGES: Final = 4096
CHUNK_MESSAGES: Final = 512
"""Per pull of a reader that works on them as they come: some 10 ms of the event loop."""
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
    reading = _Reading(jetstream, stream)
    await reading.run(subject)
    return reading.found


@dataclass(frozen=True, slots=True)
class Cut:
    """What a bucket held at one sequence, without what was deleted, in order of sequence."""

    sequence: int
    messages: list[Stored]


async def read_cut(jetstream: JetStream, stream: str, subject: str) -> Cut:
    """The live messages on `subject` as they stood together at one sequence.

    It goes on into what is written meanwhile until it stands between two batches. A read that
    breaks is started anew.
    """

    async def read() -> Cut:
        return await _Reading(jetstream, stream, is_cut=True).run_cut(subject)

    return await repeated(read, attempts=ATTEMPTS, pause_s=0.3)


async def last_values(
    jetstream: JetStream, stream: str, subject: str, *, headers_only: bool = False
) -> AsyncIterator[list[Stored]]:
    """The last message of each subject under `subject`, markers included, in order of sequence: a
    few hundred at a time, so that a reader of many keeps neither them nor the event loop. With
    `headers_only` their data is empty.

    Complete for everything stored before the call once it ends; raises Unavailable where the read
    breaks, after any number of them.
    """
    reading = _Reading(jetstream, stream, pull=CHUNK_MESSAGES, headers_only=headers_only)
    async with aclosing(reading.pulls(subject)) as pulls:
        async for _ in pulls:
            found, reading.found = reading.found, {}
            yield list(found.values())


class _Reading:
    """One pass of a short-lived consumer. A gap in its own numbering means a lost message."""

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        *,
        is_cut: bool = False,
        pull: int = PULL_MESSAGES,
        headers_only: bool = False,
    ) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._is_cut = is_cut
        self._headers_only = headers_only
        self._reached = 0
        self._pull = pull
        self.found: dict[str, Stored] = {}
        self._expected = 1
        self._left = 0
        self._pending = 0
        self._broken = False
        self._moved = asyncio.Event()

    async def run(self, subject: str) -> None:
        async with aclosing(self.pulls(subject)) as pulls:
            async for _ in pulls:
                pass

    async def pulls(self, subject: str) -> AsyncGenerator[None, None]:
        """Once after each pull, with what it brought in `found`."""
        link = self._jetstream.link
        inbox = link.new_inbox()
        subscription = await link.subscribe(inbox, self._receive)
        consumer = ""
        try:
            newest = await self._jetstream.last(self._stream, subject)
            answer = await self._jetstream.call(
                f"CONSUMER.CREATE.{self._stream}",
                _consumer(self._stream, subject, headers_only=self._headers_only),
            )
            consumer = answer["name"]
            self._pending = answer["num_pending"]
            is_coming = self._pending > 0
            if is_coming:
                await self._ask(consumer, inbox)
            while is_coming:
                await self._wait()
                is_coming = self._pending > 0
                if is_coming:
                    # Before what came is worked on: meanwhile the server sends on.
                    await self._ask(consumer, inbox)
                yield
            if newest is not None and self._reached < newest.sequence:
                raise Unavailable(f"reading {self._stream} from a server that is behind")
        finally:
            await subscription.close()
            if consumer and link.is_connected:
                # It would vanish by itself; nobody needs to wait for that.
                await link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def run_cut(self, subject: str) -> Cut:
        await self.run(subject)
        live = [stored for stored in self.found.values() if not stored.is_marker]
        return Cut(self._reached, sorted(live, key=lambda stored: stored.sequence))

    async def _wait(self) -> None:
        """Until the pull is over, or there is nothing left."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._moved.wait()
        except TimeoutError as fault:
            if self._is_cut and await self._has_caught_up():
                self._pending = 0
                return
            raise Unavailable(f"reading {self._stream} stalled") from fault
        if self._broken:
            raise Unavailable(f"reading {self._stream} lost a message")

    async def _ask(self, consumer: str, inbox: str) -> None:
        """For the next pull, once the last is over."""
        self._left = self._pull
        self._moved.clear()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{consumer}"
        request = f'{{"batch":{self._pull},"max_bytes":{PULL_BYTES},"expires":10000000000}}'
        await self._jetstream.link.publish(subject, request.encode(), reply=inbox)

    async def _has_caught_up(self) -> bool:
        """What was overwritten while it waited stays counted as pending and never comes."""
        return await self._jetstream.first_from(self._stream, self._reached + 1) is None

    def _receive(self, message: Message) -> None:
        headers = message.headers
        if "Status" in headers:
            # The pull is over before its count was: a byte limit, or the consumer is gone.
            self._left = 0
            self._moved.set()
            return
        # $JS.ACK, names, and at the end: sequence, number, time, and how many follow.
        _, sequence, count, at, left = message.reply.rsplit(".", 4)
        number, pending = int(count), int(left)
        if number != self._expected:
            self._broken = True
        self._expected = number + 1
        self._left -= 1
        if self._is_cut and _is_inside_batch(headers):
            pending = max(1, pending)
        self._pending = pending
        self._reached = int(sequence)
        if not self._broken:
            self.found[message.subject] = Stored(
                subject=message.subject,
                sequence=self._reached,
                data=message.data,
                headers=headers,
                at=_time_of(at) if self._is_cut else None,
            )
        if self._left <= 0 or not pending or self._broken:
            self._moved.set()


def _is_inside_batch(headers: Mapping[str, str]) -> bool:
    return "Nats-Batch-Id" in headers and "Nats-Batch-Commit" not in headers


def _time_of(nanoseconds: str) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) / 1e9, UTC)


def _consumer(stream: str, subject: str, *, headers_only: bool) -> dict[str, object]:
    return {
        "stream_name": stream,
        "config": {
            "ack_policy": "none",
            "deliver_policy": "last_per_subject",
            "filter_subject": subject,
            "headers_only": headers_only,
            "inactive_threshold": 30_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        },
    }
