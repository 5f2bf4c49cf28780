"""A server that was killed brings keys back to life once the markers that deleted them are gone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuyard import bucket_rules, codec, subjects
from gpuyard.bus import Bus, Sizes, connect, ensure_streams
from gpuyard.client.backup import read_state
from gpuyard.client.restore import restore
from gpuyard.client.state_file import Backup, Document
from gpuyard_coordinator import ended_jobs
from gpuyard_coordinator.store import Store, Write, delete, put
from tests.coordinator.test_follower import following, gone, job, seen
from tests.support.nats_server import NatsServer
from tests.support.state_bucket import as_read, committed, lead, stored_keys, wal_keys

END = {"v": 1, "id": "j1", "tenant": "t", "spec_sha256": "x", "state": "succeeded"}
REFUSAL = {"v": 1, "id": "j2", "tenant": "t", "spec_sha256": "", "state": "failed"}


@pytest.fixture
async def bus(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    monkeypatch.setattr(bucket_rules, "MARKER_TTL_S", 1.0)
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
        yield bus


def ended(number: int) -> list[Write]:
    return [gone(number), put(subjects.done_key("t", f"j{number}"), END)]


async def kill(server: NatsServer, bus: Bus, *expired: str) -> None:
    """Kills the server once the markers of these keys are gone, and starts it again."""
    async with asyncio.timeout(10):
        for key in expired:
            while await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(key)) is not None:
                await asyncio.sleep(0.05)
        back = asyncio.Event()
        bus.on_reconnect(back.set)
        server.kill()
        server.start()
        await back.wait()


async def test_a_job_that_is_over_does_not_come_back(bus: Bus, nats_server: NatsServer) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    refused = put(subjects.done_key("t", "j2"), REFUSAL)
    await store.commit([job(1), job(2), refused, put("tenant.t", {"v": 1})])
    assert await store.checkpoint()
    await store.commit([*ended(1), delete("tenant.t")])
    assert await store.checkpoint()

    await kill(nats_server, bus, "job.t.j1")

    keys = await stored_keys(bus)
    assert "job.t.j1" in keys, "the server keeps its word now: the rules may go"
    assert "tenant.t" not in keys
    async with following(bus) as follower:
        assert list(seen(follower)) == ["j2"]
    assert {key for key in (await read_state(bus)).documents if key.startswith("job.")} == {
        "job.t.j2"
    }


async def test_log_records_of_leaders_long_gone_say_nothing(
    bus: Bus, nats_server: NatsServer
) -> None:
    records = []
    for number in (1, 2):
        store = Store(bus.jetstream, token=await lead(bus))
        if number == 2:
            # So much at once is a batch, of which no log record tells.
            await store.commit([put(f"tenant.t{n}", {"n": 2}) for n in range(201)])
        await store.commit(
            [put(f"tenant.t{number}", {"n": number}), put("tenant.t", {"n": number})]
        )
        records += await wal_keys(bus)
        assert await store.checkpoint()
    before = await stored_keys(bus)
    assert codec.decode(before["tenant.t1"]) == {"n": 2}

    await kill(nats_server, bus, *records)

    assert await wal_keys(bus) == sorted(records)
    assert await as_read(bus) == await committed(bus) == before
    assert {key: d.data for key, d in (await read_state(bus)).documents.items()} == before


async def test_commits_from_before_a_restore_say_nothing_after_it(
    bus: Bus, nats_server: NatsServer
) -> None:
    before = Store(bus.jetstream, token=await lead(bus))
    await before.commit([put("tenant.t", {"n": 1}), put("node.n1", {"n": 1})])
    (record,) = await wal_keys(bus)
    documents = {"tenant.t": Document(codec.encode({"n": 5}))}
    file = Backup("old001", 500, 9, "2026-01-01T00:00:00.000Z", "gpuyard 0.1.0", documents)
    await restore(bus, file, checksum="c1", user="olga")
    restored = await as_read(bus)

    await kill(nats_server, bus, record)

    assert await wal_keys(bus) == [record]
    assert await as_read(bus) == restored
    assert codec.decode(restored["tenant.t"]) == {"n": 5}
    assert codec.decode(restored["node.n1"]) == {"n": 1}


async def test_the_leader_deletes_again_what_came_back(
    bus: Bus, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_jobs, "QUIET_S", 0.0)
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([job(1), job(2)])
    assert await store.checkpoint()
    await store.commit(ended(1))
    assert await store.checkpoint()
    found: asyncio.Queue[list[str]] = asyncio.Queue()
    watching = asyncio.create_task(ended_jobs.watch(bus, found.put_nowait))
    await kill(nats_server, bus, "job.t.j1")

    assert await asyncio.wait_for(found.get(), 10) == ["job.t.j1"]

    watching.cancel()
    assert found.empty()
