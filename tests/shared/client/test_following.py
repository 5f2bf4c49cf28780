"""Following a job: output and events that are late, lost, forged or twice."""

import asyncio

import pytest

from gpuyard.client import follow
from gpuyard.client.jobs import LogLine
from tests.shared.client.clients import SPEC, client_of, run_lines
from tests.shared.client.fake_yard import FakeJob, FakeYard, runs_on
from tests.support.nats_server import MakeNatsServer, NatsServer


async def test_output_that_was_lost_is_fetched(nats_server: NatsServer, quick: None) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        for number in range(10):
            await yard.chunk(job, b"line %d\n" % number, lost=number in (0, 4, 9))
        await yard.chunk(job, b"", end=True, lost=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        _, lines = await run_lines(client)
        assert lines == [f"stdout:line {number}" for number in range(10)]


async def test_a_gap_is_filled_while_output_goes_on(nats_server: NatsServer, quick: None) -> None:
    seen: list[str] = []

    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        await yard.chunk(job, b"lost\n", lost=True)
        while "stdout:lost" not in seen:
            await yard.chunk(job, b"more\n")
            await asyncio.sleep(0.01)
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        await asyncio.wait_for(
            client.run(SPEC, on_log=lambda line: seen.append(f"{line.stream}:{line.text}")), 10
        )
        assert seen[:2] == ["stdout:lost", "stdout:more"]


async def test_another_nodes_output_is_not_shown(nats_server: NatsServer) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job, "n1")
        await yard.chunk(job, b"forged\n", node="evil", stored=False)
        await yard.chunk(job, b"true\n")
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        _, lines = await run_lines(client)
        assert lines == ["stdout:true"]


async def test_output_that_nobody_has_is_waited_for_in_vain(
    nats_server: NatsServer, quick: None
) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        await yard.chunk(job, b"a\n")
        await yard.chunk(job, b"gone\n", lost=True)
        job.chunks.pop()
        await yard.chunk(job, b"c\n", n=2, offset=7)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        found: list[LogLine] = []
        job = await asyncio.wait_for(client.run(SPEC, on_log=found.append), 10)
        assert job.is_succeeded
        assert [(line.text, line.lost_bytes) for line in found] == [("a", 0), ("c", 5)]


async def test_events_that_were_lost_are_noticed(nats_server: NatsServer, quick: None) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job, lost=True)
        await yard.chunk(job, b"out\n")
        await yard.chunk(job, b"", end=True)
        await yard.end(job, lost=True)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        job, lines = await asyncio.wait_for(run_lines(client), 10)
        assert job.is_succeeded
        assert lines == ["stdout:out"]


async def test_two_attempts_come_one_after_the_other(nats_server: NatsServer) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job, "n1")
        await yard.chunk(job, b"first\n")
        end = await yard.chunk(job, b"", end=True, lost=True)
        await yard.event(job, "requeued")
        await yard.assign(job, "n2")
        await yard.chunk(job, b"second\n")
        await yard.publish_chunk(job, end, "n1")
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        _, lines = await run_lines(client)
        assert lines == ["stdout:first", "stdout:second"]


async def test_a_job_that_never_started_has_no_output_to_wait_for(
    nats_server: NatsServer,
) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        job.attempts[-1]["started_at"] = None
        await yard.end(job, None, reason="image_not_found")

    async with FakeYard(nats_server.url, live), client_of(nats_server.url) as client:
        job, lines = await asyncio.wait_for(run_lines(client), 2)
        assert (job.reason, job.exit_status, lines) == ("image_not_found", 125, [])


async def test_a_broken_connection_loses_nothing(
    make_nats_server: MakeNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "RECHECK_S", 0.5)
    server = make_nats_server()

    async with FakeYard(server.url, runs_on) as yard, client_of(server.url) as client:
        running = asyncio.create_task(run_lines(client))
        while not yard.jobs or not (job := next(iter(yard.jobs.values()))).chunks:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.restart)
        while not yard.bus.is_connected:
            await asyncio.sleep(0.05)
        await yard.chunk(job, b"after\n")
        await yard.chunk(job, b"", end=True)
        await yard.end(job)
        _, lines = await asyncio.wait_for(running, 20)
        assert lines == ["stdout:begun", "stdout:after"]
