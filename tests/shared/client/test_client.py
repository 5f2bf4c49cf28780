"""The SDK against a coordinator of canned answers on a real nats-server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard import subjects
from gpuyard.client import api
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import load_config
from gpuyard.client.jobs import StillUnfinished
from gpuyard.errors import (
    BusTooOld,
    Conflict,
    InvalidJob,
    NotAllowed,
    RequestError,
    TooLarge,
    Unavailable,
    UnknownThing,
)
from tests.shared.client.clients import SPEC, client_of, run_lines
from tests.shared.client.fake_yard import FakeJob, FakeYard, exits, runs_on
from tests.support.nats_server import NatsServer


async def test_submit_gives_the_accepted_job(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        job = await client.submit({**SPEC, "name": "n"})
        assert (job.name, job.tenant, job.user, job.warning) == ("n", "default", "alice", None)
        assert len(job.id) == 16
        assert yard.submissions[0]["id"] == job.id
        assert yard.submissions[0]["v"] == 1


async def test_run_returns_after_the_end_and_all_output(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(7)), client_of(nats_server.url) as client:
        job, lines = await run_lines(client)
        assert (job.state, job.exit_code, job.exit_status) == ("failed", 7, 7)
        assert lines == ["stdout:out", "stderr:err"]


async def test_a_spec_object_is_taken_by_its_model_dump(nats_server: NatsServer) -> None:
    class Spec:
        def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]:
            return {"image": f"{mode}-{exclude_unset}"}

    async with FakeYard(nats_server.url, runs_on), client_of(nats_server.url) as client:
        assert (await client.submit(Spec())).image == "json-True"


async def test_every_fault_of_a_refused_job_is_told(nats_server: NatsServer) -> None:
    async def refuse(yard: FakeYard, job: FakeJob) -> None:
        await yard.reject(
            job,
            {"field": "gpu", "code": "unknown_field", "message": "x", "did_you_mean": "gpus"},
            {"field": "cpus", "code": "out_of_range", "message": "y", "did_you_mean": None},
        )

    async with FakeYard(nats_server.url, refuse), client_of(nats_server.url) as client:
        with pytest.raises(InvalidJob) as caught:
            await client.submit(SPEC)
        assert [fault.field for fault in caught.value.faults] == ["gpu", "cpus"]
        assert str(caught.value) == "gpu: x (did you mean gpus?); cpus: y"


async def test_an_id_of_another_spec_is_a_conflict(nats_server: NatsServer) -> None:
    async def refuse(yard: FakeYard, job: FakeJob) -> None:
        await yard.reject(job, {"field": "id", "code": "conflict", "message": "exists"})

    async with FakeYard(nats_server.url, refuse), client_of(nats_server.url) as client:
        with pytest.raises(Conflict, match="exists"):
            await client.submit({**SPEC, "id": "mine"})


async def test_the_same_id_twice_is_one_job(nats_server: NatsServer, quick: None) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        first = await client.submit({**SPEC, "id": "mine"})
        second = await client.submit({**SPEC, "id": "mine"})
        assert (first.id, second.id, second.state) == ("mine", "mine", "running")
        assert second.warning is None
        assert len(yard.jobs) == 1


@pytest.mark.parametrize("id", ["Mine", "a" * 49, "jabcdefgh-2", 5, ""])
async def test_an_id_that_cannot_be_is_refused_at_once(id: Any, nats_server: NatsServer) -> None:
    async with client_of(nats_server.url) as client:
        with pytest.raises(InvalidJob, match="id: must be"):
            await client.submit({**SPEC, "id": id})


async def test_a_job_over_the_limit_is_not_sent(nats_server: NatsServer) -> None:
    async with client_of(nats_server.url) as client:
        with pytest.raises(TooLarge, match="65536 are allowed"):
            await client.submit({**SPEC, "env": {"X": "x" * 70_000}})


async def test_without_a_leader_the_job_is_stored(nats_server: NatsServer, quick: None) -> None:
    async with (
        FakeYard(nats_server.url, leads=False) as yard,
        client_of(nats_server.url) as client,
    ):
        job = await client.submit(SPEC)
        assert job.warning is not None
        assert job.state == "queued"
        state = await yard.bus.jetstream.state(subjects.SUBMIT_STREAM)
        assert state.messages == 1


async def test_run_goes_on_once_a_leader_comes(nats_server: NatsServer, quick: None) -> None:
    async with (
        FakeYard(nats_server.url, leads=False) as yard,
        client_of(nats_server.url) as client,
    ):
        running = asyncio.create_task(run_lines(client))
        await asyncio.sleep(0.8)
        assert not running.done()
        await yard.lead()
        stored = await yard.bus.jetstream.last(
            subjects.SUBMIT_STREAM, subjects.submit("default", "alice")
        )
        assert stored is not None
        await yard.bus.app.publish("gpuyard.submit.default.alice", stored.data)
        job, lines = await running
        assert (job.state, lines) == ("succeeded", ["stdout:out", "stderr:err"])


async def test_without_an_intake_the_job_is_refused(nats_server: NatsServer, quick: None) -> None:
    async with client_of(nats_server.url) as client:
        with pytest.raises(Unavailable, match="no coordinator has ever run") as caught:
            await client.submit(SPEC)
        assert caught.value.code == "no_leader"


async def test_a_call_without_a_coordinator_says_so(nats_server: NatsServer, quick: None) -> None:
    async with client_of(nats_server.url) as client:
        with pytest.raises(Unavailable, match="no coordinator answers on nats://127") as caught:
            await client.job("some")
        assert caught.value.code == "no_leader"


async def test_an_unreachable_bus_is_named() -> None:
    config = load_config(url="nats://t@127.0.0.1:1", environ={}, folder=Path("/"))
    client = AsyncClient(config=config)
    with pytest.raises(Unavailable, match=r"\*\*\*@127\.0\.0\.1:1"):
        await client.connect(timeout_s=0.5)
    await client.close()


async def test_a_bus_that_is_too_old_is_named() -> None:
    info = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576,"headers":true}\r\n'

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = load_config(url=f"127.0.0.1:{port}", environ={}, folder=Path("/"))
        client = AsyncClient(config=config)
        with pytest.raises(BusTooOld, match=r"2\.9\.10, and gpuyard needs 2\.12"):
            await client.connect()
        await client.close()


async def test_the_yards_refusals_are_exceptions(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        with pytest.raises(UnknownThing, match="no job nope"):
            await client.job("nope")
        with pytest.raises(UnknownThing, match="no node nope"):
            await client.node("nope")
        yard.refuses["cancel"] = {"code": "not_allowed", "message": "not yours", "hint": "ask"}
        with pytest.raises(NotAllowed, match="not yours") as caught:
            await client.cancel("some")
        assert caught.value.hint == "ask"


async def test_wait_follows_a_prefix_to_the_end(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        waiting = asyncio.create_task(client.wait(job.id[:4]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await yard.end(yard.jobs[job.id], 3)
        assert (await waiting).exit_status == 3
        assert (await client.wait(job.id)).exit_status == 3


async def test_wait_gives_up_at_its_own_time(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on), client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        with pytest.raises(StillUnfinished, match=r"not over after 0\.1 s") as caught:
            await client.wait(job.id, timeout_s=0.1)
        assert caught.value.job.state == "running"


async def test_stored_output_and_output_to_come(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        await asyncio.sleep(0.2)
        assert [line.text async for line in client.logs(job.id)] == ["begun"]

        async def follow_all() -> list[str]:
            return [line.text async for line in client.logs(job.id, follow=True)]

        following = asyncio.create_task(follow_all())
        await asyncio.sleep(0.2)
        await yard.chunk(yard.jobs[job.id], b"later")
        await yard.chunk(yard.jobs[job.id], b"", end=True)
        await yard.end(yard.jobs[job.id])
        assert await following == ["begun", "later"]


async def test_events_of_a_job_and_of_the_tenant(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        heard: list[str] = []

        async def listen() -> None:
            async for event in client.events():
                heard.append(event["kind"])

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.1)
        job = await client.submit(SPEC)
        await asyncio.sleep(0.2)
        kinds = ["accepted", "assigned", "running"]
        assert [event["kind"] async for event in client.events(job.id, follow=False)] == kinds
        await yard.end(yard.jobs[job.id])
        assert [event["kind"] async for event in client.events(job.id)] == [*kinds, "succeeded"]
        listening.cancel()
        assert heard == [*kinds, "succeeded"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"attempt": 9}, "has no attempt 9: it has 1"),
        ({"rank": 1}, "has no rank 1: it has 1, from 0"),
        ({"rank": 1, "follow": True}, "has no rank 1"),
    ],
)
async def test_output_that_a_job_cannot_have_is_refused(
    nats_server: NatsServer, asked: dict[str, Any], says: str
) -> None:
    async with FakeYard(nats_server.url, runs_on), client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        with pytest.raises(RequestError, match=says):
            await anext(client.output(job.id, **asked))


async def test_a_cancel_is_answered_and_followed(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on), client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        await client.cancel(job.id, reason="enough")
        ended = await client.wait(job.id)
        assert (ended.state, ended.exit_status) == ("cancelled", 143)


async def test_jobs_come_page_by_page(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PAGE", 3)
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        for number in range(8):
            yard.jobs[f"job-{number}"] = FakeJob({"id": f"job-{number}"}, "default", "alice")
        assert len([job async for job in client.jobs()]) == 8
        assert [job.id async for job in client.jobs(limit=4)] == [f"job-{n}" for n in range(4)]
        assert [job async for job in client.jobs(state=["running"])] == []


async def test_the_next_page_is_asked_for_meanwhile(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PAGE", 3)
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        for number in range(8):
            yard.jobs[f"job-{number}"] = FakeJob({"id": f"job-{number}"}, "default", "alice")
        before = asyncio.all_tasks()
        pages = client.api.pages("jobs", {"all": False, "state": []})
        assert [view["id"] for view in await anext(pages)] == ["job-0", "job-1", "job-2"]
        async with asyncio.timeout(10):
            while len(yard.calls) < 2:
                await asyncio.sleep(0.01)
        assert [body["cursor"] for _, body in yard.calls] == [None, "3"]
        await pages.aclose()
        left = {task for task in asyncio.all_tasks() - before if "_page" in repr(task)}
        assert left == set()


async def test_requests_use_the_private_inbox(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url), client_of(nats_server.url, "team-a") as client:
        assert client.bus.inbox_prefix == "_INBOX.t.team-a.alice"
        assert (await client.version())["yard"] == "abc123"


async def test_a_client_that_is_closed_says_so(nats_server: NatsServer) -> None:
    config = load_config(url=nats_server.url, environ={}, folder=Path("/"))
    with pytest.raises(Unavailable, match="not connected"):
        await AsyncClient(config=config).job("some")


async def test_a_revoked_submission_is_cancelled_in_order(nats_server: NatsServer) -> None:
    ended: list[Callable[[], str]] = []

    async with FakeYard(nats_server.url, runs_on) as yard, client_of(nats_server.url) as client:
        job = await client.submit(SPEC)
        await client.revoke(job.id, reason="Ctrl-C")
        ended.append(lambda: yard.jobs[job.id].state)
        assert (await client.wait(job.id)).state == "cancelled"
        assert yard.submissions[-1]["cancel"] == job.id
