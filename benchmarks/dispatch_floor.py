"""The floor under dispatch: what the bus alone takes for the same durable steps.

A submission is stored (PubAck), pulled, answered by one fenced commit of as many messages of the
same sizes as the coordinator's (one alone, or an atomic batch), and followed by one core message.
Publisher, leader and agent have a connection each, all in this process, and nothing is decided in
between. Beside it, for comparison, the same bytes as an atomic batch of a job, its out record, a
delete marker and a commit record.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from gpuyard import subjects
from gpuyard.bus import (
    Bus,
    Delivery,
    Publication,
    PullLoop,
    Sizes,
    connect,
    stream_configs,
)

SUBMIT: Final = "floor.submit.default"
WANTED: Final = "floor.wanted.node"
_STATE: Final = "$KV.floor"
_EPOCH: Final = f"{_STATE}.leader.epoch"
_COMMIT: Final = f"{_STATE}.leader.commit"
_STORE_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WrittenKey:
    """One message of a commit as the coordinator wrote it."""

    key: str
    size: int
    is_marker: bool


class FloorTimes(NamedTuple):
    """Seconds. `total` runs from the publish to the core message's arrival; the PubAck comes
    beside it and is no part of it, and `batch` is the commit done once more as an atomic batch."""

    pub_ack: float
    pull: float
    commit: float
    push: float
    total: float
    batch: float


class Floor:
    """Use it as an async context manager; `once` is one round."""

    def __init__(self, url: str, *, written: Sequence[WrittenKey], wanted_bytes: int) -> None:
        self._url = url
        self._written = [key for key in written if key.key != subjects.COMMIT_KEY]
        self._is_batch = len(written) > 1
        self._wanted = os.urandom(wanted_bytes)
        self._buses: list[Bus] = []
        self._intake: PullLoop | None = None
        self._delivered: asyncio.Future[Delivery]
        self._pushed: asyncio.Future[float]
        self._epoch = self._record = 0
        self._rounds = 0

    async def __aenter__(self) -> Self:
        for role in ("publisher", "leader", "agent"):
            prefix = f"_INBOX.floor.{role}"
            bus = await connect(self._url, name=f"floor-{role}", inbox_prefix=prefix)
            self._buses.append(bus)
        _, leader, agent = self._buses
        for config in _streams():
            await leader.jetstream.call(f"STREAM.CREATE.{config['name']}", config)
        self._epoch = (await leader.jetstream.publish(Publication(_EPOCH, b"floor"))).sequence
        self._record = (await leader.jetstream.publish(Publication(_COMMIT, b"floor"))).sequence
        self._intake = PullLoop(
            leader.jetstream,
            stream="FLOOR_SUBMIT",
            durable="floor",
            deliver=lambda delivery: self._delivered.set_result(delivery),
        )
        await self._intake.start()
        await agent.agents.subscribe(WANTED, lambda _: self._pushed.set_result(time.perf_counter()))
        await asyncio.sleep(0.2)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._intake is not None:
            await self._intake.stop()
        for bus in self._buses:
            await bus.close()

    async def once(self, body: bytes) -> FloorTimes:
        publisher, leader, _ = self._buses
        loop = asyncio.get_running_loop()
        self._delivered, self._pushed = loop.create_future(), loop.create_future()
        parts = self._publications(self._written)
        began = time.perf_counter()
        acking = asyncio.create_task(_timed(publisher, Publication(SUBMIT, body)))
        delivery = await self._delivered
        delivered = time.perf_counter()
        await self._commit(leader, parts, is_batch=self._is_batch)
        committed = time.perf_counter()
        await leader.agents.publish(WANTED, self._wanted)
        delivery.ack()
        pushed = await self._pushed
        return FloorTimes(
            pub_ack=await acking - began,
            pull=delivered - began,
            commit=committed - delivered,
            push=pushed - committed,
            total=pushed - began,
            batch=await self._batch(leader),
        )

    async def _batch(self, leader: Bus) -> float:
        """Seconds of the same commit as a batch of four messages."""
        size = sum(key.size for key in self._written)
        keys = [("job.default.0123456789abcdef", size // 2), ("out.1000000", size // 2)]
        parts = [WrittenKey(key, length, False) for key, length in keys]
        parts.append(WrittenKey("out.2000000", 0, True))
        await asyncio.sleep(0.02)
        publications = self._publications(parts)
        began = time.perf_counter()
        await self._commit(leader, publications, is_batch=True)
        return time.perf_counter() - began

    async def _commit(self, leader: Bus, parts: list[Publication], *, is_batch: bool) -> None:
        if not is_batch:
            await leader.jetstream.publish(parts[0])
            return
        last = Publication(_COMMIT, os.urandom(16), expected=self._record)
        self._record = (await leader.jetstream.publish_batch([*parts, last])).sequence

    def _publications(self, written: Sequence[WrittenKey]) -> list[Publication]:
        """Fresh bytes under keys that are new each time, as a job's are; the first is fenced."""
        self._rounds += 1
        return [
            Publication(
                f"{_STATE}.{_fresh(key.key, self._rounds)}",
                os.urandom(key.size),
                marker="DEL" if key.is_marker else None,
                ttl_s=10 if key.is_marker else None,
                expected=None if number else self._epoch,
                expected_on=None if number else _EPOCH,
            )
            for number, key in enumerate(written)
        ]


async def _timed(bus: Bus, publication: Publication) -> float:
    await bus.jetstream.publish(publication)
    return time.perf_counter()


def _fresh(key: str, number: int) -> str:
    """The key with its last characters replaced by the number: the same length, another key."""
    text = str(number)
    return key[: -len(text)] + text if len(key) > len(text) + 4 else f"{key}{text}"


def _streams() -> list[dict[str, Any]]:
    """The yard's own configuration of these two streams, under other names and sizes."""
    found = {c["name"]: c for c in stream_configs(Sizes.within(_STORE_BYTES))}
    return [
        found[subjects.STATE_STREAM] | {"name": "KV_floor", "subjects": [f"{_STATE}.>"]},
        found[subjects.SUBMIT_STREAM] | {"name": "FLOOR_SUBMIT", "subjects": ["floor.submit.>"]},
    ]
