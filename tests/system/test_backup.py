"""A yard backed up, its bus wiped, and restored: what runs goes on, what waited runs, once each."""

import asyncio
import json
import shutil
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard import Client, codec, subjects
from gpuyard.bus import Sizes, connect, stream_configs
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import NatsServer
from tests.support.running_yard import RunningYard, eventually

COUNTS_ITSELF = 'echo "$GPUYARD_JOB_ID" >> "$OUT"; while [ -e "$HOLD" ]; do sleep 0.1; done'


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """Where each job leaves its id once per start."""
    return tmp_path / "started"


def starts(counted: Path) -> dict[str, int]:
    lines = counted.read_text().split() if counted.exists() else []
    return {line: lines.count(line) for line in lines}


@pytest.mark.parametrize("is_led", [False, True], ids=["coordinator-stopped", "coordinator-runs"])
def test_after_a_restore_jobs_run_on_and_waiting_ones_run_once(
    yard: RunningYard, tmp_path: Path, counted: Path, is_led: bool
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    yard.agent("node", simulate="1")
    client = yard.ready()
    env = {"OUT": str(counted), "HOLD": str(hold)}
    spec = {"image": "none", "command": ["sh", "-c", COUNTS_ITSELF], "gpus": 1, "env": env}
    client.submit({"id": "over", "image": "none", "command": ["true"]})
    client.wait("over", timeout_s=20)
    client.submit({"id": "runs", **spec})
    eventually(lambda: client.job("runs").state == "running", what="a running job")
    client.submit({"id": "waits", **spec})
    assert yard.cli("cordon", "node", "--reason", "moving").returncode == 0

    file = tmp_path / "yard.gz"
    taken = yard.json("backup", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert taken["documents"] == {"job": 2, "done": 1, "node": 1, "tenant": 0}

    if not is_led:
        yard.coordinator.kill()
    yard.server.kill()
    shutil.rmtree(yard.server.store)
    yard.server.start()
    refused = yard.cli("restore", str(file))
    assert refused.returncode == 2 and "-y" in refused.stderr
    restored = yard.json("restore", "-y", str(file))
    assert restored["generation"] > taken["generation"]
    assert restored["yard"] == taken["yard"]

    if not is_led:
        yard.coordinator.start()
    again = yard.ready()
    assert again.node("node")["scheduling"] == "cordoned"
    assert again.job("over").exit_code == 0
    assert again.job("runs").state == "running"
    assert yard.cli("uncordon", "node").returncode == 0
    hold.unlink()

    assert again.wait("runs", timeout_s=20).exit_code == 0
    assert again.wait("waits", timeout_s=20).exit_code == 0
    assert starts(counted) == {"runs": 1, "waits": 1}
    assert [a["attempt"] for a in again.job("runs").view["attempts"]] == [1]


def test_what_started_or_came_after_the_backup_runs_on_once(
    yard: RunningYard, tmp_path: Path, counted: Path
) -> None:
    """The bus is lost while jobs run that the backup has as waiting, or does not have at all."""
    hold = tmp_path / "hold"
    hold.touch()
    yard.agent("node", simulate="4")
    client = yard.ready(4)
    nodes = [node["name"] for node in client.nodes()]
    env = {"OUT": str(counted), "HOLD": str(hold)}
    spec = {"image": "none", "command": ["sh", "-c", COUNTS_ITSELF], "gpus": 1, "env": env}
    for node in nodes:
        assert yard.cli("cordon", node, "--reason", "moving").returncode == 0
    client.submit({"id": "waited-1", **spec})
    client.submit({"id": "waited-2", **spec})
    file = tmp_path / "yard.gz"
    assert yard.json("backup", str(file))["documents"]["job"] == 2
    for node in nodes:
        assert yard.cli("uncordon", node).returncode == 0
    client.submit({"id": "later", **spec, "name": "train"})
    client.submit({"id": "ended", "image": "none", "command": ["true"]})
    ids = ("waited-1", "waited-2", "later")
    eventually(lambda: {client.job(id).state for id in ids} == {"running"}, what="running jobs")
    assert client.wait("ended", timeout_s=20).exit_code == 0
    before = {id: client.job(id).view["attempts"][0]["container_id"] for id in ids}

    yard.server.kill()
    shutil.rmtree(yard.server.store)
    yard.server.start()
    assert yard.cli("restore", "-y", str(file)).returncode == 0
    eventually(lambda: len(audited(yard, "taken_over", "default")) == 3, what="the audit records")
    again = yard.client()
    eventually(lambda: known_to_run(again, ids), what="all three, taken over")
    eventually(lambda: ready_nodes(again) == 4, what="all nodes, adopted")
    assert again.job("later").view["name"] == "train"
    assert {id: again.job(id).view["attempts"][0]["container_id"] for id in ids} == before
    for node in nodes:
        assert yard.cli("uncordon", node).returncode == 0
    again.submit({"id": "new", "image": "none", "command": ["true"], "gpus": 1})
    assert again.wait("new", timeout_s=20).exit_code == 0, "the yard goes on"

    hold.unlink()
    for id in ids:
        assert again.wait(id, timeout_s=20).exit_code == 0
        assert [a["attempt"] for a in again.job(id).view["attempts"]] == [1]
    assert starts(counted) == dict.fromkeys(ids, 1)


def test_a_restore_over_a_running_yard_deposes_its_leader_and_stops_nothing(
    yard: RunningYard, tmp_path: Path, counted: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    yard.agent("node", simulate="2")
    client = yard.ready(2)
    env = {"OUT": str(counted), "HOLD": str(hold)}
    spec = {"image": "none", "command": ["sh", "-c", COUNTS_ITSELF], "gpus": 1, "env": env}
    client.submit({"id": "known", **spec})
    eventually(lambda: client.job("known").state == "running", what="a running job")
    limits = tmp_path / "tenant.yaml"
    limits.write_text("tenant: default\nlimits: {gpus: 4}\n")
    assert yard.cli("apply", "-f", str(limits)).returncode == 0
    file = tmp_path / "yard.gz"
    assert yard.cli("backup", str(file)).returncode == 0
    before = yard.json("status")
    client.submit({"id": "later", **spec})
    eventually(lambda: client.job("later").state == "running", what="a second running job")
    limits.write_text("tenant: default\nlimits: {gpus: 1}\n")
    assert yard.cli("apply", "-f", str(limits)).returncode == 0

    refused = yard.cli("restore", "-y", str(file))
    assert refused.returncode == 1
    assert "2 unfinished jobs" in refused.stderr and "--replace" in refused.stderr
    assert yard.json("status")["leader"]["token"] == before["leader"]["token"]

    done = yard.cli("restore", "-y", "--replace", str(file))
    assert done.returncode == 0, done.stderr
    assert "stepped down" in done.stderr

    eventually(
        lambda: generation(answer(yard)) > generation(before), what="a leader of the new generation"
    )
    status = answer(yard)
    assert yard.coordinator.is_running
    assert yard.json("tenant", "default")["limits"]["gpus"] == 4
    eventually(lambda: {job.state for job in client.jobs()} == {"running"}, what="both adopted")
    hold.unlink()
    assert client.wait("known", timeout_s=20).exit_code == 0
    assert client.wait("later", timeout_s=20).exit_code == 0
    assert starts(counted) == {"known": 1, "later": 1}
    actions = eventually(lambda: audited(yard, "restore"), what="the audit record")
    assert actions[0]["after"]["generation"] == status["leader"]["token"][0]


def known_to_run(client: Client, ids: tuple[str, ...]) -> bool:
    states = {job.id: job.state for job in client.jobs()}
    return all(states.get(id) == "running" for id in ids)


def ready_nodes(client: Client) -> int:
    return sum(node["state"] == "ready" for node in client.nodes())


def answer(yard: RunningYard) -> dict[str, Any]:
    """The status; empty while nobody answers."""
    done = yard.cli("status", "--json")
    view: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return view


def generation(status: dict[str, Any]) -> int:
    """Of the leader; 0 while nobody answers."""
    return int(status["leader"]["token"][0]) if status else 0


def audited(yard: RunningYard, action: str, tenant: str = "_") -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        async with await connect(yard.server.url, name="t", inbox_prefix="_INBOX.x") as bus:
            page = await bus.jetstream.read_page(
                subjects.AUDIT_STREAM, subject=subjects.audit(tenant, action)
            )
            return [codec.decode(message.data) for message in page.messages]

    return asyncio.run(read())


def test_one_server_becomes_three_by_a_backup(
    yard: RunningYard, tmp_path: Path, counted: Path
) -> None:
    """The way that the documentation tells; the first server keeps its address."""
    hold = tmp_path / "hold"
    hold.touch()
    yard.agent("node", simulate="1")
    client = yard.ready()
    env = {"OUT": str(counted), "HOLD": str(hold)}
    spec = {"image": "none", "command": ["sh", "-c", COUNTS_ITSELF], "gpus": 1, "env": env}
    client.submit({"id": "over", "image": "none", "command": ["true"]})
    client.wait("over", timeout_s=20)
    client.submit({"id": "runs", **spec})
    eventually(lambda: client.job("runs").state == "running", what="a running job")
    file = tmp_path / "yard.gz"
    taken = yard.json("backup", str(file))
    yard.coordinator.stop()
    yard.server.stop()

    cluster = NatsCluster(tmp_path / "cluster")
    cluster.servers[0].port = yard.server.port
    with cluster:
        asyncio.run(cluster.ready())
        # A yard uses nothing of its server but the address.
        yard.server = cast(NatsServer, cluster)
        yard.coordinator = yard.add_coordinator("coordinator")
        assert yard.json("restore", "-y", str(file))["yard"] == taken["yard"]
        yard.coordinator.start()
        again = yard.ready(within_s=40)
        assert again.job("over").exit_code == 0
        hold.unlink()
        assert again.wait("runs", timeout_s=20).exit_code == 0
        assert starts(counted) == {"runs": 1}
        assert replicas(yard) == {3}
        yard.close()


def replicas(yard: RunningYard) -> set[int]:
    """How many servers keep each of the yard's streams."""

    async def ask() -> set[int]:
        async with await connect(yard.server.url, name="test", inbox_prefix="_INBOX.x") as bus:
            answers = [
                await bus.jetstream.call(f"STREAM.INFO.{config['name']}", attempts=20)
                for config in stream_configs(Sizes())
            ]
        return {answer["config"]["num_replicas"] for answer in answers}

    return asyncio.run(ask())
