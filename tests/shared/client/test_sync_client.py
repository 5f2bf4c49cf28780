"""The sync face: plain calls, iterators, threads, and what happens when it is closed."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard import Client
from gpuyard.client.config import load_config
from gpuyard.errors import Unavailable, UnknownThing
from tests.shared.client.fake_yard import FakeJob, FakeYard, exits
from tests.support.nats_server import NatsServer


@pytest.fixture
def yard(nats_server: NatsServer) -> Iterator[FakeYard]:
    """A fake yard on a thread of its own, since these tests have no event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yard = FakeYard(nats_server.url, exits(3))
    asyncio.run_coroutine_threadsafe(yard.__aenter__(), loop).result(10)
    yield yard
    asyncio.run_coroutine_threadsafe(yard.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def url(nats_server: NatsServer, yard: FakeYard) -> str:
    return nats_server.url


def make(url: str) -> Client:
    return Client(config=load_config(url=url, user="alice", environ={}, folder=Path("/")))


def test_a_job_runs_and_is_looked_at(url: str) -> None:
    with make(url) as client:
        lines: list[str] = []
        events: list[str] = []
        job = client.run(
            {"image": "i"},
            on_log=lambda line: lines.append(line.text),
            on_event=lambda event: events.append(event["kind"]),
        )
        assert (job.exit_status, lines) == (3, ["out", "err"])
        assert events == ["accepted", "assigned", "running", "failed"]
        assert client.job(job.id).state == "failed"
        assert client.wait(job.id).exit_status == 3
        assert [line.text for line in client.logs(job.id)] == ["out", "err"]
        assert [event["kind"] for event in client.events(job.id)] == events
        assert [found.id for found in client.jobs(all=True)] == [job.id]
        assert client.nodes() == []
        assert client.version()["yard"] == "abc123"


def test_a_long_list_takes_few_ways_to_the_clients_thread(
    url: str, yard: FakeYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job-{number:04d}" for number in range(2500)]
    for id in ids:
        yard.jobs[id] = FakeJob({"id": id}, "default", "alice")
    ways: list[object] = []
    go = asyncio.run_coroutine_threadsafe

    def counted(*way: Any) -> Any:
        ways.append(way)
        return go(*way)

    with make(url) as client:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", counted)
        assert [job.id for job in client.jobs()] == ids
        assert len(ways) <= 5
        monkeypatch.undo()


def test_it_connects_at_the_first_call(url: str) -> None:
    client = make(url)
    assert client.nodes() == []
    client.close()
    client.close()


def test_an_iterator_may_be_left_early(url: str) -> None:
    with make(url) as client:
        job = client.run({"image": "i"})
        assert next(client.events(job.id))["kind"] == "accepted"
        for line in client.logs(job.id, follow=True):
            assert line.text == "out"
            break


def test_threads_may_share_it(url: str) -> None:
    with make(url) as client:
        ended: list[int | None] = []

        def run() -> None:
            ended.append(client.run({"image": "i"}).exit_status)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ended == [3] * 4


def test_faults_reach_the_caller(url: str) -> None:
    with make(url) as client, pytest.raises(UnknownThing):
        client.job("nope")


def test_an_unreachable_yard_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    client = make("nats://127.0.0.1:1")
    client._client.connect = lambda: _fail()  # type: ignore[assignment,method-assign,misc]
    with pytest.raises(Unavailable):
        client.nodes()
    assert threading.active_count() == before


async def _fail() -> None:
    raise Unavailable("cannot reach it")


def test_the_package_gives_out_what_it_promises() -> None:
    for name in gpuyard.__all__:
        assert getattr(gpuyard, name) is not None
    assert set(gpuyard.__all__) <= set(dir(gpuyard))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = gpuyard.Nothing
