"""The pull loop: everything in order, nothing skipped, whatever breaks."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Delivery, Publication, PullLoop, Sizes, connect, ensure_streams
from gpuyard.bus import pull as pull_module
from tests.support.nats_server import NatsServer

SUBJECT = subjects.submit("a", "mia")


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
        yield bus


class Reader:
    """A pull loop that keeps what it was given, and acknowledges it unless told not to."""

    def __init__(self, bus: Bus, *, acks: bool = True) -> None:
        self.deliveries: list[Delivery] = []
        self.acks = acks
        self.loop = PullLoop(
            bus.jetstream, stream=subjects.SUBMIT_STREAM, durable="c", deliver=self._take
        )

    def _take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        if self.acks:
            delivery.ack()

    @property
    def numbers(self) -> list[int]:
        return [int(delivery.data) for delivery in self.deliveries]


async def until(condition: Callable[[], bool], *, within_s: float = 15.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "it never happened"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


async def submit(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.jetstream.publish(Publication(SUBJECT, b"%d" % number))


async def ack_floor(bus: Bus) -> int:
    info = await bus.jetstream.call("CONSUMER.INFO.GPUYARD_SUBMIT.c")
    floor: int = info["ack_floor"]["stream_seq"]
    return floor


async def test_what_was_stored_before_and_after_the_start_arrives_in_order(bus: Bus) -> None:
    await submit(bus, *range(600))
    reader = Reader(bus)
    await reader.loop.start()
    await submit(bus, *range(600, 700))

    await until(lambda: len(reader.deliveries) == 700)
    assert reader.numbers == list(range(700))
    await asyncio.sleep(0.1)
    assert reader.loop.floor == await ack_floor(bus) == 700
    delivery = reader.deliveries[0]
    assert (delivery.subject, delivery.sequence) == (SUBJECT, 1)
    assert delivery.at is not None
    await reader.loop.stop()


async def test_what_was_not_acknowledged_goes_to_the_next_loop_at_once(bus: Bus) -> None:
    await submit(bus, *range(10))
    first = Reader(bus, acks=False)
    await first.loop.start()
    await until(lambda: len(first.deliveries) == 10)
    for delivery in first.deliveries[:4]:
        delivery.ack()
    await asyncio.sleep(0.05)
    await first.loop.stop()

    second = Reader(bus)
    await second.loop.start()
    await submit(bus, 10)

    # Far below the consumer's own wait for acknowledgements.
    await until(lambda: len(second.deliveries) == 7, within_s=2)
    assert second.numbers == [4, 5, 6, 7, 8, 9, 10]
    await second.loop.stop()


async def test_acknowledging_out_of_order_moves_the_floor_only_over_what_is_done(
    bus: Bus,
) -> None:
    await submit(bus, 0, 1, 2)
    reader = Reader(bus, acks=False)
    await reader.loop.start()
    await until(lambda: len(reader.deliveries) == 3)

    reader.deliveries[2].ack()
    reader.deliveries[0].ack()
    await asyncio.sleep(0.05)
    assert (reader.loop.floor, await ack_floor(bus)) == (1, 1)
    reader.deliveries[1].ack()
    await asyncio.sleep(0.05)
    assert (reader.loop.floor, await ack_floor(bus)) == (3, 3)
    await reader.loop.stop()


async def test_a_killed_server_loses_and_reorders_nothing(
    nats_server: NatsServer, bus: Bus
) -> None:
    reader = Reader(bus)
    await reader.loop.start()
    for end in (51, 102, 153):
        await submit(bus, *range(end - 51, end - 1))
        nats_server.kill()
        await until(lambda: not bus.is_connected)
        nats_server.start()
        await until(lambda: bus.is_connected)
        await submit(bus, end - 1)
        await until(lambda end=end: len(reader.deliveries) >= end, within_s=5)  # type: ignore[misc]

    assert reader.numbers == list(range(153))
    await reader.loop.stop()


async def test_deliveries_that_somebody_else_swallowed_are_read_from_the_stream(
    bus: Bus,
) -> None:
    reader = Reader(bus)
    await reader.loop.start()
    await submit(bus, 0)
    await until(lambda: reader.numbers == [0])
    # A leader that was frozen has a pull open under the same durable name, and never acknowledges.
    await reader.loop._jetstream.link.publish(
        "$JS.API.CONSUMER.MSG.NEXT.GPUYARD_SUBMIT.c",
        b'{"batch":3,"expires":5000000000}',
        reply="_INBOX.x.frozen",
    )
    swallowed: list[object] = []
    await bus.app.subscribe("_INBOX.x.frozen", swallowed.append)
    await bus.jetstream.link.publish(
        "$JS.API.CONSUMER.MSG.NEXT.GPUYARD_SUBMIT.c",
        b'{"batch":3,"expires":5000000000}',
        reply="_INBOX.x.frozen",
    )
    await submit(bus, *range(1, 9))

    await until(lambda: len(reader.deliveries) == 9, within_s=4)
    assert reader.numbers == list(range(9))
    assert swallowed
    await reader.loop.stop()


async def test_a_gap_that_was_purged_is_no_gap(bus: Bus) -> None:
    await submit(bus, *range(5))
    reader = Reader(bus, acks=False)
    await reader.loop.start()
    await until(lambda: len(reader.deliveries) == 5)
    await reader.loop.stop()
    await bus.jetstream.purge("GPUYARD_SUBMIT", below=4)

    second = Reader(bus)
    await second.loop.start()
    await submit(bus, 5)

    await until(lambda: len(second.deliveries) == 3)
    assert second.numbers == [3, 4, 5]
    await second.loop.stop()


async def test_a_lost_acknowledgement_is_made_good_without_a_second_delivery(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_module, "ACK_WAIT_S", 0.5)
    reader = Reader(bus, acks=False)
    await reader.loop.start()
    await submit(bus, 0, 1)
    await until(lambda: len(reader.deliveries) == 2)

    async def lose(reply: str) -> None:
        return None

    send = reader.loop._send_ack
    monkeypatch.setattr(reader.loop, "_send_ack", lose)
    for delivery in reader.deliveries:
        delivery.ack()
    await asyncio.sleep(0.05)
    monkeypatch.setattr(reader.loop, "_send_ack", send)

    assert await ack_floor(bus) == 0
    for _ in range(40):
        await asyncio.sleep(0.1)
        if await ack_floor(bus) == 2:
            break
    assert await ack_floor(bus) == 2
    assert reader.numbers == [0, 1]
    await reader.loop.stop()


async def test_pulls_that_expire_leave_no_hole(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "EXPIRES_S", 0.3)
    monkeypatch.setattr(pull_module, "HEARTBEAT_S", 0.1)
    reader = Reader(bus)
    await reader.loop.start()
    delays = []
    for number in range(40):
        await submit(bus, number)
        delays.append(await until(lambda number=number: len(reader.deliveries) > number))  # type: ignore[misc]
        await asyncio.sleep(0.03)

    assert reader.numbers == list(range(40))
    assert max(delays) < 1
    await reader.loop.stop()
