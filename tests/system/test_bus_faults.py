"""The bus short of room, of disk and of servers: what is told, what goes on, what heals."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from gpuyard import Client, subjects
from gpuyard.bus import Bus, Publication, connect
from gpuyard.errors import GpuyardError, UnknownThing
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import NatsServer, unused_port
from tests.support.running_yard import RunningYard, eventually

T = TypeVar("T")
ENQUEUE_AGAIN_S = 15.0
"""The longest that a cluster was measured to need after the loss of servers."""
HEALTH = Path(__file__).parents[2] / "systemd" / "nats_health.py"
MIB = 1024 * 1024


def on_bus(url: str, work: Callable[[Bus], Awaitable[T]]) -> T:
    """What `work` gives on a connection that may do everything."""

    async def whole() -> T:
        async with await connect(url, name="test", inbox_prefix="_INBOX.x") as bus:
            return await work(bus)

    return asyncio.run(whole())


def set_limit(url: str, stream: str, choose: Callable[[int], int]) -> None:
    """Give a stream the `max_bytes` that `choose` makes of what it holds."""

    async def work(bus: Bus) -> None:
        info = await bus.jetstream.call(f"STREAM.INFO.{stream}")
        config = info["config"] | {"max_bytes": choose(info["state"]["bytes"])}
        await bus.jetstream.call(f"STREAM.UPDATE.{stream}", config)

    on_bus(url, work)


def held_job(yard: RunningYard, client: Client, id: str = "held") -> Path:
    """A job that runs until the file that is returned is gone."""
    hold = yard.directory / f"hold-{id}"
    hold.touch()
    client.submit({"id": id, "image": "none", "command": _until_gone(hold)})
    eventually(lambda: client.job(id).state == "running", what=f"{id} runs")
    return hold


def _until_gone(hold: Path) -> list[str]:
    return ["sh", "-c", f"while [ -e {hold} ]; do sleep 0.05; done"]


def status(yard: RunningYard) -> tuple[int, dict[str, Any]]:
    done = yard.cli("status", "--json")
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def alarm_of(yard: RunningYard) -> str:
    """The first alarm where the yard says that it is not healthy; empty otherwise."""
    code, view = status(yard)
    alarms = view.get("alarms") or [""]
    return str(alarms[0]) if code == 1 else ""


def test_a_full_intake_refuses_with_a_clear_line_and_makes_room_by_itself(
    yard: RunningYard,
) -> None:
    yard.agent()
    client = yard.ready()
    hold = held_job(yard, client)
    set_limit(yard.server.url, subjects.SUBMIT_STREAM, lambda used: used + 100)

    refused = yard.cli("submit", "busybox", "true")
    assert refused.returncode == 3
    assert "no room for more jobs" in refused.stderr and "maximum bytes" in refused.stderr
    assert refused.stderr.count("\n") == 1

    def is_taken() -> bool:
        return yard.cli("submit", "--name", "after", "busybox", "true").returncode == 0

    eventually(is_taken, within_s=25, what="room for a job")
    assert client.job("held").state == "running"
    hold.unlink()
    assert client.wait("held", timeout_s=20).exit_code == 0


def test_a_state_near_its_limit_takes_no_new_jobs_and_ends_those_it_has(
    yard: RunningYard,
) -> None:
    yard.agent()
    client = yard.ready()
    hold = held_job(yard, client)
    ballast = subjects.state("ballast")

    async def load(bus: Bus) -> None:
        await bus.jetstream.publish(Publication(ballast, bytes(500_000)))

    async def unload(bus: Bus) -> None:
        await bus.jetstream.publish(Publication(ballast, b"", marker="DEL", ttl_s=10))

    on_bus(yard.server.url, load)
    set_limit(yard.server.url, subjects.STATE_STREAM, lambda used: int(used / 0.92))
    assert "KV_gpuyard" in eventually(lambda: alarm_of(yard), what="an alarm")

    refused = yard.cli("submit", "busybox", "true")
    assert refused.returncode == 1
    assert "takes no new jobs" in refused.stderr
    hold.unlink()
    assert client.wait("held", timeout_s=20).exit_code == 0

    on_bus(yard.server.url, unload)
    eventually(lambda: status(yard)[0] == 0, what="a healthy yard")
    assert yard.cli("submit", "busybox", "true").returncode == 0


def test_records_of_ended_jobs_go_before_the_state_is_full(yard: RunningYard) -> None:
    yard.agent()
    client = yard.ready()
    for n in range(30):
        text = "x" * 8000
        client.submit({"id": f"e{n}", "image": "none", "command": ["true"], "env": {"A": text}})
    for n in range(30):
        client.wait(f"e{n}", timeout_s=20)

    async def moved(bus: Bus) -> bool:
        last = subjects.state(subjects.done_key("default", "e29"))
        return await bus.jetstream.direct_last(subjects.STATE_STREAM, last) is not None

    eventually(lambda: on_bus(yard.server.url, moved), what="records at their keys")
    set_limit(yard.server.url, subjects.STATE_STREAM, lambda used: int(used / 0.85))

    def kept() -> int:
        return sum(1 for _ in client.jobs(all=True))

    left = eventually(lambda: kept() if kept() < 30 else 0, what="room")
    assert left > 10
    assert status(yard)[0] == 0


def test_a_commit_that_finds_no_room_waits_and_nothing_is_lost(yard: RunningYard) -> None:
    yard.agent()
    client = yard.ready()
    hold = held_job(yard, client)
    before = status(yard)[1]["leader"]["token"]
    set_limit(yard.server.url, subjects.STATE_STREAM, lambda used: used + 50)
    hold.unlink()

    assert "does not store commits" in eventually(lambda: alarm_of(yard), what="an alarm")
    shown = yard.cli("status")
    assert shown.returncode == 1
    assert "NOT healthy" in shown.stdout and "unknown while the bus" in shown.stdout

    set_limit(yard.server.url, subjects.STATE_STREAM, lambda used: 64 * MIB)
    assert client.wait("held", timeout_s=20).exit_code == 0
    assert eventually(lambda: status(yard)[1], what="an answer")["leader"]["token"] == before
    assert yard.coordinator.is_running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A volume of 64 MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no volume can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_heals_once_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    port = unused_port()
    with NatsServer(small_disk / "nats", extra=f'http: "127.0.0.1:{port}"') as server:
        yard = RunningYard(server, tmp_path)
        yard.coordinator.start()
        try:
            yard.agent()
            _fill_and_heal(yard, small_disk, port)
        finally:
            yard.close()


def _fill_and_heal(yard: RunningYard, disk: Path, port: int) -> None:
    client = yard.ready()
    hold = held_job(yard, client)
    stored = [client.submit({"image": "none", "command": ["true"]}).id for _ in range(5)]
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
        while file.write(bytes(4096)):
            pass
    assert "does not store" in eventually(lambda: alarm_of(yard), what="an alarm")
    # Each needs a page of the disk that is not there; small ones fit what a stream has open.
    spec = {"image": "none", "command": ["true"], "env": {"A": "x" * 20_000}}
    with pytest.raises(GpuyardError, match="answers, but its storage does not"):
        for _ in range(10):
            stored.append(client.submit(spec).id)
    assert _check_health(port, disk).returncode == 1

    ballast.unlink()
    healed = _check_health(port, disk)
    assert healed.returncode == 0 and "restart it now" in healed.stdout
    yard.server.restart()
    assert _check_health(port, disk).stdout == ""
    eventually(lambda: status(yard)[0] == 0, within_s=30, what="a healthy yard")
    assert client.job("held").state == "running"
    hold.unlink()
    for id in [*stored, "held", client.submit(spec).id]:
        assert client.wait(id, timeout_s=20).exit_code == 0


def _check_health(port: int, disk: Path) -> "subprocess.CompletedProcess[str]":
    """The check of the bus's unit, with a word in place of systemctl."""
    restart = "echo restart it now"
    command = [sys.executable, str(HEALTH), "--url", f"http://127.0.0.1:{port}"]
    command += ["--store", str(disk), "--need-mib", "16", "--restart", restart]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_a_server_that_is_down_is_left_to_its_own_unit(tmp_path: Path) -> None:
    done = _check_health(unused_port(), tmp_path)

    assert done.returncode == 3
    assert "does not answer" in done.stderr


@pytest.fixture
def clustered(nats_cluster: NatsCluster, tmp_path: Path) -> Iterator[RunningYard]:
    """A yard on three servers, with an agent."""
    asyncio.run(nats_cluster.ready())
    # A yard uses nothing of its server but the address.
    running = RunningYard(cast(NatsServer, nats_cluster), tmp_path)
    running.coordinator.start()
    running.agent()
    yield running
    running.close()


def enqueue(client: Client, id: str) -> float:
    """Hand in a job under one id until it is stored; the seconds that took."""
    began = time.monotonic()
    while True:
        try:
            client.submit({"id": id, "image": "none", "command": ["true"]})
        except GpuyardError:
            if time.monotonic() - began > 60:
                raise
        else:
            return time.monotonic() - began


def is_known(client: Client, id: str) -> bool:
    """A stored job is taken in a moment later, by a consumer that may have lost its leader."""
    try:
        return client.job(id).id == id
    except UnknownThing:
        return False


def test_a_cluster_goes_on_without_any_one_server_and_waits_without_two(
    nats_cluster: NatsCluster, clustered: RunningYard
) -> None:
    client = clustered.ready()
    hold = held_job(clustered, client)
    token = status(clustered)[1]["leader"]["token"]
    killed = on_bus(
        nats_cluster.url, lambda bus: nats_cluster.leader_of(bus, subjects.SUBMIT_STREAM)
    )
    killed.kill()
    slowest = max(enqueue(client, f"one-{n}") for n in range(5))
    assert slowest <= ENQUEUE_AGAIN_S
    assert status(clustered)[1]["leader"]["token"] == token

    other = next(server for server in nats_cluster.servers if server is not killed)
    other.kill()
    with pytest.raises(GpuyardError, match="answers, but its storage does not"):
        client.submit({"id": "two", "image": "none", "command": ["true"]})
    killed.start()
    other.start()
    # It may have been stored after all: the same id again makes no second job.
    assert enqueue(client, "two") <= ENQUEUE_AGAIN_S

    hold.unlink()
    for id in ["held", "two", *(f"one-{n}" for n in range(5))]:
        eventually(partial(is_known, client, id), what=f"job {id}, taken in")
        job = client.wait(id, timeout_s=30)
        assert (job.exit_code, len(job.view["attempts"])) == (0, 1), id
    assert sum(1 for _ in client.jobs(all=True)) == 7
    assert clustered.coordinator.is_running
