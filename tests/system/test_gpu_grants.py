"""A node of 8 simulated GPUs, the real engine, and a double of the toolkit that does nothing."""

from collections.abc import Iterator

import pytest

from gpuyard import Client
from tests.support.busybox import BUSYBOX
from tests.support.engine import MakePrivateEngine, PrivateEngine
from tests.support.running_yard import RunningYard, eventually


@pytest.fixture
def engine(private_engine: MakePrivateEngine) -> PrivateEngine:
    return private_engine(toolkit=True)


@pytest.fixture
def client(yard: RunningYard, engine: PrivateEngine) -> Iterator[Client]:
    yard.agent(runtime="docker", docker_host=engine.url, simulate="1", gpu_injection="toolkit")
    yield yard.ready()


def sleeper(id: str, **fields: object) -> dict[str, object]:
    return {
        "id": id,
        "image": BUSYBOX,
        "command": ["sleep", "600"],
        "network": "none",
        "stop_grace": "1s",
        **fields,
    }


def devices(engine: PrivateEngine, client: Client, id: str) -> list[str]:
    """What the engine was asked to hand to the container of a job."""
    with engine.api() as api:
        (container,) = api.containers(filters={"label": f"gpuyard.job={id}"})
        requests = api.inspect_container(container["Id"])["HostConfig"]["DeviceRequests"] or []
    assert all(request["Count"] == 0 for request in requests)
    return [uuid for request in requests for uuid in request["DeviceIDs"]]


def environment(engine: PrivateEngine, id: str) -> dict[str, str]:
    with engine.api() as api:
        (container,) = api.containers(filters={"label": f"gpuyard.job={id}"})
        pairs = api.inspect_container(container["Id"])["Config"]["Env"]
    return dict(pair.split("=", 1) for pair in pairs)


def running(client: Client, id: str) -> list[str]:
    """UUIDs held by a job, once it runs."""
    eventually(lambda: client.job(id).state == "running")
    return [gpu["uuid"] for gpu in client.job(id).view["gpus"]]


def end(client: Client, *ids: str) -> None:
    for id in ids:
        client.cancel(id)
    for id in ids:
        client.wait(id, timeout_s=30)


def test_every_form_gets_exactly_its_devices(client: Client, engine: PrivateEngine) -> None:
    gpus = client.nodes()[0]["gpus"]
    by_index = {gpu["index"]: gpu["uuid"] for gpu in gpus}
    asked = {"one": 1, "two": 2, "four": 4}
    for id, count in asked.items():
        client.submit(sleeper(id, gpus=count))
    held = {id: running(client, id) for id in asked}
    assert {id: len(uuids) for id, uuids in held.items()} == asked
    everything = [uuid for uuids in held.values() for uuid in uuids]
    assert len(set(everything)) == 7
    for id, uuids in held.items():
        assert devices(engine, client, id) == uuids
    end(client, *asked)

    client.submit(sleeper("all", gpus="all"))
    assert running(client, "all") == [gpu["uuid"] for gpu in gpus]
    assert devices(engine, client, "all") == [gpu["uuid"] for gpu in gpus]
    client.submit(sleeper("waits", gpus=1))
    assert client.job("waits").state == "queued"
    end(client, "all", "waits")

    pair = [by_index[5], by_index[3]]
    client.submit(sleeper("uuids", gpus="device=" + ",".join(pair)))
    client.submit(sleeper("indexes", gpus='"device=0,2"'))
    assert sorted(running(client, "uuids")) == sorted(pair)
    assert sorted(devices(engine, client, "uuids")) == sorted(pair)
    assert running(client, "indexes") == [by_index[0], by_index[2]]
    assert devices(engine, client, "indexes") == [by_index[0], by_index[2]]
    client.submit(sleeper("taken", gpus="device=2"))
    assert client.job("taken").view["verdict"]["code"] == "insufficient_gpus"
    end(client, "taken", "uuids", "indexes")


def test_no_gpu_is_held_twice_under_load(client: Client, engine: PrivateEngine) -> None:
    ids = [f"j{n}x" for n in range(12)]
    for n, id in enumerate(ids):
        client.submit(sleeper(id, gpus=1 + n % 3, command=["sleep", "0.5"]))
    seen: set[str] = set()

    def all_done() -> bool:
        views = [job.view for job in client.jobs()]
        held = [gpu["uuid"] for view in views for gpu in view["gpus"]]
        assert len(held) == len(set(held))
        seen.update(held)
        return not views

    eventually(all_done, within_s=60)
    assert len(seen) == 8
    assert {client.job(id).state for id in ids} == {"succeeded"}


def test_a_job_without_gpus_sees_none(
    yard: RunningYard, client: Client, engine: PrivateEngine
) -> None:
    with engine.api() as api:
        container = api.create_container(BUSYBOX, "true")["Id"]
        api.commit(
            container,
            repository="gpuyard-test/greedy",
            tag="1",
            changes=["ENV NVIDIA_VISIBLE_DEVICES=all"],
        )
        api.remove_container(container)
    client.submit(sleeper("greedy", image="gpuyard-test/greedy:1"))
    assert running(client, "greedy") == []
    assert devices(engine, client, "greedy") == []
    assert environment(engine, "greedy")["NVIDIA_VISIBLE_DEVICES"] == "void"
    refused = yard.cli("submit", "-e", "NVIDIA_VISIBLE_DEVICES=all", BUSYBOX, "true")
    assert refused.returncode in (1, 2) and "--gpus all" in refused.stderr
    end(client, "greedy")


def test_a_granted_job_is_told_its_uuids(client: Client, engine: PrivateEngine) -> None:
    client.submit(sleeper("told", gpus=2))
    held = running(client, "told")
    env = environment(engine, "told")
    assert env["GPUYARD_GPU_UUIDS"] == env["NVIDIA_VISIBLE_DEVICES"] == ",".join(held)
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (env["GPUYARD_JOB_ID"], env["GPUYARD_NODE"]) == ("told", "node")
    end(client, "told")
