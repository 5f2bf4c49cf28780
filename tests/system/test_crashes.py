"""kill -9 of each part while jobs run and wait: nothing lost, nothing twice."""

import os
import time
from collections import Counter
from pathlib import Path

from gpuyard import Client
from tests.support.processes import is_alive
from tests.support.running_yard import RunningYard, eventually


def slow_job(directory: Path, name: str, seconds: float = 2.0) -> dict[str, object]:
    """Leaves one line per start, so that a second start would show."""
    script = f"echo {name} >> {directory}/starts; sleep {seconds}"
    return {"id": name, "image": "none", "command": ["sh", "-c", script], "gpus": 1}


class Gate:
    """Holds every job that comes to it until it opens, however many and for however long."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path

    def job(self, name: str) -> dict[str, object]:
        """Leaves one line per start, as `slow_job`, and ends once the gate is open."""
        script = (
            f"echo {name} >> {self._path.parent}/starts; "
            f"[ ! -e {self._path} ] || read -r _ < {self._path}; true"
        )
        return {"id": name, "image": "none", "command": ["sh", "-c", script], "gpus": 1}

    def open(self) -> None:
        """Whoever waits reads the end of the pipe; whoever comes later finds none."""
        writer = os.open(self._path, os.O_RDWR)
        self._path.unlink()
        os.close(writer)


def starts(directory: Path) -> Counter[str]:
    file = directory / "starts"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def states(client: Client) -> Counter[str]:
    return Counter(job.state for job in client.jobs(all=True))


def test_coordinator_killed_with_50_running_and_50_queued(yard: RunningYard) -> None:
    fleet = yard.directory / "fleet.yaml"
    fleet.write_text(
        "nodes: [{name: 'n-{i}', count: 5, cpus: 64, memory_mib: 65536,"
        " gpus: [{name: TEST, count: 10, memory_mib: 1024}]}]\n"
    )
    yard.agent("fleet", simulate=str(fleet))
    client = yard.ready(5)
    gate = Gate(yard.directory / "gate")
    names = [f"job-{n:03d}" for n in range(100)]
    for name in names:
        client.submit(gate.job(name))
    eventually(lambda: states(client)["running"] == 50, what="50 running jobs")
    assert states(client)["queued"] == 50
    yard.coordinator.kill()
    yard.coordinator.start()
    gate.open()
    eventually(lambda: sum(starts(yard.directory).values()) > 50, what="a placement")
    eventually(lambda: states(client)["succeeded"] == 100, within_s=60, what="all 100 ended")
    assert starts(yard.directory) == Counter(dict.fromkeys(names, 1))


def test_a_restarted_coordinator_places_again(yard: RunningYard) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    client.submit(slow_job(yard.directory, "before", seconds=6))
    eventually(lambda: starts(yard.directory)["before"])
    yard.coordinator.kill()
    yard.coordinator.start()
    client.submit(slow_job(yard.directory, "after", seconds=0))
    eventually(lambda: starts(yard.directory)["after"])
    assert client.wait("before", timeout_s=20).state == "succeeded"
    assert starts(yard.directory) == {"before": 1, "after": 1}


def test_agent_killed_its_jobs_go_on_and_their_ends_are_reported(yard: RunningYard) -> None:
    agent = yard.agent(simulate="1")
    client = yard.ready()
    client.submit(slow_job(yard.directory, "ends-meanwhile", seconds=1))
    client.submit(slow_job(yard.directory, "goes-on", seconds=6))
    script = f"echo fails >> {yard.directory}/starts; sleep 1; exit 9"
    client.submit({"id": "fails", "image": "none", "command": ["sh", "-c", script]})
    eventually(lambda: len(starts(yard.directory)) == 3)
    agent.kill()
    time.sleep(2.0)
    agent.start()
    assert client.wait("ends-meanwhile", timeout_s=20).state == "succeeded"
    failed = client.wait("fails", timeout_s=20)
    assert (failed.state, failed.reason, failed.exit_code) == ("failed", "exited", 9)
    assert client.wait("goes-on", timeout_s=20).state == "succeeded"
    assert set(starts(yard.directory).values()) == {1}
    assert all(len(job.view.get("attempts", [1])) == 1 for job in client.jobs(all=True))


def test_a_forgotten_node_that_is_back_ends_what_was_given_up_and_takes_new_work(
    yard: RunningYard,
) -> None:
    agent = yard.agent("n", simulate="1")
    client = yard.ready()
    for number in range(3):
        client.submit(slow_job(yard.directory, f"before-{number}", seconds=0))
        assert client.wait(f"before-{number}", timeout_s=20).state == "succeeded"
    pid_file = yard.directory / "pid"
    script = f"echo $$ > {pid_file}; while :; do sleep 0.1; done"
    client.submit({"id": "left", "image": "none", "command": ["sh", "-c", script]})
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text()))
    name = str(client.job("left").view["node"])
    agent.kill()
    eventually(lambda: client.node(name)["state"] in ("suspect", "lost"))
    client.forget(name)
    assert client.job("left").reason == "node_lost"
    agent.start()

    client.submit(slow_job(yard.directory, "after", seconds=0))

    assert client.wait("after", timeout_s=30).state == "succeeded"
    eventually(lambda: not is_alive(pid), what="the end of the attempt that was given up")


def test_simulated_jobs_outlive_their_agent(yard: RunningYard) -> None:
    agent = yard.agent("fleet", runtime="simulated", simulate="3")
    client = yard.ready(3)

    def simulated(id: str, duration: str, code: int) -> dict[str, object]:
        labels = {"sim.duration": duration, "sim.exit_code": str(code)}
        return {"id": id, "image": "none", "gpus": 1, "labels": labels}

    client.submit(simulated("ends-meanwhile", "2s", 4))
    client.submit(simulated("goes-on", "6s", 0))
    eventually(lambda: all(client.job(id).started_at for id in ("ends-meanwhile", "goes-on")))
    agent.kill()
    time.sleep(2.5)
    agent.start()
    ended = client.wait("ends-meanwhile", timeout_s=20)
    assert (ended.reason, ended.exit_code) == ("exited", 4)
    assert client.wait("goes-on", timeout_s=20).state == "succeeded"
    assert all(len(client.job(id).view["attempts"]) == 1 for id in ("ends-meanwhile", "goes-on"))


def test_cancelled_process_tree_is_gone(yard: RunningYard) -> None:
    yard.agent(simulate="1")
    client = yard.ready()
    file = yard.directory / "pid"
    script = f"echo $$ > {file}; sleep 300 & wait"
    client.submit({"id": "tree", "image": "none", "command": ["sh", "-c", script]})
    pid = int(eventually(lambda: file.exists() and file.read_text().strip()))
    client.cancel("tree")
    job = client.wait("tree", timeout_s=20)
    assert (job.state, job.reason) == ("cancelled", "cancelled")
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
