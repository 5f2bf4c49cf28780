"""Commits on a real server: all or nothing, once, and only by the leader."""

import asyncio
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication, Stored, Undecided
from gpuyard.errors import LocalProtocolError, RemoteProtocolError, Unavailable
from gpuyard_coordinator.store import Fenced, Store, Write, delete, put
from gpuyard_coordinator.store.records import encode_wal
from tests.shared.golden_examples import JOB_DOCUMENT, NODE_DOCUMENT, OUT_RECORD
from tests.support.nats_server import NatsServer
from tests.support.state_bucket import Network, as_read, committed, lead, wal_keys

SMALL = [put("job.a.1", {"n": 1}), put("job.a.2", {"n": 1})]
LARGE = [put(f"job.a.{n}", {"n": 1}) for n in range(1, 251)]
FAULTS = [Unavailable("lost"), Undecided("undecided", code=10164)]


@pytest.fixture
def network(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(bus, monkeypatch)


async def last_sequence(bus: Bus) -> int:
    return (await bus.jetstream.state(subjects.STATE_STREAM)).last_sequence


async def jobs(bus: Bus) -> list[dict[str, Any]]:
    keys = await as_read(bus)
    return [codec.decode(data) for key, data in keys.items() if key.startswith("job.")]


async def test_a_commit_is_seen_by_whoever_reads_next(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    tenant = {"v": 1, "name": "team-a"}
    await store.commit(
        [
            put("job.team-a.1", JOB_DOCUMENT),
            put("node.node-1", NODE_DOCUMENT),
            put("tenant.team-a", tenant),
            put("out.12", OUT_RECORD),
            put("out.9", OUT_RECORD),
            put("done.team-a.0", JOB_DOCUMENT, ttl_s=60),
        ]
    )

    keys = await as_read(bus)
    left = await Store(bus.jetstream, token=await lead(bus)).take_over()

    assert codec.decode(keys["job.team-a.1"]) == JOB_DOCUMENT
    assert codec.decode(keys["node.node-1"]) == NODE_DOCUMENT
    assert codec.decode(keys["tenant.team-a"]) == tenant
    assert left.outs == [(9, OUT_RECORD), (12, OUT_RECORD)]


async def test_a_commit_is_one_message(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    before = await last_sequence(bus)

    sequences = [await store.commit(SMALL) for _ in range(3)]

    assert sequences == [before + 1, before + 2, before + 3]
    assert await last_sequence(bus) == before + 3
    assert network.batches == []
    assert await committed(bus) == {write.key: write.data for write in SMALL}


@pytest.mark.parametrize("large", [LARGE, [put("job.a.1", b"x" * 600_000)]])
async def test_a_commit_with_much_in_it_is_one_batch(
    bus: Bus, network: Network, large: list[Write]
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.a.1", {"n": 0}), put("job.b.1", {"n": 0})])

    await store.commit(large)

    assert len(network.batches) == 1
    assert await wal_keys(bus) == []
    assert await committed(bus) == {write.key: write.data for write in large} | {
        "job.b.1": codec.encode({"n": 0})
    }


async def test_an_end_moves_a_job_in_one_commit(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.team-a.1", JOB_DOCUMENT)])

    await store.commit([put("done.team-a.1", JOB_DOCUMENT, ttl_s=60), delete("job.team-a.1")])

    assert set(await committed(bus)) == {"done.team-a.1"}
    assert await store.get_done("team-a", "1") == JOB_DOCUMENT
    assert await store.get_done("team-a", "2") is None
    assert await jobs(bus) == []


async def test_a_zombies_commit_is_fenced_and_writes_nothing(bus: Bus) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    await zombie.commit([put("job.a.1", {"n": 1})])
    leader = Store(bus.jetstream, token=await lead(bus))

    with pytest.raises(Fenced):
        await zombie.commit([put("job.a.1", {"n": 2}), put("job.a.2", {"n": 2})])
    with pytest.raises(Fenced):
        await zombie.commit(LARGE)
    await leader.commit([put("job.a.3", {"n": 3})])
    with pytest.raises(Fenced):
        await zombie.commit([put("job.a.4", {"n": 4})])

    assert (zombie.refused, leader.refused) == (2 + len(LARGE) + 1, 0)
    assert await committed(bus) == {
        "job.a.1": codec.encode({"n": 1}),
        "job.a.3": codec.encode({"n": 3}),
    }


@pytest.mark.parametrize("writes", [SMALL, LARGE], ids=["record", "batch"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_commit_whose_answer_was_lost_is_found(
    bus: Bus, network: Network, writes: list[Write], fault: Exception
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.b.1", {"n": 0})])
    network.lost_answers = [fault]

    sequence = await store.commit(writes)

    assert sequence == await last_sequence(bus)
    assert len(network.records) + len(network.batches) == 2
    await store.commit([put("job.b.2", {"n": 2})])
    assert set(await committed(bus)) == {w.key for w in writes} | {"job.b.1", "job.b.2"}


@pytest.mark.parametrize("writes", [SMALL, LARGE], ids=["record", "batch"])
async def test_a_commit_that_was_not_stored_is_sent_again(
    bus: Bus, network: Network, writes: list[Write]
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    network.lost_messages = list(FAULTS)

    await store.commit(writes)

    assert len(network.records) + len(network.batches) == 3
    assert await committed(bus) == {write.key: write.data for write in writes}


@pytest.mark.parametrize("writes", [SMALL, LARGE], ids=["record", "batch"])
@pytest.mark.parametrize("has_gone_on", [True, False])
async def test_a_deposed_leader_learns_that_its_last_commit_was_stored(
    bus: Bus, network: Network, writes: list[Write], has_gone_on: bool
) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    network.lost_answers = [Unavailable("lost")]
    work = asyncio.ensure_future(zombie.commit(writes))
    while network.lost_answers:
        await asyncio.sleep(0.001)
    leader = Store(bus.jetstream, token=await lead(bus))
    if has_gone_on:
        await leader.commit([put("job.b.1", {"n": 1})])
        assert await leader.checkpoint()
        assert await wal_keys(bus) == []

    assert await asyncio.wait_for(work, 5) > 0
    with pytest.raises(Fenced):
        await zombie.commit(SMALL)


async def test_a_deposed_leader_learns_that_its_last_commit_was_not_stored(
    bus: Bus, network: Network
) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    network.lost_messages = [Unavailable("lost")]
    work = asyncio.ensure_future(zombie.commit(SMALL))
    while network.lost_messages:
        await asyncio.sleep(0.001)
    await lead(bus)

    with pytest.raises(Fenced):
        await asyncio.wait_for(work, 5)
    assert await committed(bus) == {}


async def test_a_commit_that_arrives_just_before_the_next_leader_is_found(
    bus: Bus, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.b.1", {"n": 0})])
    last, epoch = bus.jetstream.last, subjects.state(subjects.EPOCH_KEY)

    async def deposing(stream: str, subject: str) -> Stored | None:
        if subject == epoch:
            monkeypatch.undo()
            await bus.jetstream.publish(network.records[-1])
            await lead(bus)
        return await last(stream, subject)

    monkeypatch.setattr(bus.jetstream, "last", deposing)
    network.lost_messages = [Unavailable("it is still on its way")]

    assert await store.commit(SMALL) > 0
    assert set(await committed(bus)) == {"job.a.1", "job.a.2", "job.b.1"}


async def test_an_epoch_that_comes_again_in_a_restored_stream_voids_nothing(bus: Bus) -> None:
    epoch = await last_sequence(bus) + 3
    for n in (1, 2):
        body = encode_wal([put("job.a.1", {"n": n})])
        await bus.jetstream.publish(Publication(subjects.state(subjects.wal_key(epoch, n)), body))
    token = await lead(bus)
    assert token[1] == epoch
    store = Store(bus.jetstream, token=token)
    assert await jobs(bus) == [{"n": 2}]
    await store.checkpoint()

    await store.commit([put("job.a.1", {"n": 3})])

    assert await jobs(bus) == [{"n": 3}]


async def test_a_late_copy_of_a_batch_is_refused(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit(LARGE)
    await store.commit([put(write.key, {"n": 2}) for write in LARGE])

    with pytest.raises(Exception, match="wrong last sequence"):
        await network.repeat(network.batches[0])

    assert set((await committed(bus)).values()) == {codec.encode({"n": 2})}


@pytest.mark.parametrize("is_known", [True, False], ids=["in the window", "long after it"])
async def test_a_late_copy_of_a_record_changes_nothing(
    bus: Bus, network: Network, is_known: bool
) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.a.1", JOB_DOCUMENT), put("job.a.2", JOB_DOCUMENT)])
    await store.commit([put("job.a.1", {"n": 2}), delete("job.a.2")])
    for n in (3, 4):
        # Copies of what is still to be checkpointed, and then of what was.
        for record in network.records[:2]:
            # The server forgets an id after a while; it cannot then know the copy by it.
            await network.repeat(record if is_known else record._replace(message_id=None))
        assert await jobs(bus) == [{"n": n - 1}]
        await store.commit([put("job.a.1", {"n": n})])
        assert await store.checkpoint()
    assert len(await wal_keys(bus)) == (0 if is_known else 2)

    leader = Store(bus.jetstream, token=await lead(bus))
    assert await jobs(bus) == [{"n": 4}]
    await leader.commit([put("job.b.1", {"n": 1})])
    await leader.checkpoint()
    assert await wal_keys(bus) == []
    assert await jobs(bus) == [{"n": 4}, {"n": 1}]


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

    stored = await committed(bus)
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
    with pytest.raises(LocalProtocolError, match="in flight"):
        await store.checkpoint()
    with pytest.raises(LocalProtocolError, match="in flight"):
        store.forget(["out.1"])
    await first


async def test_an_out_record_that_cannot_be_read_does_not_stop_a_take_over(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("out.4", b"\xc1"), put("out.5", OUT_RECORD), put("out.x", {})])

    assert (await store.take_over()).outs == [(5, OUT_RECORD)]
    assert set(await committed(bus)) == {"out.4", "out.5", "out.x"}


async def test_nobody_leads_without_a_commit_that_cannot_be_read(bus: Bus) -> None:
    for number, body in enumerate((b"\xc1", codec.encode({"v": 1}), codec.encode({"v": 99}))):
        record = Publication(subjects.state(subjects.wal_key(1, 1)), body)
        await bus.jetstream.publish(record)
        with pytest.raises(RemoteProtocolError):
            await Store(bus.jetstream, token=await lead(bus)).take_over()
        assert await wal_keys(bus) == ["wal.1.1"], number


async def test_out_numbers_never_repeat_over_leaders(bus: Bus) -> None:
    used: list[int] = []
    for _ in range(3):
        store = Store(bus.jetstream, token=await lead(bus))
        n = (await store.take_over()).next_out
        numbers = [n + k for k in range(40)]
        await store.commit([put(subjects.out_key(number), OUT_RECORD) for number in numbers])
        used += numbers
        store.forget([subjects.out_key(number) for number in numbers[::2]])

    assert len(set(used)) == 120
    assert used == sorted(used)

    left = subjects.out_key(max(used) + 10**15)
    await store.commit([put(left, OUT_RECORD)])
    found = await Store(bus.jetstream, token=await lead(bus)).take_over()
    assert subjects.out_key(found.next_out - 1) == left
