"""A Docker Engine restarted, away, frozen or shared: every end is true, nothing runs twice."""

import contextlib
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import docker
import docker.errors
import pytest

from gpuyard import Client
from tests.support.busybox import BUSYBOX
from tests.support.engine import Engine, MakePrivateEngine, PrivateEngine
from tests.support.engine_proxy import EngineProxy
from tests.support.running_yard import RunningYard, eventually
from tests.system.drills.bus_down import bus_down


def job(id: str, script: str, **fields: object) -> dict[str, object]:
    command = ["sh", "-c", script]
    base = {"image": BUSYBOX, "command": command, "network": "none", "stop_grace": "2s"}
    return base | {"id": id} | fields


def attempts(client: Client, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.job(id).view["attempts"]
    return found


def all_run(client: Client, *ids: str) -> None:
    eventually(lambda: all(client.job(id).started_at for id in ids), within_s=30)


def node(client: Client) -> dict[str, Any]:
    (found,) = client.nodes()
    return dict(found)


def has_beaten(client: Client, *, since: str) -> bool:
    return bool(node(client)["last_beat_at"] > since)


def codes(client: Client) -> list[str]:
    return [reason["code"] for reason in node(client)["reasons"]]


@pytest.fixture
def start(yard: RunningYard, private_engine: MakePrivateEngine) -> Any:
    """`start(*flags)`: a node of 8 simulated GPUs on an engine of its own."""

    def make(*flags: str) -> tuple[PrivateEngine, Client]:
        engine = private_engine("--bridge=none", *flags)
        yard.agent(runtime="docker", docker_host=engine.url, simulate="1")
        return engine, yard.ready()

    return make


def test_ten_jobs_through_a_restart_of_the_engine(start: Any) -> None:
    engine, client = start()
    once = "[ $GPUYARD_ATTEMPT -gt 1 ] && exit 0; "
    polite = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    again = [f"again-{n}" for n in range(7)]
    retries = {"max": 1, "backoff": "1s"}
    for id in again:
        client.submit(job(id, f"{once}exec sleep 600", retries=retries))
    client.submit(job("polite", once + polite, retries=retries))
    client.submit(job("not-asked", "exec sleep 600"))
    client.submit(job("failed", "exit 3", retries=retries))
    all_run(client, *again, "polite", "not-asked")
    assert client.wait("failed", timeout_s=20).exit_code == 3

    engine.restart()

    for id in (*again, "polite"):
        assert client.wait(id, timeout_s=60).state == "succeeded", attempts(client, id)
        told = attempts(client, id)
        assert len(told) == 2, (id, told)
        first, second = told
        assert (first["reason"], second["reason"]) == ("runtime_restarted", "exited")
    ended = client.wait("not-asked", timeout_s=20)
    assert (ended.state, ended.reason, ended.exit_status) == ("failed", "runtime_restarted", 125)
    (only,) = attempts(client, "failed")
    assert (only["reason"], only["exit_code"]) == ("exited", 3)


def test_ten_jobs_through_a_restart_with_live_restore(start: Any) -> None:
    engine, client = start("--live-restore")
    lasting = [f"lasts-{n}" for n in range(8)]
    count = "i=0; until [ -e /go ]; do echo $i; i=$((i+1)); sleep 0.1; done; echo went"
    for id in lasting:
        client.submit(job(id, count))
    client.submit(job("ends-meanwhile", "sleep 4; exit 5"))
    client.submit(job("stopped", "trap 'exit 9' TERM; while :; do sleep 0.1; done"))
    all_run(client, *lasting, "ends-meanwhile", "stopped")

    engine.stop()
    eventually(lambda: "docker_unreachable" in codes(client), what="the reason")
    assert node(client)["state"] == "unready"
    client.cancel("stopped")
    time.sleep(4)
    assert {client.job(id).state for id in lasting} == {"running"}
    engine.start()

    stopped = client.wait("stopped", timeout_s=20)
    assert (stopped.state, stopped.reason) == ("cancelled", "cancelled")
    ended = client.wait("ends-meanwhile", timeout_s=20)
    # Engines lose the code of some containers that end while they are away, and say 255.
    assert (ended.reason, ended.exit_code) in (("exited", 5), ("runtime_restarted", 255))
    assert {client.job(id).state for id in lasting} == {"running"}
    with engine.api() as api:
        for container in api.containers(filters={"label": "gpuyard.tenant"}):
            api.exec_start(api.exec_create(container["Id"], ["touch", "/go"])["Id"])
    for id in lasting:
        assert client.wait(id, timeout_s=40).state == "succeeded"
        assert len(attempts(client, id)) == 1
        *numbers, last = [line.text for line in client.logs(id)]
        assert (numbers, last) == ([str(n) for n in range(len(numbers))], "went")
        assert len(numbers) > 40
    eventually(lambda: node(client)["state"] == "ready")


def test_engine_and_agent_both_die(yard: RunningYard, start: Any) -> None:
    engine, client = start()
    client.submit(job("runs", "exec sleep 600"))
    client.submit(job("ends", "sleep 2; exit 6"))
    all_run(client, "runs", "ends")
    yard.agents["node"].kill()
    engine.kill()
    time.sleep(3)
    yard.agents["node"].start()
    time.sleep(2)
    assert client.job("runs").state == "running"
    engine.start()

    ended = client.wait("runs", timeout_s=40)
    assert (ended.state, ended.reason) == ("failed", "runtime_restarted")
    own = client.wait("ends", timeout_s=20)
    assert (own.reason, own.exit_code) == ("exited", 6)


def test_a_frozen_engine_stops_no_beat_and_ends_nothing(start: Any) -> None:
    engine, client = start()
    client.submit(job("runs", "exec sleep 600"))
    all_run(client, "runs")
    engine.freeze()
    try:
        eventually(lambda: "docker_unreachable" in codes(client), within_s=30)
        for _ in range(3):  # beats go on, at their usual pace
            before = node(client)["last_beat_at"]
            eventually(partial(has_beaten, client, since=before), within_s=6)
        assert node(client)["state"] == "unready"
        assert client.job("runs").state == "running"
    finally:
        engine.thaw()
    eventually(lambda: node(client)["state"] == "ready", within_s=30)
    client.cancel("runs")
    assert client.wait("runs", timeout_s=30).reason == "cancelled"
    assert len(attempts(client, "runs")) == 1


@pytest.fixture
def shared(docker_engine: Engine, busybox_image: str, yard: RunningYard) -> Iterator[Engine]:
    """The machine's engine, left as it was."""
    yield docker_engine
    for agent in yard.agents.values():
        agent.kill()
    with yard.client() as client, docker_engine.api() as api:
        label = f"gpuyard.yard={client.version()['yard']}"
        for container in api.containers(all=True, filters={"label": label}):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_container(container["Id"], force=True)


def test_a_create_whose_answer_is_lost_runs_once(yard: RunningYard, shared: Engine) -> None:
    with EngineProxy(shared) as proxy:
        yard.agent(runtime="docker", docker_host=proxy.url, simulate="1")
        client = yard.ready()
        created = proxy.lose_answer("^POST .*/containers/create")
        started = proxy.lose_answer("^POST .*/start")
        client.submit(job("once", "echo started; sleep 1"))
        created.wait()
        started.wait()
        assert client.wait("once", timeout_s=30).state == "succeeded"
        assert len(attempts(client, "once")) == 1
        assert [line.text for line in client.logs("once")] == ["started"]


def stray(api: docker.APIClient, yard: str, node: str, name: str) -> str:
    """A running container that no coordinator knows, labelled as an agent would."""
    labels = {
        "gpuyard.yard": yard,
        "gpuyard.node": node,
        "gpuyard.tenant": "default",
        "gpuyard.job": name,
        "gpuyard.attempt": "1",
        "gpuyard.spec_sha256": "0" * 64,
    }
    command = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    body = {"Image": BUSYBOX, "Cmd": command, "Labels": labels, "NetworkDisabled": True}
    made: str = api.create_container_from_config(body, f"gpuyard-test-{yard}-{node}-{name}")["Id"]
    api.start(made)
    return made


def test_only_what_is_its_own_is_reaped(yard: RunningYard, shared: Engine) -> None:
    agent = yard.agent(runtime="docker", docker_host=shared.url, simulate="1")
    client = yard.ready()
    name = client.version()["yard"]
    client.submit(job("wanted", "exec sleep 600"))
    all_run(client, "wanted")
    agent.kill()
    with shared.api() as api:
        own = stray(api, name, "node", "own")
        others = [stray(api, name, "other-node", "a"), stray(api, f"{name}x", "node", "b")]
        try:
            agent.start()

            def is_gone() -> bool:
                return own not in {c["Id"] for c in api.containers(all=True)}

            eventually(is_gone, within_s=40, what="the unknown container is removed")
            assert all(api.inspect_container(other)["State"]["Running"] for other in others)
            assert client.job("wanted").state == "running"
            assert len(attempts(client, "wanted")) == 1
        finally:
            for other in others:
                api.remove_container(other, force=True)


def test_bus_killed_and_back_containers_run_on_and_all_is_told(
    yard: RunningYard, shared: Engine
) -> None:
    bus_down(yard, shared, seconds=5)


def test_output_and_ends_come_through_an_outage_in_which_the_agent_died(
    yard: RunningYard, shared: Engine
) -> None:
    agent = yard.agent(runtime="docker", docker_host=shared.url, simulate="1")
    client = yard.ready()
    count = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 7"
    client.submit(job("counts", count, gpus=1))
    all_run(client, "counts")
    yard.server.kill()
    time.sleep(2)
    agent.kill()
    agent.start()
    time.sleep(5)
    agent.signal(signal.SIGKILL)
    agent.kill()
    agent.start()
    yard.server.start()

    ended = client.wait("counts", timeout_s=40)
    assert (ended.reason, ended.exit_code) == ("exited", 7)
    assert len(attempts(client, "counts")) == 1
    assert [line.text for line in client.logs("counts")] == [str(n) for n in range(60)]
    usage = attempts(client, "counts")[0]["usage"]
    assert 5 < usage["gpu_seconds"] < 12
