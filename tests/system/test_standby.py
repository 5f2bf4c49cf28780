"""Several coordinators on one yard: one leads, the others follow, and any of them may die."""

import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from gpuyard import Client
from gpuyard.errors import Unavailable
from tests.support.running_yard import Daemon, RunningYard, eventually
from tests.system.test_crashes import slow_job, starts, states


class Coordinators:
    """Three of them; `leader` and `standbys` are what `gpuyard status` says."""

    def __init__(self, yard: RunningYard) -> None:
        self.yard = yard
        self.all = [yard.coordinator, *(yard.add_coordinator(f"standby-{n}") for n in (1, 2))]
        for standby in self.all[1:]:
            standby.start()

    def status(self, client: Client) -> dict[str, object] | None:
        try:
            return client.status()
        except Unavailable:
            return None

    def settled(self, client: Client, standbys: int) -> Daemon:
        """The leader, once that many standbys are ready."""

        def look() -> Daemon | None:
            status = self.status(client)
            ready = [s for s in (status or {}).get("standbys", []) if s["ready"]]
            return self._by_pid(status["leader"]["pid"]) if len(ready) == standbys else None

        return eventually(look, what=f"a leader and {standbys} standbys")

    def _by_pid(self, pid: int | None) -> Daemon | None:
        return next((each for each in self.all if each.is_running and each.pid == pid), None)

    def tails(self) -> str:
        return "\n".join(f"--- {each.log.name}\n{each.tail()}" for each in self.all)

    def close(self) -> None:
        for each in self.all:
            each.kill()


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
        client.enqueue(slow_job(yard.directory, name, seconds=0.2))
    leader.kill()
    for name in names[30:]:
        client.enqueue(slow_job(yard.directory, name, seconds=0.2))
    eventually(lambda: states(client)["succeeded"] == 60, within_s=25, what="all 60 ended")
    assert starts(yard.directory) == Counter(dict.fromkeys(names, 1)), coordinators.tails()
    assert coordinators.settled(client, 1) is not leader


def test_a_leader_that_is_stopped_hands_over_at_once(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    leader = coordinators.settled(client, 2)
    before = client.status()["leader"]["token"]
    assert leader.stop() == 0
    # Far below the two seconds after which a lease ends that nobody gave back.
    status = eventually(lambda: coordinators.status(client), within_s=1.5)
    assert status["leader"]["token"] > before
    assert client.run(slow_job(yard.directory, "after", seconds=0)).state == "succeeded"


def test_a_frozen_leader_is_deposed_and_follows_once_it_goes_on(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    zombie = coordinators.settled(client, 2)
    client.enqueue(slow_job(yard.directory, "before", seconds=6))
    eventually(lambda: starts(yard.directory)["before"])
    zombie.signal(signal.SIGSTOP)
    second = coordinators.settled(client, 1)
    assert second is not zombie
    token = client.status()["leader"]["token"]
    zombie.signal(signal.SIGCONT)
    assert coordinators.settled(client, 2) is second
    assert client.status()["leader"]["token"] == token
    assert zombie.is_running
    assert client.wait("before", timeout_s=20).state == "succeeded"
    assert client.run(slow_job(yard.directory, "after", seconds=0)).state == "succeeded"
    assert starts(yard.directory) == {"before": 1, "after": 1}


def test_standbys_answer_reads_while_nobody_leads(
    yard: RunningYard, coordinators: Coordinators
) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    leader = coordinators.settled(client, 2)
    client.submit(slow_job(yard.directory, "runs", seconds=8))
    eventually(lambda: client.job("runs").state == "running")
    client.submit({"id": "waits", "image": "none", "command": ["true"], "gpus": 1})
    # Frozen, it keeps its lease and its subscriptions: nobody leads, and nobody is told so.
    leader.signal(signal.SIGSTOP)
    began = time.monotonic()
    seen = {job.id: job.state for job in client.jobs()}
    assert seen == {"runs": "running", "waits": "queued"}
    assert client.node("node")["state"] == "ready"
    assert client.why("waits")["verdict"]["code"]
    assert time.monotonic() - began < 1.9, "the next leader answered"
    leader.kill()
    eventually(lambda: client.job("waits").state == "succeeded", within_s=25)
