"""Several coordinators on one yard: one leads, the others follow, and any of them may die."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from gpuyard import Client, subjects
from gpuyard.bus import Publication, connect
from gpuyard.errors import Unavailable
from tests.support.running_yard import RunningYard, eventually
from tests.system.drills.coordinators import Coordinators
from tests.system.drills.leader_frozen import leader_frozen
from tests.system.test_crashes import slow_job, starts, states


def leads_with(client: Client) -> list[int]:
    """The leader's token."""
    token: list[int] = client.status()["leader"]["token"]
    return token


async def hold_lease(url: str) -> None:
    """Nobody leads, and nobody can: as if somebody held the lease and did nothing."""
    async with await connect(url, name="test", inbox_prefix="_INBOX.x") as bus:
        lease = Publication(subjects.state(subjects.LEASE_KEY), b"held", ttl_s=120.0)
        await bus.jetstream.publish(lease)


@pytest.fixture
def coordinators(yard: RunningYard) -> Iterator[Coordinators]:
    three = Coordinators(yard)
    yield three
    three.close()


def test_leader_killed_under_load_nothing_lost_nothing_twice(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="4")
    client = yard.ready()
    leader = coordinators.settled(client, 2)
    names = [f"job-{n:03d}" for n in range(60)]
    for name in names[:30]:
        client.submit(slow_job(yard.directory, name, seconds=0.2))
    leader.kill()
    for name in names[30:]:
        client.submit(slow_job(yard.directory, name, seconds=0.2))
    eventually(lambda: states(client)["succeeded"] == 60, within_s=25, what="all 60 ended")
    assert starts(yard.directory) == Counter(dict.fromkeys(names, 1)), coordinators.tails()
    assert coordinators.settled(client, 1) is not leader


def test_a_leader_that_is_stopped_hands_over_at_once(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    leader = coordinators.settled(client, 2)
    before = leads_with(client)
    assert leader.stop() == 0
    # Far below the two seconds after which a lease ends that nobody gave back.
    eventually(lambda: leads_with(client)[1] > before[1], within_s=1.5)
    assert client.run(slow_job(yard.directory, "after", seconds=0)).state == "succeeded"


@pytest.mark.timeout(180)
def test_a_frozen_leader_is_deposed_changes_nothing_and_follows_once_it_goes_on(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    figures = leader_frozen(yard, coordinators, seconds=4)
    assert figures.refused_writes > 0
    assert "refused writes" in yard.cli("status").stdout


def test_standbys_answer_reads_while_nobody_leads(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    leader = coordinators.settled(client, 2)
    client.submit(slow_job(yard.directory, "runs", seconds=8))
    eventually(lambda: client.job("runs").state == "running")
    client.submit({"id": "waits", "image": "none", "command": ["true"], "gpus": 8, "cpus": 9999})
    leader.kill()
    asyncio.run(hold_lease(yard.server.url))
    status = client.status()
    assert status["leader"]["pid"] is None
    assert status["nodes"] == {"ready": 1}
    assert {job.id: job.state for job in client.jobs()} == {"runs": "running", "waits": "queued"}
    assert client.node("node")["state"] == "ready"
    assert client.why("waits")["verdict"]
    with pytest.raises(Unavailable, match=r"no coordinator|nobody answers"):
        client.cancel("waits")
