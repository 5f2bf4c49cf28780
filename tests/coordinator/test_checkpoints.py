"""Checkpoints on a real server: nothing is lost or undone, wherever a leader dies."""

import asyncio
import math
import random
from collections.abc import Sequence

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication, StreamRefusal
from gpuyard.errors import Unavailable
from gpuyard_coordinator.store import Fenced, Store, Write, delete, put
from gpuyard_coordinator.store.bucket import (
    CHECKPOINT_AGE_S,
    CHECKPOINT_IDLE_S,
    CHECKPOINT_MESSAGES,
)
from tests.shared.golden_examples import JOB_DOCUMENT, OUT_RECORD
from tests.support.state_bucket import Network, as_read, committed, lead, stored_keys, wal_keys


@pytest.fixture
def network(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(bus, monkeypatch)


def jobs(count: int, body: int, *, start: int = 0) -> list[Write]:
    return [put(f"job.a.{n}", {"n": body}) for n in range(start, start + count)]


def contents(*commits: list[Write]) -> dict[str, bytes]:
    return {w.key: w.data for writes in commits for w in writes if w.data is not None}


async def seen_by_next_leader(bus: Bus) -> tuple[Store, list[int]]:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.take_over()
    return store, await numbers(bus)


async def numbers(bus: Bus) -> list[int]:
    keys = await as_read(bus)
    return sorted(codec.decode(data)["n"] for key, data in keys.items() if key.startswith("job."))


async def test_what_no_checkpoint_has_moved_is_replayed_by_the_next_leader(bus: Bus) -> None:
    first = Store(bus.jetstream, token=await lead(bus))
    await first.commit([put("job.a.1", {"n": 0}), put("job.a.2", {"n": 0})])
    await first.checkpoint()
    await first.commit([put("job.a.1", {"n": 1}), delete("job.a.2"), put("job.a.3", {"n": 3})])
    await first.commit([put("job.a.1", {"n": 2})])
    # It dies here.

    second, found = await seen_by_next_leader(bus)

    assert found == [2, 3]
    assert await second.checkpoint()
    assert await stored_keys(bus) == {
        "job.a.1": codec.encode({"n": 2}),
        "job.a.3": codec.encode({"n": 3}),
    }


async def test_a_new_leader_writes_no_record_while_there_are_some_of_another(
    bus: Bus, network: Network
) -> None:
    first = Store(bus.jetstream, token=await lead(bus))
    await first.commit(jobs(2, 1))
    # It has not even looked at what is there.
    second = Store(bus.jetstream, token=await lead(bus))

    await second.commit(jobs(1, 2))

    assert len(network.batches) == 1
    assert await stored_keys(bus) == contents(jobs(2, 1), jobs(1, 2))
    await second.commit(jobs(1, 3))
    assert len(network.batches) == 1


@pytest.mark.parametrize("parts", range(6))
async def test_a_crash_between_the_parts_of_a_checkpoint_loses_nothing(
    bus: Bus, parts: int
) -> None:
    first = Store(bus.jetstream, token=await lead(bus))
    commits = [jobs(60, n, start=20 * n) for n in range(30)]
    for writes in commits:
        await first.commit(writes)
    for part in range(parts):
        assert await first.checkpoint() == (part >= 1)
        commits.append(jobs(10, 100 + part, start=50 * part))
        await first.commit(commits[-1])
    assert await committed(bus) == contents(*commits)

    second, found = await seen_by_next_leader(bus)

    assert found == sorted(codec.decode(d)["n"] for d in contents(*commits).values())
    commits.append(jobs(3, 200))
    await second.commit(commits[-1])
    assert await committed(bus) == contents(*commits)
    while not await second.checkpoint():
        pass
    assert await stored_keys(bus) == contents(*commits)


async def test_a_zombies_checkpoint_is_fenced_and_writes_nothing(bus: Bus) -> None:
    zombie = Store(bus.jetstream, token=await lead(bus))
    await zombie.commit(jobs(1, 1))
    leader = Store(bus.jetstream, token=await lead(bus))
    await leader.commit(jobs(1, 2))
    before = await stored_keys(bus)

    for _ in range(2):
        with pytest.raises(Fenced):
            await zombie.checkpoint()

    assert await stored_keys(bus) == before
    assert before == contents(jobs(1, 2))


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_checkpoint_that_is_not_answered_is_put_off(
    bus: Bus, network: Network, is_stored: bool
) -> None:
    now = [0.0]
    store = Store(bus.jetstream, token=await lead(bus), clock=lambda: now[0])
    await store.commit([*jobs(2, 1), put("out.5", OUT_RECORD)])
    (network.lost_answers if is_stored else network.lost_messages).append(Unavailable("lost"))

    assert not await store.checkpoint()

    assert not store.checkpoint_due(0.9)
    assert store.checkpoint_due(1.0)
    await store.commit(jobs(1, 2))
    store.forget(["out.5"])
    assert await store.checkpoint()
    assert await stored_keys(bus) == contents(jobs(2, 1), jobs(1, 2))


async def test_a_refused_checkpoint_does_not_end_the_leadership(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit(jobs(2, 1))
    network.lost_messages.append(StreamRefusal("no space", code=10047))

    assert not await store.checkpoint()

    await store.commit(jobs(1, 2))
    assert await committed(bus) == contents(jobs(2, 1), jobs(1, 2))


async def test_a_late_copy_of_a_checkpoint_undoes_nothing(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit(jobs(3, 1))
    network.lost_messages.append(Unavailable("it is still on its way"))
    assert not await store.checkpoint()
    await store.commit([*jobs(1, 2), delete("job.a.1")])

    await network.repeat(network.batches[0])

    expected = contents(jobs(3, 1), jobs(1, 2))
    del expected["job.a.1"]
    assert await committed(bus) == expected
    assert await numbers(bus) == [1, 2]
    assert await store.checkpoint()
    assert await stored_keys(bus) == expected


async def test_one_call_moves_one_batch(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    for n in range(6):
        await store.commit(jobs(190, n, start=190 * n))

    calls = [await store.checkpoint() for _ in range(3)]

    assert calls == [False, False, True]
    assert [len(batch) for batch in network.batches] == [400, 400, 1140 + 6 - 2 * 399 + 1]
    assert await wal_keys(bus) == []


async def test_a_relayed_record_never_reaches_the_bucket(bus: Bus, network: Network) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([put("job.a.1", {"n": 1}), put("out.7", OUT_RECORD)])
    store.forget(["out.7"])
    await store.commit([put("job.a.1", {"n": 2}), put("out.8", OUT_RECORD)])

    assert await store.checkpoint()
    written = {publication.subject for publication in network.batches[0]}
    assert subjects.state("out.7") not in written
    assert subjects.state("out.8") in written

    store.forget(["out.8"])
    assert store.checkpoint_at < math.inf
    assert await store.checkpoint()
    assert await stored_keys(bus) == {"job.a.1": codec.encode({"n": 2})}


async def test_ended_jobs_are_seen_before_any_checkpoint(bus: Bus) -> None:
    def done(n: int, reason: str = "done", tenant: str = "a") -> Write:
        document = {**JOB_DOCUMENT, "tenant": tenant, "id": f"j{n}", "reason": reason}
        return put(subjects.done_key(tenant, f"j{n}"), document, ttl_s=60)

    async def listed(limit: int) -> list[tuple[str, str | None]]:
        found, cursor = [], 0
        while True:
            page, following = await store.list_done("a", cursor=cursor, limit=limit)
            assert len(page) <= limit
            found += [(job["id"], job["reason"]) for job in page]
            if following is None:
                return found
            cursor = following

    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([done(0), done(1), done(2)])
    await store.checkpoint()
    await store.commit([done(3), done(1, "again"), done(4, tenant="b"), done(5)])
    await store.commit([delete(subjects.done_key("a", "j0")), delete(subjects.done_key("a", "j5"))])
    expected = [("j2", "done"), ("j3", "done"), ("j1", "again")]

    for _ in range(2):
        for limit in (1, 2, 3, 100):
            assert await listed(limit) == expected
        assert len((await store.list_done(None))[0]) == 4
        assert await store.get_done("a", "j0") is None
        kept = await store.get_done("a", "j1")
        assert kept is not None
        assert kept["reason"] == "again"
        assert await store.checkpoint()


async def test_a_page_that_is_read_during_a_checkpoint_misses_nothing(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    for n in range(40):
        document = {**JOB_DOCUMENT, "tenant": "a", "id": f"j{n}"}
        await store.commit([put(subjects.done_key("a", f"j{n}"), document)])
        (page, following), _ = await asyncio.gather(store.list_done("a"), store.checkpoint())
        assert following is None
        assert sorted(job["id"] for job in page) == sorted(f"j{k}" for k in range(n + 1))


@pytest.mark.parametrize("limit", [1, 3, 4, 7])
async def test_pages_go_on_where_they_were_after_a_checkpoint(bus: Bus, limit: int) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    for n in range(20):
        document = {**JOB_DOCUMENT, "tenant": "a", "id": f"j{n}"}
        other = {**JOB_DOCUMENT, "tenant": "b", "id": f"j{n}"}
        await store.commit([put(f"done.a.j{n}", document), put(f"done.b.j{n}", other)])
        if n == 4:
            await store.checkpoint()

    found, cursor = list[str](), 0
    while True:
        page, following = await store.list_done("a", cursor=cursor, limit=limit)
        found += [job["id"] for job in page]
        if len(found) > 9:
            await store.checkpoint()
        if following is None:
            break
        cursor = following

    assert found == [f"j{n}" for n in range(20)]


async def test_when_a_checkpoint_is_due(bus: Bus) -> None:
    now = [100.0]
    store = Store(bus.jetstream, token=await lead(bus), clock=lambda: now[0])
    assert store.checkpoint_at == math.inf
    await store.commit(jobs(1, 1))
    assert store.checkpoint_at == 100.0 + CHECKPOINT_IDLE_S
    # Commits that never pause put it off for a while only.
    for _ in range(20):
        now[0] += 0.1
        await store.commit(jobs(1, 1))
    assert store.checkpoint_at == 100.0 + CHECKPOINT_AGE_S
    await store.checkpoint()
    assert store.checkpoint_at == math.inf
    # Much of it is due at once.
    now[0] = 200.0
    await store.commit(jobs(CHECKPOINT_MESSAGES // 2, 1))
    assert not store.checkpoint_due(200.0)
    await store.commit(jobs(CHECKPOINT_MESSAGES // 2, 1, start=1000))
    assert store.checkpoint_due(200.0)
    await store.checkpoint()
    for n in range(7):
        assert not store.checkpoint_due(200.0)
        await store.commit([put(f"job.a.{n}", b"x" * 500_000)])
    assert store.checkpoint_due(200.0)


class Walk:
    """Random steps of one leader after the other, beside a plain map of what must be there."""

    def __init__(self, bus: Bus, network: Network, store: Store, seed: int) -> None:
        self.bus, self.network, self.store = bus, network, store
        self.dice = random.Random(seed)
        self.model: dict[str, bytes] = {}

    async def step(self, number: int) -> None:
        if self.dice.random() < 0.1:
            faults = (self.network.lost_answers, self.network.lost_messages)
            self.dice.choice(faults).append(Unavailable("lost"))
        steps = (self.commit, self.checkpoint, self.late_copy, self.take_over)
        await self.dice.choices(steps, (10, 4, 2, 1))[0](number)

    async def commit(self, number: int) -> None:
        keys = self.dice.sample(range(300), self.dice.choice((1, 2, 5, 120, 250)))
        writes = [
            put(f"job.a.{n}", {"n": number}) if self.dice.random() < 0.7 else delete(f"job.a.{n}")
            for n in keys
        ]
        await self.store.commit(writes)
        for write in writes:
            self.model.pop(write.key, None)
        self.model |= contents(writes)

    async def checkpoint(self, number: int) -> None:
        await self.store.checkpoint()

    async def late_copy(self, number: int) -> None:
        if self.network.records:
            await self.deliver(self.dice.choice(self.network.records))
        if self.network.batches:
            await self.deliver(self.dice.choice(self.network.batches))

    async def deliver(self, copy: Publication | Sequence[Publication]) -> None:
        await asyncio.gather(self.network.repeat(copy), return_exceptions=True)

    async def take_over(self, number: int) -> None:
        self.store = Store(self.bus.jetstream, token=await lead(self.bus))
        if self.dice.random() < 0.7:
            await self.store.take_over()


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_commits_checkpoints_and_take_overs_is_like_a_map(
    bus: Bus, network: Network, seed: int
) -> None:
    walk = Walk(bus, network, Store(bus.jetstream, token=await lead(bus)), seed)
    for number in range(120):
        await walk.step(number)
        if number % 5 == 0:
            assert await committed(bus) == walk.model, number
    while not await walk.store.checkpoint():
        network.lost_answers.clear()
        network.lost_messages.clear()
    assert await stored_keys(bus) == walk.model
