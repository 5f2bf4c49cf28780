"""A program that cannot keep up with the bus: the server cuts it off, and it comes back."""

import asyncio
import threading
import time

from gpuyard import subjects
from gpuyard.bus import (
    Delivery,
    Message,
    Publication,
    PullLoop,
    Sizes,
    connect,
    ensure_streams,
)
from tests.support.nats_server import MakeNatsServer

SUBMISSIONS = 200
FLOOD = 300
"""Messages of 100 kB, many times what the server keeps for one reader."""
LIMITS = 'max_pending: 1MB\nwrite_deadline: "1s"'


def flood(url: str, done: threading.Event) -> None:
    """Core messages and submissions at once, from a loop of its own."""

    async def send() -> None:
        async with await connect(url, name="flood", inbox_prefix="_INBOX.flood") as bus:
            for n in range(SUBMISSIONS):
                await bus.jetstream.publish(Publication(subjects.submit("t"), b"%d" % n))
            for _ in range(FLOOD):
                await bus.app.publish("flood", bytes(100_000))
                await asyncio.sleep(0)

    asyncio.run(send())
    done.set()


async def test_what_is_stored_comes_in_order_and_what_is_not_may_be_missed(
    make_nats_server: MakeNatsServer,
) -> None:
    server = make_nats_server(extra=LIMITS)
    heard, taken, done = list[bytes](), list[int](), threading.Event()

    def take(delivery: Delivery) -> None:
        taken.append(int(delivery.data))
        delivery.ack()

    def hear(message: Message) -> None:
        if not heard:
            time.sleep(0.1)  # the loop of a reader that does not keep up
            done.wait(20)
        heard.append(message.data)

    async with await connect(server.url, name="slow", inbox_prefix="_INBOX.slow") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2**30))
        cut_off = asyncio.Event()
        bus.on_reconnect(cut_off.set)
        await bus.app.subscribe("flood", hear)
        intake = PullLoop(
            bus.jetstream, stream=subjects.SUBMIT_STREAM, durable="slow", deliver=take
        )
        await intake.start()
        flooding = threading.Thread(target=flood, args=(server.url, done))
        flooding.start()
        async with asyncio.timeout(20):
            await cut_off.wait()
            await asyncio.to_thread(flooding.join)
            while len(taken) < SUBMISSIONS:
                await asyncio.sleep(0.01)
            heard.clear()
            heard.append(b"")
            await bus.app.publish("flood", b"after")
            while b"after" not in heard:
                await asyncio.sleep(0.01)
        await intake.stop()

    assert sorted(set(taken)) == list(range(SUBMISSIONS))
    assert list(dict.fromkeys(taken)) == list(range(SUBMISSIONS))
