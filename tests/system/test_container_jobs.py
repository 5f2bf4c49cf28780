"""Jobs as containers on the real engine: streams, exit codes, true ends."""

import contextlib
import threading
import time
from collections.abc import Iterator

import docker.errors
import pytest

from gpuyard import Client
from tests.support.engine import Engine
from tests.support.running_yard import RunningYard, eventually


@pytest.fixture
def client(yard: RunningYard, docker_engine: Engine, busybox_image: str) -> Iterator[Client]:
    yard.agent(runtime="docker", docker_host=docker_engine.url, simulate="1")
    yield yard.ready()
    remove_containers(docker_engine, yard)


def remove_containers(engine: Engine, yard: RunningYard) -> None:
    """Leaves the shared engine as it was, whatever a test did."""
    for agent in yard.agents.values():
        agent.kill()
    with yard.client() as reader, engine.api() as api:
        label = f"gpuyard.yard={reader.version()['yard']}"
        for container in api.containers(all=True, filters={"label": label}):
            # The agent may have been removing it when it was killed.
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(container["Id"], force=True)


def containers(engine: Engine, client: Client) -> list[dict[str, object]]:
    label = f"gpuyard.yard={client.version()['yard']}"
    with engine.api() as api:
        found: list[dict[str, object]] = api.containers(all=True, filters={"label": label})
        return found


def test_run_exits_with_the_containers_code_and_keeps_streams_apart(
    yard: RunningYard, client: Client, busybox_image: str
) -> None:
    script = "echo out; echo err >&2; exit 7"
    done = yard.cli("run", "--gpus", "1", busybox_image, "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_50_000_lines_arrive_complete_and_in_order(
    yard: RunningYard, client: Client, busybox_image: str
) -> None:
    script = (
        "i=0; while [ $i -lt 50000 ]; do echo $i;"
        " [ $((i % 5)) -eq 0 ] && echo $i >&2; i=$((i+1)); done"
    )
    done = yard.cli("run", busybox_image, "sh", "-c", script, timeout_s=110)
    assert done.returncode == 0
    assert done.stdout.split() == [str(n) for n in range(50_000)]
    assert done.stderr.split() == [str(n) for n in range(0, 50_000, 5)]


def test_a_missing_image_exits_125_and_says_why(yard: RunningYard, client: Client) -> None:
    done = yard.cli("run", "gpuyard-test/no-such-image:1", "true")
    assert done.returncode == 125
    assert "no-such-image" in done.stderr
    job = next(job for job in client.jobs(all=True) if job.image == "gpuyard-test/no-such-image:1")
    assert job.state == "failed" and job.reason in ("image_not_found", "image_pull_failed")


@pytest.mark.parametrize(
    ("command", "code"), [(["/no/such/program"], 127), (["/etc"], 126), (["sh", "-c", "exit 3"], 3)]
)
def test_exit_codes_as_docker(
    yard: RunningYard, client: Client, busybox_image: str, command: list[str], code: int
) -> None:
    assert yard.cli("run", busybox_image, *command).returncode == code


def test_four_violent_ends_have_four_true_reasons(
    yard: RunningYard, client: Client, docker_engine: Engine, busybox_image: str
) -> None:
    sleep = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    eat = ["sh", "-c", "x=a; while :; do x=$x$x; done"]
    base: dict[str, object] = {"image": busybox_image, "stop_grace": "2s"}
    client.submit(base | {"id": "memory", "command": eat, "memory_mib": 16})
    client.submit(base | {"id": "outside", "command": sleep})
    client.submit(base | {"id": "cancelled", "command": sleep})
    client.submit(base | {"id": "time", "command": sleep, "max_runtime": "2s"})
    eventually(lambda: all(client.job(id).started_at for id in ("outside", "cancelled")))
    with docker_engine.api() as api:
        label = ["gpuyard.job=outside", f"gpuyard.yard={client.version()['yard']}"]
        (container,) = api.containers(filters={"label": label})
        api.kill(container["Id"])
    client.cancel("cancelled")
    ends = {id: client.wait(id, timeout_s=60) for id in ("memory", "outside", "cancelled", "time")}
    assert {id: (job.state, job.reason) for id, job in ends.items()} == {
        "memory": ("failed", "out_of_memory"),
        "outside": ("failed", "exited"),
        "cancelled": ("cancelled", "cancelled"),
        "time": ("failed", "time_limit"),
    }
    assert ends["outside"].exit_code == 137
    assert "docker kill" in str(ends["outside"].message)
    assert {id: job.exit_status for id, job in ends.items()} == {
        "memory": 137,
        "outside": 137,
        "cancelled": 143,
        "time": 124,
    }


def test_a_stubborn_container_is_killed_after_its_grace(client: Client, busybox_image: str) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
    job = client.submit({"image": busybox_image, "command": stubborn, "stop_grace": "1s"})
    eventually(lambda: client.job(job.id).started_at)
    client.cancel(job.id)
    assert client.wait(job.id, timeout_s=20).reason == "cancelled"


def test_containers_are_removed_once_their_end_is_recorded(
    client: Client, docker_engine: Engine, busybox_image: str
) -> None:
    client.run({"image": busybox_image, "command": ["true"]})
    eventually(lambda: not containers(docker_engine, client), what="no container left")


def test_agent_killed_containers_go_on_and_are_adopted(
    yard: RunningYard, client: Client, docker_engine: Engine, busybox_image: str
) -> None:
    count = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.1; done"
    base: dict[str, object] = {"image": busybox_image}
    client.submit(base | {"id": "goes-on", "command": ["sh", "-c", count]})
    client.submit(base | {"id": "ends", "command": ["sh", "-c", "sleep 1; exit 5"]})
    eventually(lambda: all(client.job(id).started_at for id in ("goes-on", "ends")))
    before = {str(item["Id"]) for item in containers(docker_engine, client)}
    yard.agents["node"].kill()
    time.sleep(2.0)
    yard.agents["node"].start()
    ended = client.wait("ends", timeout_s=20)
    assert (ended.reason, ended.exit_code) == ("exited", 5)
    assert {str(item["Id"]) for item in containers(docker_engine, client)} <= before
    assert client.wait("goes-on", timeout_s=30).state == "succeeded"
    assert [line.text for line in client.logs("goes-on")] == [str(n) for n in range(60)]


def test_two_yards_on_one_engine_leave_each_other_alone(
    yard: RunningYard,
    client: Client,
    docker_engine: Engine,
    busybox_image: str,
    second_yard: RunningYard,
) -> None:
    second_yard.agent(runtime="docker", docker_host=docker_engine.url, simulate="1")
    other = second_yard.ready()
    sleep = {"id": "same", "image": busybox_image, "command": ["sleep", "4"]}
    client.submit(sleep)
    other.submit(sleep)
    eventually(lambda: client.job("same").started_at and other.job("same").started_at)
    client.cancel("same")
    assert client.wait("same", timeout_s=20).state == "cancelled"
    yard.agents["node"].kill()
    yard.agents["node"].start()
    assert other.wait("same", timeout_s=20).state == "succeeded"
    remove_containers(docker_engine, second_yard)


def test_logs_flow_while_a_job_runs(client: Client, busybox_image: str) -> None:
    script = "echo first; sleep 3; echo second"
    job = client.submit({"image": busybox_image, "command": ["sh", "-c", script]})
    arrived: dict[str, float] = {}

    def follow() -> None:
        for line in client.logs(job.id, follow=True):
            arrived[line.text] = time.monotonic()

    reader = threading.Thread(target=follow)
    reader.start()
    reader.join(30)
    assert arrived["second"] - arrived["first"] > 2.0
