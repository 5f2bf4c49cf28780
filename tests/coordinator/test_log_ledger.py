"""What of a running attempt's output is stored, on a real server: never more than up to a hole."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication, Sizes, connect, ensure_streams
from gpuyard_coordinator import log_ledger
from gpuyard_coordinator.log_ledger import LogLedger
from tests.support.nats_server import NatsServer
from tests.support.yard import Yard, ref

KEY = "default/j/1"
FEW = 8


class Attempt:
    """One running attempt, what its agent published, and a ledger that counts it."""

    def __init__(self, bus: Bus) -> None:
        yard = Yard()
        yard.node("a", gpus=1)
        yard.submit("j", gpus=1)
        yard.plan()
        yard.start()
        self.node = yard.core_node("a")
        self.core = yard.attempt()
        self.bus = bus
        self.ledger = LogLedger(bus.jetstream)

    async def publish(self, numbers: Iterable[int]) -> None:
        """The agent's chunks of these numbers; it has said that it sent all up to the last."""
        *before, last = [
            codec.encode({"v": 1, "attempt": 1, "n": n, "data": b"x"}) for n in numbers
        ]
        subject = subjects.logs("default", "j", 1, "a")
        for chunk in before:
            await self.bus.agents.publish(subject, chunk)
        # It is stored after those before it.
        await self.bus.jetstream.publish(Publication(subject, last), timeout_s=20)
        self.core.log_chunks = max(self.core.log_chunks, codec.peek(last, "n") + 1)

    async def stored(self) -> int | None:
        """What a beat is answered once all that was asked for is known."""
        before = asyncio.all_tasks()
        self.ledger.stored(self.node)
        await asyncio.gather(*(asyncio.all_tasks() - before))
        return self.ledger.stored(self.node).get(KEY)


@pytest.fixture
async def attempt(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Attempt]:
    monkeypatch.setattr(log_ledger, "FEW_CHUNKS", FEW)
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
        yield Attempt(bus)


async def test_all_that_is_stored_counts(attempt: Attempt) -> None:
    await attempt.publish(range(3))
    assert await attempt.stored() == 3
    await attempt.publish(range(3, 3 * FEW))
    assert await attempt.stored() == 3 * FEW


async def test_what_lies_behind_a_hole_does_not_count_until_the_hole_is_filled(
    attempt: Attempt,
) -> None:
    await attempt.publish([0, 1, 3, 4])
    assert await attempt.stored() == 2
    await attempt.publish([5])
    assert await attempt.stored() == 2

    await attempt.publish([2, 3, 4, 5])

    assert await attempt.stored() == 6


async def test_a_hole_at_the_very_start_is_one(attempt: Attempt) -> None:
    attempt.core.assigned_at = "2100-01-01T00:00:00Z"  # the stream is older than the attempt
    await attempt.publish([1, 2])
    assert await attempt.stored() == 0
    await attempt.publish([0, 1, 2])
    assert await attempt.stored() == 3


@pytest.mark.parametrize("lost", [None, 7], ids=["whole", "holed"])
async def test_a_new_leader_finds_a_hole_in_a_long_output(
    attempt: Attempt, lost: int | None
) -> None:
    whole = range(2 * FEW)
    await attempt.publish(n for n in whole if n != lost)
    assert await attempt.stored() == (len(whole) if lost is None else lost)
    await attempt.publish(range(7, len(whole) + 1))
    assert await attempt.stored() == len(whole) + 1


async def test_what_the_stream_dropped_for_its_age_is_not_missing(attempt: Attempt) -> None:
    attempt.core.assigned_at = "2020-01-01T00:00:00Z"
    await attempt.publish(range(10))
    await attempt.bus.jetstream.purge(subjects.LOGS_STREAM, below=5)
    assert await attempt.stored() == 10


async def test_another_attempts_chunks_do_not_count(attempt: Attempt) -> None:
    await attempt.publish([0, 1])
    body = {"v": 1, "attempt": 2, "n": 2, "data": b"x"}
    await attempt.bus.agents.publish(subjects.logs("default", "j", 2, "a"), body)
    attempt.core.log_chunks = 3
    assert await attempt.stored() == 2


async def test_what_is_over_is_forgotten_while_it_is_asked_for(attempt: Attempt) -> None:
    await attempt.publish([0])
    before = asyncio.all_tasks()
    attempt.ledger.stored(attempt.node)
    asked = asyncio.all_tasks() - before
    attempt.ledger.forget(*ref("j"))
    await asyncio.gather(*asked, return_exceptions=True)
    attempt.core.log_chunks = 0
    assert attempt.ledger.stored(attempt.node) == {}
