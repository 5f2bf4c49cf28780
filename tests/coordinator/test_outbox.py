"""The outbox on a real server: every effect stored once and in order, whoever crashes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, PubAck, Publication
from gpuyard.errors import LocalProtocolError, Unavailable
from gpuyard.messages import OutMessage, OutRecord
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.store import Store, put
from tests.support.nats_server import NatsServer
from tests.support.state_bucket import lead, stored_keys


def event(job: str, n: int) -> OutMessage:
    return {"subject": subjects.event("a", job, "queued", n), "body": {"job": job, "seq": n}}


def audit(number: int) -> OutMessage:
    return {"subject": subjects.audit("a", "cancel"), "body": {"number": number}}


def record(*messages: OutMessage) -> OutRecord:
    return {"v": 1, "messages": list(messages)}


async def bodies(bus: Bus, stream: str, subject: str) -> list[dict[str, Any]]:
    page = await bus.jetstream.read_page(stream, subject=subject, limit=5000)
    return [codec.decode(stored.data) for stored in page.messages]


async def events(bus: Bus) -> list[tuple[str, int]]:
    found = await bodies(bus, subjects.EVENTS_STREAM, subjects.EVENTS_ALL)
    return [(body["job"], body["seq"]) for body in found]


async def audits(bus: Bus) -> list[int]:
    found = await bodies(bus, subjects.AUDIT_STREAM, subjects.AUDIT_ALL)
    return [body["number"] for body in found]


async def idle(outbox: Outbox) -> None:
    async with asyncio.timeout(10):
        while outbox.pending:
            await asyncio.sleep(0.005)


async def test_effects_are_stored_in_order_and_acknowledged(bus: Bus) -> None:
    outbox = Outbox(bus.jetstream, token=await lead(bus))
    outbox.push(7, record(event("j", 1), event("j", 2), audit(1)))
    outbox.push(8, record())
    outbox.push(9, record(event("j", 3), audit(2)))
    assert outbox.pending == 2
    await idle(outbox)

    assert await events(bus) == [("j", 1), ("j", 2), ("j", 3)]
    assert await audits(bus) == [1, 2]
    assert sorted(outbox.take_acknowledged()) == [7, 8, 9]
    assert outbox.take_acknowledged() == []
    await outbox.close()


async def test_a_burst_goes_out_in_batches_and_keeps_its_order(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    publish = bus.jetstream.publish_batch

    async def counted(publications: Sequence[Publication], **options: Any) -> PubAck:
        sizes.append(len(publications))
        return await publish(publications, **options)

    monkeypatch.setattr(bus.jetstream, "publish_batch", counted)
    outbox = Outbox(bus.jetstream, token=await lead(bus))
    for n in range(1000):
        outbox.push(n, record(event(f"j{n % 7}", n)))
    await idle(outbox)

    assert await events(bus) == [(f"j{n % 7}", n) for n in range(1000)]
    assert max(sizes) == 400
    await outbox.close()


async def test_a_crash_between_commit_and_relay_publishes_exactly_once(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    records = {n: record(event("j", n), audit(n)) for n in range(1, 6)}
    await store.commit([put(subjects.out_key(n), entry) for n, entry in records.items()])
    first = Outbox(bus.jetstream, token=await lead(bus))
    first.push(1, records[1])
    first.push(2, records[2])
    await idle(first)
    # It dies here: 1 and 2 are stored, their keys are not deleted, and 3 to 5 were not sent.
    await first.close()

    token = await lead(bus)
    store = Store(bus.jetstream, token=token)
    left = await store.take_over()
    second = Outbox(bus.jetstream, token=token)
    await asyncio.wait_for(second.drain(left.outs), 10)
    second.push(6, record(event("j", 6), audit(6)))
    await idle(second)

    assert await events(bus) == [("j", n) for n in range(1, 7)]
    assert await audits(bus) == list(range(1, 7))
    store.forget(subjects.out_key(n) for n in second.take_acknowledged())
    assert await store.checkpoint()
    assert await stored_keys(bus) == {}
    await second.close()


async def test_a_replay_of_a_burst_that_was_partly_stored_doubles_nothing(bus: Bus) -> None:
    records = [(n, record(event("j", n), audit(n))) for n in range(40)]
    first = Outbox(bus.jetstream, token=await lead(bus))
    for n, entry in records[:25]:
        first.push(n, entry)
    await idle(first)
    await first.close()

    second = Outbox(bus.jetstream, token=await lead(bus))
    await asyncio.wait_for(second.drain(records), 20)

    assert await events(bus) == [("j", n) for n in range(40)]
    assert await audits(bus) == list(range(40))
    await second.close()


async def test_a_zombies_relay_and_the_new_leaders_drain_double_nothing(bus: Bus) -> None:
    records = [(n, record(event("j", n), audit(n), audit(1000 + n))) for n in range(30)]
    zombie, leader = [Outbox(bus.jetstream, token=await lead(bus)) for _ in range(2)]
    for n, entry in records:
        zombie.push(n, entry)
    await asyncio.wait_for(leader.drain(records), 20)
    await idle(zombie)

    assert await events(bus) == [("j", n) for n in range(30)]
    assert await audits(bus) == [number for n in range(30) for number in (n, 1000 + n)]
    await zombie.close()
    await leader.close()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_answer_that_gets_lost_doubles_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    faults = [Unavailable("lost")] * 3
    publish, publish_batch = bus.jetstream.publish, bus.jetstream.publish_batch

    async def lossy(publication: Publication, **options: Any) -> PubAck:
        ack = await publish(publication, **options) if is_stored or not faults else None
        if faults:
            raise faults.pop()
        assert ack is not None
        return ack

    async def lossy_batch(publications: Sequence[Publication], **options: Any) -> PubAck:
        ack = await publish_batch(publications, **options) if is_stored or not faults else None
        if faults:
            raise faults.pop()
        assert ack is not None
        return ack

    outbox = Outbox(bus.jetstream, token=await lead(bus))
    monkeypatch.setattr(bus.jetstream, "publish", lossy)
    monkeypatch.setattr(bus.jetstream, "publish_batch", lossy_batch)
    for n in range(20):
        outbox.push(n, record(event("j", n), audit(n)))
    await idle(outbox)

    assert await events(bus) == [("j", n) for n in range(20)]
    assert await audits(bus) == list(range(20))
    await outbox.close()


async def test_effects_survive_a_killed_server(nats_server: NatsServer, bus: Bus) -> None:
    outbox = Outbox(bus.jetstream, token=await lead(bus))
    for n in range(300):
        outbox.push(n, record(event("j", n), audit(n)))
        await asyncio.sleep(0.002)
        if n in (90, 200):
            nats_server.kill()
            await asyncio.sleep(0.05)
            nats_server.start()
    await idle(outbox)

    assert await events(bus) == [("j", n) for n in range(300)]
    assert await audits(bus) == list(range(300))
    await outbox.close()


async def test_misuse_is_our_fault(bus: Bus) -> None:
    outbox = Outbox(bus.jetstream, token=await lead(bus))
    with pytest.raises(LocalProtocolError, match="no stream"):
        outbox.push(1, record({"subject": "gpuyard.beat.n", "body": {}}))
    outbox.push(2, record(event("j", 1)))
    with pytest.raises(LocalProtocolError, match="pushed already"):
        outbox.push(2, record(event("j", 1)))
    await outbox.close()
