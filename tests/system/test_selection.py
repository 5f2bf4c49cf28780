"""Three simulated nodes of a fleet file, under one real agent: lines land where they should."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard import Client
from gpuyard.errors import Conflict, RequestError, UnknownThing
from tests.support.running_yard import RunningYard, eventually

FLEET = """\
nodes:
  - name: a100
    cuda_version: "12.2"
    driver_version: 535.183.01
    labels: {zone: a}
    gpus: [{name: NVIDIA A100-SXM4-80GB, count: 2, memory_mib: 81920, compute_capability: "8.0"}]
  - name: mixed
    cuda_version: "12.8"
    driver_version: 570.86.15
    labels: {zone: b}
    gpus:
      - {name: NVIDIA GeForce RTX 4090, memory_mib: 24564, compute_capability: "8.9"}
      - {name: NVIDIA H200, memory_mib: 143771, compute_capability: "9.0"}
      - {name: NVIDIA GeForce RTX 4090, memory_mib: 24564, compute_capability: "8.9"}
  - name: rtx
    cuda_version: "11.8"
    driver_version: 520.61.05
    gpus: [{name: NVIDIA GeForce RTX 4090, count: 2, memory_mib: 24564, compute_capability: "8.9"}]
"""
HOUR = {"image": "none", "labels": {"sim.duration": "1h"}}


@pytest.fixture
def client(yard: RunningYard, tmp_path: Path) -> Client:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    yard.agent(runtime="simulated", simulate=str(fleet))
    return yard.ready(3)


def place(client: Client, **spec: Any) -> tuple[str, list[int]] | None:
    """(node, indexes) of a job of its own that is cancelled again; None if it waits."""
    job = client.submit(HOUR | spec)
    view = client.job(job.id).view
    where = None
    if view["state"] != "queued":
        where = (str(view["node"]), [gpu["index"] for gpu in view["gpus"]])
    client.cancel(job.id)
    client.wait(job.id, timeout_s=20)
    return where


@pytest.mark.slow
def test_each_line_lands_where_it_should(client: Client) -> None:
    cases: list[tuple[dict[str, Any], tuple[str, list[int]]]] = [
        ({"gpus": 3}, ("mixed", [0, 1, 2])),
        ({"gpus": "all", "where": ["gpu-memory<=24"]}, ("rtx", [0, 1])),
        ({"gpus": "device=2"}, ("mixed", [2])),
        ({"gpus": "100GiB"}, ("mixed", [1])),
        ({"gpus": 1, "where": ["gpu-name=*H200"]}, ("mixed", [1])),
        ({"gpus": 2, "where": ["gpu-name=*4090", "zone=b"]}, ("mixed", [0, 2])),
        ({"gpus": 1, "where": ["gpu-cuda-version>=12.1", "zone!=b"]}, ("a100", [0])),
        ({"gpus": 1, "where": ["gpu-driver-version=520"]}, ("rtx", [0])),
        ({"gpus": 1, "where": ["gpu-count.NVIDIA-H200>=1"]}, ("mixed", [0])),
        ({"gpus": 1, "where": ["!zone"]}, ("rtx", [0])),
        ({"gpus": 1, "prefer": ["gpu-name=*H200"]}, ("mixed", [1])),
        ({"gpus": 1, "node": "rtx"}, ("rtx", [0])),
    ]
    for spec, expected in cases:
        assert place(client, **spec) == expected, spec


def test_what_waits_is_counted_and_starts_once_it_can(client: Client) -> None:
    held = client.submit(HOUR | {"gpus": 1, "where": ["gpu-name=*H200"]})
    job = client.submit(HOUR | {"gpus": 1, "where": ["gpu-name=*H200"]})

    found = client.why(job.id)

    assert found["verdict"] is not None
    assert found["verdict"]["message"] == (
        "0/3 nodes fit: 1 insufficient_gpus (asked 1, most free 0), 2 where_mismatch"
    )
    assert found["verdict"]["counts"] == {"insufficient_gpus": 1, "where_mismatch": 2}
    assert {node["name"]: node["fits"] for node in found["nodes"]} == dict.fromkeys(
        ("a100", "mixed", "rtx"), False
    )
    never = client.submit(HOUR | {"gpus": 1, "where": ["gpu-memory>=200"]})
    verdict = client.why(never.id)["verdict"]
    assert verdict is not None and verdict["impossible_now"]
    client.cancel(held.id)
    eventually(lambda: client.job(job.id).state == "running")


def test_shares_sit_on_one_gpu_and_say_that_nothing_watches_them(client: Client) -> None:
    jobs = [client.submit(HOUR | {"gpus": "8GiB", "node": "a100"}) for _ in range(2)]
    views = [client.job(job.id).view for job in jobs]

    gpus = [view["gpus"][0] for view in views]
    assert [(gpu["index"], gpu["milli"], gpu["memory_mib"]) for gpu in gpus] == [(0, 100, 8192)] * 2
    assert {gpu["enforced"] for gpu in gpus} == {"audited: not yet"}
    node = client.node("a100")
    assert [gpu["free_milli"] for gpu in node["gpus"]] == [800, 1000]
    plan = client.submit(HOUR | {"gpus": 2, "node": "a100"}, dry_run=True)
    assert not plan["fits"] and plan["why"]["changes"][0]["text"] == "ask for 1 GPU"
    assert len(list(client.jobs())) == 2, "a dry run keeps nothing"


def test_cordons_drains_and_tolerations(client: Client) -> None:
    client.cordon("mixed", gpu="1", reason="fan")
    job = client.submit(HOUR | {"gpus": 1, "where": ["gpu-name=*H200"]})
    verdict = client.why(job.id)["verdict"]
    assert verdict is not None and verdict["counts"]["node_cordoned"] == 1
    (gpu,) = (gpu for gpu in client.node("mixed")["gpus"] if gpu["index"] == 1)
    assert gpu["cordoned"]["reason"] == "fan"
    tolerant = {"gpus": 1, "where": ["gpu-name=*H200"], "tolerate": ["cordon:fan"]}
    assert place(client, **tolerant) == ("mixed", [1])
    client.uncordon("mixed", gpu="1")
    eventually(lambda: client.job(job.id).state == "running")

    client.drain("mixed", "moving", deadline_s=1)

    eventually(lambda: client.job(job.id).state == "queued", what="the drained job waits again")
    assert [a["reason"] for a in client.job(job.id).view["attempts"]] == ["node_drained"]
    assert client.node("mixed")["jobs"] == []
    client.uncordon("mixed")
    eventually(lambda: client.job(job.id).state == "running")
    with pytest.raises(Conflict, match="beats"):
        client.forget("mixed")
    for reason in ("x" * 257, "two\nlines"):
        with pytest.raises(RequestError, match="reason must be one line"):
            client.cordon("mixed", reason=reason)


def test_a_node_that_is_gone_is_forgotten_and_may_come_back(
    yard: RunningYard, client: Client
) -> None:
    job = client.submit(HOUR | {"gpus": 1, "node": "rtx", "retries": 1})
    eventually(lambda: client.job(job.id).state == "running")
    yard.agents["node"].kill()
    eventually(lambda: client.node("rtx")["state"] in ("suspect", "lost"), within_s=20)

    forgotten = client.forget("rtx")

    assert forgotten["warning"]
    with pytest.raises(UnknownThing):
        client.node("rtx")
    waiting = client.job(job.id).view
    assert waiting["state"] == "queued"
    assert [attempt["reason"] for attempt in waiting["attempts"]] == ["node_lost"]
    yard.agents["node"].start()
    eventually(lambda: client.job(job.id).state == "running", within_s=30)
    assert client.job(job.id).view["attempt"] == 2
