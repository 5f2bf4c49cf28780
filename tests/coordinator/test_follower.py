"""A standby's picture on a real server: equal to what is committed, however it was written."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Settings
from gpuyard_coordinator.follower import Follower
from gpuyard_coordinator.store import Store, Write, delete, put
from gpuyard_coordinator.yard_counts import gpu_totals
from tests.support.nats_server import NatsServer
from tests.support.state_bucket import Network, lead


@asynccontextmanager
async def following(bus: Bus, **hooks: Any) -> AsyncIterator[Follower]:
    follower = Follower(bus.jetstream, settings=Settings(), clock=Clock(), **hooks)
    running = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(10):
            await follower.ready.wait()
        yield follower
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def job(number: int, **known: Any) -> Write:
    """The write of a waiting job."""
    spec = {"image": "busybox", "gpus": None}
    found = Job(
        tenant="t",
        id=f"j{number}",
        user="mia",
        user_verified=False,
        packed_spec=codec.encode(spec),
        name=None,
        spec_sha256="x",
        shape=Shape(),
        priority=50,
        submitted_at="2026-01-01T00:00:00.000Z",
        submit_seq=number,
        **known,
    )
    return put(subjects.job_key("t", found.id), documents.encode_job(found))


def gone(number: int) -> Write:
    return delete(subjects.job_key("t", f"j{number}"))


def seen(follower: Follower) -> dict[str, int]:
    """Jobs of the picture with their number of events, by id."""
    return {id: job.events for (_, id), job in follower.cluster.jobs.items()}


async def caught_up(follower: Follower) -> dict[str, int]:
    async with asyncio.timeout(5):
        await follower.catch_up()
    return seen(follower)


async def test_what_is_stored_and_what_is_only_logged_is_read(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([job(1), job(2), job(3)])
    assert await store.checkpoint()
    await store.commit([job(2, events=5), gone(3), job(4)])

    async with following(bus) as follower:
        assert seen(follower) == {"j1": 0, "j2": 5, "j4": 0}
        assert len(follower.cluster.queue) == 3


async def test_commits_and_checkpoints_are_followed(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    async with following(bus) as follower:
        await store.commit([job(1), job(2)])
        assert await caught_up(follower) == {"j1": 0, "j2": 0}
        await store.commit([gone(1), job(2, events=3)])
        assert await store.checkpoint()
        await store.commit([job(2, events=4)])
        assert await caught_up(follower) == {"j2": 4}
        assert await store.checkpoint()
        assert await caught_up(follower) == {"j2": 4}


async def test_a_commit_that_is_a_batch_is_followed(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    async with following(bus) as follower:
        await store.commit([job(number) for number in range(250)])
        assert len(await caught_up(follower)) == 250
        assert [job.submit_seq for job in follower.cluster.jobs.values()] == list(range(250))


async def test_an_end_is_told_and_remembered(bus: Bus) -> None:
    ended: list[tuple[str, str]] = []
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([job(1)])
    async with following(bus, on_ended=ended.append) as follower:
        record = documents.job_document(follower.cluster.jobs["t", "j1"])
        await store.commit([gone(1), put(subjects.done_key("t", "j1"), dict(record))])
        assert await caught_up(follower) == {}
        assert ended == [("t", "j1")]
        assert follower.cluster.recently_done.get(("t", "j1")) == record


async def test_a_late_copy_of_a_commit_changes_nothing(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(bus, monkeypatch)
    store = Store(bus.jetstream, token=await lead(bus))
    async with following(bus) as follower:
        await store.commit([job(1)])
        await store.commit([job(1, events=2)])
        assert await store.checkpoint()
        late = network.records[0]
        # As after the time in which the server knows its id.
        await network.repeat(Publication(late.subject, late.data))
        assert await caught_up(follower) == {"j1": 2}
    async with following(bus) as fresh:
        assert seen(fresh) == {"j1": 2}


async def test_a_node_holds_what_runs_there_whichever_comes_first(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    async with following(bus) as follower:
        await store.commit([_running(1, "n1"), _node("n1")])
        await caught_up(follower)
        node = follower.cluster.nodes["n1"]
        assert list(node.attempts) == [("t", "j1", 1)]
        assert node.gpus["GPU-1"].free_milli == 0
        await store.commit([gone(1), delete(subjects.node_key("n1"))])
        await caught_up(follower)
        assert follower.cluster.nodes == {}
        assert follower.cluster.use["t"].milli == 0


async def test_the_server_restarts_and_nothing_is_missed(bus: Bus, nats_server: NatsServer) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    async with following(bus) as follower:
        await store.commit([job(1)])
        nats_server.kill()
        nats_server.start()
        await store.commit([job(2), gone(1)])
        async with asyncio.timeout(20):
            while seen(follower) != {"j2": 0}:
                await asyncio.sleep(0.05)


async def test_a_commit_of_another_version_is_not_led_past(bus: Bus) -> None:
    async with following(bus) as follower:
        await bus.jetstream.publish(
            Publication(subjects.state(subjects.wal_key(7, 1)), codec.encode({"v": 1}))
        )
        async with asyncio.timeout(5):
            await follower.unready.wait()


async def test_the_yard_was_restored_and_is_read_anew(bus: Bus) -> None:
    yard = Publication(subjects.state(subjects.YARD_KEY), _yard(1))
    await bus.jetstream.publish(yard)
    async with following(bus) as follower:
        assert (follower.cluster.yard, follower.cluster.token[0]) == ("abc123", 1)
        before = follower.cluster
        await bus.jetstream.publish(Publication(yard.subject, _yard(2)))
        async with asyncio.timeout(5):
            await follower.unready.wait()
            await follower.ready.wait()
        assert follower.cluster is not before
        assert follower.cluster.token[0] == 2


async def test_that_the_picture_is_whole_is_told_at_once(bus: Bus) -> None:
    told: list[bool] = []
    async with following(bus, on_opening=lambda: told.append(True)):
        assert told == [True]


async def test_a_lease_that_was_given_back_is_told_at_once(bus: Bus) -> None:
    told = asyncio.Event()
    lease = subjects.state(subjects.LEASE_KEY)
    await bus.jetstream.publish(Publication(lease, b"x"))
    async with following(bus, on_opening=told.set):
        told.clear()
        await bus.jetstream.publish(Publication(lease, b"", marker="PURGE", ttl_s=1.0))
        async with asyncio.timeout(5):
            await told.wait()


def _yard(generation: int) -> bytes:
    return codec.encode({"v": 1, "id": "abc123", "generation": generation})


def _running(number: int, node: str, *, milli: int = 1000) -> Write:
    document = codec.decode(job(number).data or b"")
    granted = {"uuid": "GPU-1", "milli": milli, "memory_mib": None, "core_percent": None}
    attempt: dict[str, Any] = dict.fromkeys(
        [
            "reason",
            "exit_code",
            "message",
            "started_at",
            "ended_at",
            "container_id",
            "image_digest",
            "next_allowed_because",
            "usage",
            "stop",
            "stop_requested_at",
        ]
    )
    attempt |= {"attempt": 1, "node": node, "machine_id": "m", "boot_id": "b", "generation": 1}
    attempt |= {"state": "running", "gpus": [granted], "assigned_at": "", "log_chunks": 0}
    document |= {"state": "running", "attempts": [attempt]}
    return put(subjects.job_key("t", f"j{number}"), document)


def _node(name: str) -> Write:
    gpu = {"uuid": "GPU-1", "index": 0, "memory_total_mib": 1024, "mig": None}
    document = {
        "v": 1,
        "name": name,
        "machine_id": "m",
        "boot_id": "b",
        "scheduling": "open",
        "scheduling_reason": None,
        "facts": {"gpus": [gpu], "cpus": None, "memory_mib": None, "labels": {}},
        "generation": 1,
        "last_beat_at": None,
    }
    return put(subjects.node_key(name), document)


async def test_the_mix_is_read_and_followed_and_counts_what_came_since(bus: Bus) -> None:
    def mix(upto: int) -> Write:
        counted = Mix()
        for number in range(upto):
            counted.observe(Shape(), number)
        return put(subjects.MIX_KEY, counted.to_document())

    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([mix(3), job(2), job(3)])
    assert await store.checkpoint()
    await store.commit([job(4)])
    async with following(bus) as follower:
        assert follower.cluster.priced.observed == 3
        assert follower.cluster.mix.observed == 5
        await store.commit([mix(5), job(5)])
        await store.commit([gone(4)])
        await caught_up(follower)
        assert follower.cluster.priced.observed == 5
        assert follower.cluster.mix.observed == 6
        assert follower.cluster.unreadable == []
    async with following(bus) as fresh:
        assert fresh.cluster.priced.observed == 5
        assert fresh.cluster.mix.observed == 6


async def test_a_standby_counts_a_changed_node_anew_once(bus: Bus) -> None:
    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([_node("a"), _node("b")])
    async with following(bus) as follower:
        cluster = follower.cluster
        assert gpu_totals(cluster)["used"] == 0
        await store.commit([_running(0, "a")])
        await caught_up(follower)
        counts = {name: node.gpu_counts for name, node in cluster.nodes.items()}
        assert (counts["a"], counts["b"] is None) == (None, False)
        assert (gpu_totals(cluster)["used"], cluster.nodes_changed) == (1, set())


async def test_numbers_that_no_machine_has_are_left_out_and_told(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = []
    for name in ("a", "b"):
        document = _node(name)
        body = codec.decode(document.data or b"")
        body["facts"] = {**body["facts"], "cpus": 1e308}
        nodes.append(put(subjects.node_key(name), body))
    share = {"v": 1, "tenant": "t", "until_ms": 5, "spent": [1 << 62, 0, 0]}
    writes = [*nodes, _running(0, "c", milli=1 << 60), put(subjects.share_key("t"), share)]
    await Store(bus.jetstream, token=await lead(bus)).commit(writes)

    async with following(bus) as follower:
        cluster = follower.cluster
        assert [cluster.nodes[name].facts["cpus"] for name in ("a", "b")] == [None, None]
        assert [cluster.nodes[name].generation for name in ("a", "b")] == [-1, -1]
        assert cluster.jobs["t", "j0"].attempts[0].gpus[0]["milli"] == 1000
        assert "t" not in cluster.history
        assert len(cluster.unreadable) == 4
    told = [record.__dict__["fault"] for record in caplog.records if "understood" in record.message]
    assert told == cluster.unreadable
    assert any("node a: its facts have the number 1e+308" in line for line in told)


async def test_shares_are_read_and_followed(bus: Bus) -> None:
    def share(tenant: str, spent: int) -> Write:
        document = {"v": 1, "tenant": tenant, "until_ms": 5, "spent": [spent, 0, 0]}
        return put(subjects.share_key(tenant), document, ttl_s=100)

    store = Store(bus.jetstream, token=await lead(bus))
    await store.commit([share("a", 1), share("b", 1)])
    assert await store.checkpoint()
    await store.commit([share("a", 2)])
    async with following(bus) as follower:
        known = follower.cluster.history
        assert {name: history.spent[0] for name, history in known.items()} == {"a": 2, "b": 1}
        await store.commit([share("a", 3), delete(subjects.share_key("b"))])
        await caught_up(follower)
        assert {name: history.spent[0] for name, history in known.items()} == {"a": 3}
        assert follower.cluster.unreadable == []
