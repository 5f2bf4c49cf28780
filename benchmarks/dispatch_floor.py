"""The floor under dispatch: what the bus alone takes for the same durable steps.

A submission is stored (PubAck), pulled, answered by one fenced atomic batch that has as many
messages of the same sizes as the coordinator's, and followed by one core message. Publisher, leader
and agent have a connection each, all in this process, and nothing is decided in between.
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
    """One message of a batch that the coordinator wrote."""

    key: str
    size: int
    is_marker: bool


class FloorTimes(NamedTuple):
    """Seconds. `total` runs from the publish to the core message's arrival; the PubAck comes
    beside it and is no part of it."""

    pub_ack: float
    pull: float
    commit: float
    push: float
    total: float


class Floor:
    """Use it as an async context manager; `once` is one round."""

    def __init__(self, url: str, *, batch: Sequence[WrittenKey], wanted_bytes: int) -> None:
        self._url = url
        self._batch = batch
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
        batch = self._publications()
        began = time.perf_counter()
        acking = asyncio.create_task(_timed(publisher, Publication(SUBMIT, body)))
        delivery = await self._delivered
        delivered = time.perf_counter()
        self._record = (await leader.jetstream.publish_batch(batch)).sequence
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
        )

    def _publications(self) -> list[Publication]:
        """The batch with fresh bytes; keys of jobs are new each time, as they are in the yard."""
        self._rounds += 1
        parts = [
            Publication(
                f"{_STATE}.{_fresh(written.key, self._rounds)}",
                os.urandom(written.size),
                marker="DEL" if written.is_marker else None,
                ttl_s=10 if written.is_marker else None,
                expected=None if number else self._epoch,
                expected_on=None if number else _EPOCH,
            )
            for number, written in enumerate(self._batch)
        ]
        return [*parts, Publication(_COMMIT, os.urandom(16), expected=self._record)]


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
