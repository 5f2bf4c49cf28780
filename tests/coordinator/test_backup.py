"""Backups and restores against a real bus, beside the store of a real leader."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Sizes, ensure_streams
from gpuyard.client import restore_lead
from gpuyard.client.backup import read_state, rfc3339, take_backup
from gpuyard.client.restore import Interrupted, Restored, restore
from gpuyard.client.state_file import Backup, Document
from gpuyard.errors import Conflict, Unavailable, UnknownThing
from gpuyard_coordinator.leader import Holder, Leadership, Timing
from gpuyard_coordinator.store import Fenced, Store, delete, put
from tests.support.state_bucket import stored_keys

TIMING = Timing(ttl_s=2.0, renew_s=0.2, poll_s=0.05)


@pytest.fixture
async def leadership(bus: Bus) -> AsyncIterator[Leadership]:
    candidate = Leadership(
        bus.jetstream,
        holder=Holder("test", "m", "b", 1),
        timing=TIMING,
        clock=time.monotonic,
        wall_ms=lambda: 1000,
    )
    yield candidate
    await candidate.resign()


def doc(**fields: Any) -> bytes:
    return codec.encode({"v": 1, **fields})


def backup_of(numbers: Mapping[str, int], *, yard: str = "old001", generation: int = 500) -> Backup:
    """A backup whose documents have one number each."""
    documents = {key: Document(doc(n=number)) for key, number in numbers.items()}
    return Backup(yard, generation, 9, "2026-01-01T00:00:00.000Z", "gpuyard 0.1.0", documents)


async def put_back(bus: Bus, backup: Backup, *, replaces: bool = False) -> Restored:
    return await restore(bus, backup, checksum="c1", user="olga", replaces=replaces)


async def yard_document(bus: Bus) -> dict[str, Any]:
    stored = await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.YARD_KEY))
    assert stored is not None
    return codec.decode(stored.data)


async def test_a_backup_has_commits_that_no_checkpoint_has_moved(
    bus: Bus, leadership: Leadership
) -> None:
    store = Store(bus.jetstream, token=await leadership.acquire())
    await store.commit([put("job.t.a", doc(n=1)), put("job.t.b", doc(n=1)), put("mix", doc(n=1))])
    await store.checkpoint()
    await store.commit([put("job.t.a", doc(n=2)), delete("job.t.b")])
    await store.commit([put("job.t.a", doc(n=3)), put("done.t.b", doc(n=3), ttl_s=100)])

    taken = await take_backup(bus)

    assert {key: codec.decode(d.data)["n"] for key, d in taken.documents.items()} == {
        "job.t.a": 3,
        "done.t.b": 3,
        "mix": 1,
    }
    assert taken.yard == leadership.yard
    expiry = taken.documents["done.t.b"].expires_at
    assert expiry is not None and expiry > taken.taken_at


async def test_a_backup_of_a_yard_that_writes_is_of_one_moment(
    bus: Bus, leadership: Leadership
) -> None:
    """Every commit raises two numbers, far apart in the bucket, together."""
    store = Store(bus.jetstream, token=await leadership.acquire())
    for part in range(12):
        await store.commit([put(f"job.t.x{part}-{n}", bytes(2000)) for n in range(300)])

    async def write() -> None:
        number = 0
        while True:
            number += 1
            wide = [put(f"node.n{i}", doc(n=number)) for i in range(number % 2 * 250)]
            await store.commit(
                [put("job.t.a", doc(n=number)), put("tenant.t", doc(n=number)), *wide]
            )
            if number % 7 == 0:
                await store.checkpoint()

    writing = asyncio.create_task(write())
    try:
        seen: set[int] = set()
        while len(seen) < 8:
            documents = (await take_backup(bus)).documents
            if "job.t.a" in documents:
                numbers = [codec.decode(documents[k].data)["n"] for k in ("job.t.a", "tenant.t")]
                assert numbers[0] == numbers[1]
                nodes = {codec.decode(d.data)["n"] for k, d in documents.items() if "node." in k}
                assert len(nodes) <= 1
                seen.add(numbers[0])
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_a_bus_without_a_yard_has_nothing_to_back_up(bus: Bus) -> None:
    with pytest.raises(UnknownThing, match="has no yard"):
        await take_backup(bus)


async def test_a_restore_onto_an_empty_bus_is_followed_by_a_leader_of_the_next_generation(
    bus: Bus, leadership: Leadership
) -> None:
    backup = backup_of({"job.t.a": 1, "done.t.b": 1})
    backup.documents["out.7"] = Document(doc(messages=[]))
    done = await put_back(bus, backup)

    assert (done.yard, done.documents, done.kept, done.deposed) == ("old001", 3, 0, False)
    async with asyncio.timeout(3):
        token = await leadership.acquire()
    assert leadership.yard == "old001"
    assert token[0] == done.generation > backup.generation
    snapshot = await Store(bus.jetstream, token=token).take_over()
    audited = [message for _, record in snapshot.outs for message in record["messages"]]
    assert [message["subject"] for message in audited] == ["gpuyard.audit._.restore"]
    assert audited[0]["body"]["actor"] == "olga"
    keys = await stored_keys(bus)
    assert {"job.t.a", "done.t.b", "out.7"} < keys.keys()


async def test_the_generation_grows_even_past_a_clock_that_went_back(bus: Bus) -> None:
    far = int(time.time() * 1000) + 10**9

    assert (await put_back(bus, backup_of({}, generation=far))).generation == far + 1
    assert (await put_back(bus, backup_of({}, generation=5))).generation == far + 2


async def test_a_running_leader_is_deposed_and_writes_nothing_over_it(
    bus: Bus, leadership: Leadership
) -> None:
    token = await leadership.acquire()
    store = Store(bus.jetstream, token=token)
    await store.commit([put("node.n", doc(n=1))])

    done = await put_back(bus, backup_of({"job.t.a": 1}, yard=leadership.yard))

    assert done.deposed
    with pytest.raises(Fenced):
        await store.commit([put("job.t.a", doc(n=9))])
    async with asyncio.timeout(3):
        await leadership.lost.wait()
        again = await leadership.acquire()
    assert again > token
    keys = await stored_keys(bus)
    assert codec.decode(keys["job.t.a"])["n"] == 1
    assert codec.decode(keys["node.n"])["n"] == 1, "a commit that no checkpoint had moved"
    assert not [key for key in keys if key.startswith("wal.")]


async def test_a_leader_of_a_bus_that_was_lost_writes_nothing_into_the_restored_one(
    bus: Bus, leadership: Leadership
) -> None:
    """Sequences begin anew on an empty bus: that of the restore's epoch must not be its own."""
    store = Store(bus.jetstream, token=await leadership.acquire())
    await store.commit([put("job.t.before", {"v": 1})])
    await bus.jetstream.call(f"STREAM.DELETE.{subjects.STATE_STREAM}")
    await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
    await put_back(bus, backup_of({"job.t.kept": 1}))
    with pytest.raises(Fenced):
        await store.commit([put("job.t.after", {"v": 1})])
    with pytest.raises(Fenced):
        await store.checkpoint()
    jobs = [key for key in await stored_keys(bus) if key.startswith(("job.", "wal."))]
    assert jobs == ["job.t.kept"]


async def test_what_the_bus_knows_of_jobs_stays_and_tenants_become_as_in_the_file(
    bus: Bus, leadership: Leadership
) -> None:
    store = Store(bus.jetstream, token=await leadership.acquire())
    now = {"job.t.both": 2, "done.t.ended": 2, "node.n": 2, "tenant.t": 2, "job.t.later": 2}
    now["share.t"] = 2
    await store.commit([put(key, doc(n=number)) for key, number in now.items()])
    before = ("job.t.both", "job.t.ended", "job.t.lost", "node.n", "tenant.t", "share.t", "out.3")
    file = backup_of(dict.fromkeys(before, 1), yard=leadership.yard)

    done = await put_back(bus, file, replaces=True)

    keys = {key: codec.decode(data) for key, data in (await stored_keys(bus)).items()}
    assert {key: d["n"] for key, d in keys.items() if not key.startswith("out.")} == {
        "job.t.both": 2,
        "job.t.later": 2,
        "job.t.lost": 1,
        "done.t.ended": 2,
        "node.n": 2,
        "tenant.t": 1,
        "share.t": 2,
    }
    assert "out.3" not in keys, "published by the coordinators that went on"
    assert (done.documents, done.kept) == (2, 5)


async def test_unfinished_jobs_are_not_written_over_without_a_word(
    bus: Bus, leadership: Leadership
) -> None:
    token = await leadership.acquire()
    store = Store(bus.jetstream, token=token)
    await store.commit([put("job.t.a", doc(n=1))])

    with pytest.raises(Conflict, match="has 1 unfinished job") as fault:
        await put_back(bus, backup_of({}, yard=leadership.yard))
    assert "--replace" in str(fault.value.hint)
    with pytest.raises(Conflict, match="of yard other1"):
        await put_back(bus, backup_of({}, yard="other1"), replaces=True)

    await store.commit([put("job.t.a", doc(n=2))])
    assert leadership.token == token


async def test_nobody_leads_on_half_a_restore_and_the_same_one_ends_it(
    bus: Bus, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_lead, "LEASE_S", 1.0)
    monkeypatch.setattr(restore_lead, "TRIES", 1)
    file = backup_of({f"job.t.a{n}": 1 for n in range(900)})
    send = bus.jetstream.publish_batch
    sent: list[int] = []

    async def break_off(batch: Any, **options: Any) -> Any:
        sent.append(len(batch))
        if len(sent) == 3:
            raise Unavailable("the connection broke")
        return await send(batch, **options)

    monkeypatch.setattr(bus.jetstream, "publish_batch", break_off)
    with pytest.raises(Interrupted, match="start it again"):
        await put_back(bus, file)
    monkeypatch.setattr(bus.jetstream, "publish_batch", send)
    monkeypatch.setattr(restore_lead, "TRIES", 50)

    standing = asyncio.create_task(leadership.acquire())
    while await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.LEASE_KEY)):
        await asyncio.sleep(0.05)
    await asyncio.sleep(TIMING.poll_s * 4)
    assert not standing.done(), "its lease ran out, and yet nobody leads"
    with pytest.raises(UnknownThing, match="did not end"):
        await take_backup(bus)

    done = await put_back(bus, file)
    async with asyncio.timeout(3):
        token = await standing
    assert token[0] == done.generation
    assert (await read_state(bus)).live_jobs == 900
    assert "restoring" not in await yard_document(bus)


async def test_two_restores_at_once_do_not_mix(bus: Bus) -> None:
    one = backup_of({f"tenant.a{n}": 1 for n in range(1200)})
    two = backup_of({f"tenant.a{n}": 2 for n in range(1200)})

    outcomes = await asyncio.gather(put_back(bus, one), put_back(bus, two), return_exceptions=True)

    ended = [o for o in outcomes if isinstance(o, Restored)]
    assert ended
    numbers = {
        codec.decode(data)["n"]
        for key, data in (await stored_keys(bus)).items()
        if key.startswith("tenant.")
    }
    assert len(numbers) == 1


async def test_what_expires_keeps_the_rest_of_its_time(bus: Bus) -> None:
    in_a_week = rfc3339(datetime.now(UTC) + timedelta(days=7))
    file = backup_of({})
    file.documents["done.t.soon"] = Document(doc(n=1), in_a_week)
    file.documents["done.t.gone"] = Document(doc(n=1), "2020-01-01T00:00:00.000Z")

    await put_back(bus, file)

    (key,) = [key for key in (await stored_keys(bus)) if key.startswith("done.")]
    again = (await take_backup(bus)).documents[key].expires_at
    assert again is not None
    late = datetime.fromisoformat(again) - datetime.fromisoformat(in_a_week)
    assert abs(late) < timedelta(seconds=1)
