"""A tenant's limits on a real yard: four of five jobs run, the fifth says why and starts next."""

import asyncio
import json
import time
from typing import Any

import pytest

from gpuyard import Client, subjects
from gpuyard.bus import Publication, connect
from gpuyard.errors import Conflict, InvalidJob, RequestError, UnknownThing
from tests.support.running_yard import RunningYard, eventually

HOUR = {"image": "none", "gpus": 1, "labels": {"sim.duration": "1h"}}


@pytest.fixture
def client(yard: RunningYard) -> Client:
    yard.agent(runtime="simulated", simulate="1")
    return yard.ready()


def test_the_fifth_job_of_four_gpus_names_the_quota_and_starts_after_a_release(
    client: Client,
) -> None:
    client.apply({"tenant": "default", "limits": {"gpus": 4}})
    jobs = [client.submit(HOUR | {"id": f"train-{number}"}) for number in range(5)]
    eventually(lambda: [client.job(job.id).state for job in jobs[:4]] == ["running"] * 4)

    found = client.why("train-4")

    verdict = found["verdict"]
    assert verdict is not None and verdict["code"] == "quota_exceeded"
    assert verdict["limit"] == {
        "scope": "tenant default",
        "name": "gpus",
        "used": 4,
        "asked": 1,
        "max": 4,
    }
    assert verdict["message"] == "quota: gpus of tenant default: 4 of 4 used, 1 asked"
    assert [change["kind"] for change in found["changes"]] == ["wait_for", "raise_limit"]
    waiting = client.job("train-4").view["verdict"]
    assert (waiting["code"], waiting["message"]) == ("quota_exceeded", verdict["message"])
    client.cancel("train-1")
    client.wait("train-1", timeout_s=20)
    eventually(lambda: client.job("train-4").state == "running", within_s=10)
    tenant = client.tenant("default")
    assert tenant["used"]["gpus"] == 4 and tenant["over"] == []


def test_limits_change_at_once_and_end_nothing(client: Client) -> None:
    jobs = [client.submit(HOUR) for _ in range(3)]
    eventually(lambda: [client.job(job.id).state for job in jobs] == ["running"] * 3)
    tried = client.apply({"tenant": "default", "limits": {"gpus": 1}}, dry_run=True)
    assert (tried["tenant"]["over"], tried["changed"]) == (["gpus"], True)
    assert client.tenant("default")["limits"]["gpus"] is None

    client.apply({"tenant": "default", "limits": {"gpus": 1}})

    assert client.tenant("default")["over"] == ["gpus"]
    waiting = client.submit(HOUR)
    assert client.job(waiting.id).state == "queued"
    assert [client.job(job.id).state for job in jobs] == ["running"] * 3
    client.apply({"tenant": "default"})
    eventually(lambda: client.job(waiting.id).state == "running", within_s=10)


def test_what_can_never_run_and_what_finds_the_queue_full_is_refused(client: Client) -> None:
    client.apply({"tenant": "default", "limits": {"gpus": 8, "queued_jobs": 1}})
    with pytest.raises(InvalidJob, match=r"9 asked, limits\.gpus of tenant default is 8"):
        client.submit({"id": "nine", "image": "none", "gpus": 9})
    refused = client.job("nine")
    assert (refused.state, refused.reason) == ("failed", "quota_impossible")
    client.submit(HOUR | {"id": "all", "gpus": 8})
    client.submit(HOUR | {"id": "next", "gpus": 8})
    with pytest.raises(InvalidJob, match="has 1 queued job, its limit is 1"):
        client.submit(HOUR | {"id": "late"})
    assert client.job("late").reason == "queue_full"
    with pytest.raises(InvalidJob, match="has 1 queued job"):
        client.submit(HOUR, dry_run=True)
    client.cancel("next")
    eventually(lambda: client.submit(HOUR | {"id": "late"}).id == "late")


def test_only_jobs_that_stay_queued_fill_the_queue(yard: RunningYard, client: Client) -> None:
    client.apply({"tenant": "default", "limits": {"queued_jobs": 2}})
    ids = [f"burst-{number:02}" for number in range(14)]

    asyncio.run(publish(yard.server.url, [HOUR | {"id": id} for id in ids]))

    eventually(lambda: client.job(ids[-1]).ended_at is not None)
    views = [client.job(id).view for id in ids]
    states = [view["state"] for view in views]
    assert states[8:] == ["queued"] * 2 + ["failed"] * 4, "eight GPUs, two places in the queue"
    assert not {"queued", "failed"} & set(states[:8])
    assert {view["reason"] for view in views[10:]} == {"queue_full"}


async def publish(url: str, specs: list[dict[str, Any]]) -> None:
    """All at once, as they come after a break."""
    async with await connect(url, name="test", inbox_prefix="_INBOX.test") as bus:
        to = subjects.submit("default")
        bodies = [json.dumps(spec).encode() for spec in specs]
        await asyncio.gather(*(bus.jetstream.publish(Publication(to, body)) for body in bodies))


def test_limits_and_use_outlive_the_coordinator(yard: RunningYard, client: Client) -> None:
    client.apply({"tenant": "default", "limits": {"gpus": 1}, "models": ["*4090"]})
    held = client.submit(HOUR)
    waiting = client.submit(HOUR)
    eventually(lambda: client.job(held.id).state == "running")
    yard.coordinator.kill()
    yard.coordinator.start()
    again = yard.ready()

    tenant = again.tenant("default")
    assert (tenant["limits"]["gpus"], tenant["models"]) == (1, ["*4090"])
    assert tenant["used"]["gpus"] == 1
    time.sleep(1)
    assert again.job(waiting.id).state == "queued"
    again.cancel(held.id)
    eventually(lambda: again.job(waiting.id).state == "running")


def test_tenants_come_and_go(yard: RunningYard, client: Client) -> None:
    assert client.tenant("default")["limits"]["gpus"] is None, "it needs no document"
    with pytest.raises(UnknownThing):
        client.tenant("team-a")
    with pytest.raises(RequestError, match=r"limits\.gpu: unknown field"):
        client.apply({"tenant": "team-a", "limits": {"gpu": 1}})
    client.apply({"tenant": "team-a", "limits": {"gpus": 1}})
    other = yard.client(tenant="team-a")
    job = other.submit(HOUR)
    with pytest.raises(Conflict, match="1 unfinished jobs"):
        client.delete_tenant("team-a")
    other.cancel(job.id)
    other.wait(job.id, timeout_s=20)
    client.delete_tenant("team-a")
    assert [view["tenant"] for view in client.tenants()] == ["default"]
