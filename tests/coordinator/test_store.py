"""The store on a real server: all or nothing, once, and only by the leader."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, PubAck, Publication, Sizes, Undecided, connect, ensure_streams
from gpuyard.bus import read_last_values as read_values
from gpuyard.errors import LocalProtocolError, Unavailable
from gpuyard.messages import Token
from gpuyard_coordinator.store import Fenced, Store, delete, put
from tests.shared.golden_examples import JOB_DOCUMENT, NODE_DOCUMENT, OUT_RECORD
from tests.support.nats_server import NatsServer


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
        yield bus


async def lead(bus: Bus) -> Token:
    """A new leadership, by what makes one: the epoch's sequence."""
    ack = await bus.jetstream.publish(Publication(subjects.state(subjects.EPOCH_KEY), b"x"))
    return (1, ack.sequence)


async def keys(bus: Bus) -> dict[str, bytes]:
    found = await read_values(bus.jetstream, subjects.STATE_STREAM, [subjects.STATE_ALL])
    skip = len(subjects.state(""))
    return {
        stored.subject[skip:]: stored.data
        for stored in found
        if not stored.subject[skip:].startswith("leader.")
    }


def break_answers(bus: Bus, monkeypatch: pytest.MonkeyPatch, *faults: Exception) -> list[int]:
    """The next batches are stored, and their answers replaced by `faults`; counts the batches."""
    waiting, batches = list(faults), [0]
    publish = bus.jetstream.publish_batch

    async def broken(publications: Sequence[Publication], **options: Any) -> PubAck:
        batches[0] += 1
        ack = await publish(publications, **options)
        if waiting:
            raise waiting.pop(0)
        return ack

    monkeypatch.setattr(bus.jetstream, "publish_batch", broken)
    return batches


async def test_a_commit_is_visible_in_the_next_snapshot(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    tenant = {"v": 1, "name": "team-a"}
    sequence = await store.commit(
        [
            put("job.team-a.1", JOB_DOCUMENT),
            put("node.node-1", NODE_DOCUMENT),
            put("tenant.team-a", tenant),
            put("out.12", OUT_RECORD),
            put("out.9", OUT_RECORD),
            put("done.team-a.0", JOB_DOCUMENT, ttl_s=60),
        ]
    )

    snapshot = await Store(bus.jetstream, token=await lead(bus)).snapshot()

    assert snapshot.jobs == [JOB_DOCUMENT]
    assert snapshot.nodes == [NODE_DOCUMENT]
    assert snapshot.tenants == [tenant]
    assert snapshot.outs == [(9, OUT_RECORD), (12, OUT_RECORD)]
    assert snapshot.last_sequence == sequence + 1
    assert snapshot.unreadable == []


async def test_an_end_moves_a_job_in_one_commit(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.team-a.1", JOB_DOCUMENT)])

    await store.commit([put("done.team-a.1", JOB_DOCUMENT, ttl_s=60), delete("job.team-a.1")])

    assert set(await keys(bus)) == {"done.team-a.1"}
    assert await store.get_done("team-a", "1") == JOB_DOCUMENT
    assert await store.get_done("team-a", "2") is None
    assert (await store.snapshot()).jobs == []


async def test_finished_jobs_are_listed_in_pages_by_tenant(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    for n in range(7):
        tenant = "b" if n == 3 else "a"
        document = {**JOB_DOCUMENT, "tenant": tenant, "id": f"j{n}"}
        await store.commit([put(subjects.done_key(tenant, f"j{n}"), document, ttl_s=60)])
    await store.commit([delete(subjects.done_key("a", "j1"))])

    found, cursor = [], 0
    while True:
        jobs, following = await store.list_done("a", cursor=cursor, limit=2)
        found += [job["id"] for job in jobs]
        if following is None:
            break
        cursor = following

    assert found == ["j0", "j2", "j4", "j5", "j6"]
    assert len((await store.list_done(None))[0]) == 6
    assert await store.list_done("nobody") == ([], None)


async def test_a_zombies_commit_is_fenced_and_writes_nothing(bus: Bus) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    await zombie.commit([put("job.a.1", {"n": 1})])
    leader = Store(bus.jetstream, token=await lead(bus))

    with pytest.raises(Fenced):
        await zombie.commit([put("job.a.1", {"n": 2}), put("job.a.2", {"n": 2})])
    await leader.commit([put("job.a.3", {"n": 3})])
    with pytest.raises(Fenced):
        await zombie.commit([put("job.a.4", {"n": 4})])

    assert await keys(bus) == {
        "job.a.1": codec.encode({"n": 1}),
        "job.a.3": codec.encode({"n": 3}),
    }


@pytest.mark.parametrize(
    "fault", [Unavailable("the answer was lost"), Undecided("undecided", code=10164)]
)
async def test_a_lost_answer_is_resolved_by_the_commits_id(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.a.0", {"n": 0})])
    batches = break_answers(bus, monkeypatch, fault)

    sequence = await store.commit([put("job.a.1", {"n": 1})])

    stored = await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.COMMIT_KEY))
    assert stored is not None
    assert stored.sequence == sequence
    assert batches == [1]
    await store.commit([put("job.a.2", {"n": 2})])
    assert set(await keys(bus)) == {"job.a.0", "job.a.1", "job.a.2"}


async def test_a_commit_that_was_not_stored_is_sent_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    publish = bus.jetstream.publish_batch
    faults = [Unavailable("lost on the way"), Undecided("in process", code=10164)]

    async def lossy(publications: Sequence[Publication], **options: Any) -> PubAck:
        if faults:
            raise faults.pop(0)
        return await publish(publications, **options)

    monkeypatch.setattr(bus.jetstream, "publish_batch", lossy)

    await store.commit([put("job.a.1", {"n": 1})])

    assert set(await keys(bus)) == {"job.a.1"}


async def test_a_late_copy_of_a_commit_is_refused(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    sent: list[Sequence[Publication]] = []
    publish = bus.jetstream.publish_batch

    async def remember(publications: Sequence[Publication], **options: Any) -> PubAck:
        sent.append(publications)
        return await publish(publications, **options)

    monkeypatch.setattr(bus.jetstream, "publish_batch", remember)
    await store.commit([put("job.a.1", {"n": 1})])
    await store.commit([put("job.a.1", {"n": 2})])

    with pytest.raises(Exception, match="wrong last sequence"):
        await publish(sent[0])

    assert await keys(bus) == {"job.a.1": codec.encode({"n": 2})}


async def test_commits_wait_through_a_kill_and_none_is_lost(
    nats_server: NatsServer, bus: Bus
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))

    async def commit_all() -> None:
        for n in range(60):
            await store.commit([put(f"job.a.{n}", {"n": n}), put("job.a.count", {"n": n})])

    work = asyncio.ensure_future(commit_all())
    for _ in range(2):
        await asyncio.sleep(0.15)
        nats_server.kill()
        await asyncio.sleep(0.1)
        nats_server.start()
    await asyncio.wait_for(work, 30)

    stored = await keys(bus)
    assert stored.pop("job.a.count") == codec.encode({"n": 59})
    assert stored == {f"job.a.{n}": codec.encode({"n": n}) for n in range(60)}
    assert store.commits == 60


async def test_fenced_during_an_outage_is_found_out_after_it(
    nats_server: NatsServer, bus: Bus
) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    await zombie.commit([put("job.a.1", {"n": 1})])
    await lead(bus)
    nats_server.kill()
    work = asyncio.ensure_future(zombie.commit([put("job.a.2", {"n": 2})]))
    await asyncio.sleep(0.3)
    assert not work.done()
    nats_server.start()

    with pytest.raises(Fenced):
        await asyncio.wait_for(work, 10)


async def test_misuse_is_our_fault(bus: Bus) -> None:
    reader = Store(bus.jetstream)
    store = Store(bus.jetstream, token=await lead(bus))
    with pytest.raises(LocalProtocolError, match="only reads"):
        await reader.commit([put("job.a.1", {})])
    with pytest.raises(LocalProtocolError, match="400 writes"):
        await store.commit([put(f"job.a.{n}", {}) for n in range(400)])
    with pytest.raises(LocalProtocolError, match="twice"):
        await store.commit([put("job.a.1", {}), delete("job.a.1")])
    with pytest.raises(LocalProtocolError, match="bytes"):
        await store.commit([put(f"job.a.{n}", b"x" * 10**6) for n in range(9)])
    with pytest.raises(LocalProtocolError, match="0 writes"):
        await store.commit([])
    first = asyncio.ensure_future(store.commit([put("job.a.1", {})]))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="in flight"):
        await store.commit([put("job.a.2", {})])
    await first


async def test_one_unreadable_document_does_not_stop_a_snapshot(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.a.1", b"\xc1"), put("job.a.2", JOB_DOCUMENT), put("out.x", {})])

    snapshot = await store.snapshot()

    assert snapshot.jobs == [JOB_DOCUMENT]
    assert sorted(snapshot.unreadable) == ["job.a.1", "out.x"]
