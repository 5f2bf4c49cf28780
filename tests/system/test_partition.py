"""A node out of the yard's reach for longer than a fence: what ends, by whom, and what is told."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gpuyard import Client
from tests.support.busybox import BUSYBOX
from tests.support.engine import MakePrivateEngine
from tests.support.keeper import wait_until
from tests.support.nats_server import NatsServer
from tests.support.processes import is_alive
from tests.support.running_yard import Daemon, RunningYard, eventually
from tests.support.short_margin import MARGIN_S
from tests.system.drills.node_away import node_away, yard_with_short_leases

FENCE_S = 6
"""The shortest that the yard accepts: a node may miss as many beats and be well."""
pytestmark = pytest.mark.timeout(180)


def fast_agent(yard: RunningYard, **flags: str) -> Daemon:
    """Beats often enough to leave a grace inside so short a fence."""
    config = yard.directory / "agent.toml"
    config.write_text("beat_s = 0.5\n")
    return yard.agent(simulate="1", config=str(config), **flags)


def job(
    directory: Path, name: str, on_partition: object, *, grace: str = "2s", **spec: Any
) -> dict[str, object]:
    """Notes every start with the pid, and SIGTERM; a second start sees whether the first lives."""
    told = directory / name
    script = (
        f"trap 'echo asked >> {told}.asked' TERM; "
        f"for pid in $(cat {told}.pids 2>/dev/null); do kill -0 $pid && echo $pid >> {told}.two; "
        f"done; echo $$ >> {told}.pids; while :; do sleep 0.1; done"
    )
    return {
        "id": name,
        "image": "none",
        "command": ["sh", "-c", script],
        "on_partition": on_partition,
        "stop_grace": grace,
        **spec,
    }


def pids(directory: Path, name: str) -> list[int]:
    file = directory / f"{name}.pids"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def is_fenced(client: Client, name: str) -> bool:
    return bool(client.job(name).view["attempts"][-1].get("fenced"))


def run_fenced(yard: RunningYard, client: Client, name: str, **spec: Any) -> int:
    """Its process, once the coordinator knows that the keeper holds it."""
    rule = {"stop_after": f"{FENCE_S}s"}
    client.submit(job(yard.directory, name, rule, **spec))
    pid = eventually(lambda: pids(yard.directory, name), what=f"{name} runs")[0]
    eventually(lambda: is_fenced(client, name), what=f"{name} is fenced")
    return pid


def first_attempt(client: Client, name: str) -> dict[str, Any]:
    def over() -> dict[str, Any] | None:
        attempt: dict[str, Any] = client.job(name).view["attempts"][0]
        return attempt if attempt["ended_at"] else None

    found = eventually(over, within_s=30, what=f"the end of {name}'s first attempt")
    assert found is not None
    return found


def test_bus_away_keep_goes_on_and_stop_after_is_ended_and_retried(yard: RunningYard) -> None:
    fast_agent(yard)
    client = yard.ready()
    client.submit(job(yard.directory, "keeps", "keep"))
    pid = run_fenced(yard, client, "stops", retries={"max": 1, "when": ["platform"]})
    (kept,) = eventually(lambda: pids(yard.directory, "keeps"))
    began = time.monotonic()
    yard.server.kill()
    wait_until(lambda: not is_alive(pid), within_s=FENCE_S + 3)
    assert time.monotonic() - began > FENCE_S - 3
    assert (yard.directory / "stops.asked").exists()
    yard.server.start()
    attempt = first_attempt(client, "stops")
    assert attempt["reason"] == "node_lost"
    assert f"on_partition: stop_after {FENCE_S}s" in attempt["message"]
    eventually(lambda: len(pids(yard.directory, "stops")) == 2, what="the second attempt")
    assert not (yard.directory / "stops.two").exists()
    assert is_alive(kept)
    assert pids(yard.directory, "keeps") == [kept]


def test_agent_killed_the_keeper_ends_what_is_fenced_and_the_next_agent_tells(
    yard: RunningYard,
) -> None:
    agent = fast_agent(yard)
    client = yard.ready()
    client.submit(job(yard.directory, "keeps", "keep"))
    pid = run_fenced(yard, client, "stops")
    (kept,) = eventually(lambda: pids(yard.directory, "keeps"))
    agent.kill()
    wait_until(lambda: not is_alive(pid), within_s=FENCE_S + 3)
    assert is_alive(kept)
    agent.start()
    attempt = first_attempt(client, "stops")
    assert (attempt["reason"], attempt["exit_code"]) == ("node_lost", 137)
    assert attempt["message"].startswith("ended by the keeper: ")
    assert client.job("keeps").state == "running"


def test_agent_frozen_past_the_fence_starts_nothing_stale_and_tells_the_truth(
    yard: RunningYard,
) -> None:
    agent = fast_agent(yard)
    client = yard.ready()
    pid = run_fenced(yard, client, "stops", retries={"max": 1, "when": ["platform"]})
    agent.signal(signal.SIGSTOP)
    wait_until(lambda: not is_alive(pid), within_s=FENCE_S + 3)
    client.submit(job(yard.directory, "later", "keep"))
    agent.signal(signal.SIGCONT)
    attempt = first_attempt(client, "stops")
    assert (attempt["reason"], attempt["exit_code"]) == ("node_lost", 137)
    assert attempt["message"].startswith("ended by the keeper: ")
    eventually(lambda: len(pids(yard.directory, "stops")) == 2, what="the second attempt")
    assert not (yard.directory / "stops.two").exists()
    eventually(lambda: pids(yard.directory, "later"), what="new work")


def test_three_silent_nodes_and_one_stopped_engine_each_past_the_fence(
    nats_server: NatsServer, tmp_path: Path, private_engine: MakePrivateEngine
) -> None:
    yard = yard_with_short_leases(nats_server, tmp_path, "tests.support.short_margin")
    try:
        figures = node_away(yard, private_engine("--bridge=none"), MARGIN_S)
    finally:
        yard.close()
    assert figures.silent_s > FENCE_S + MARGIN_S


def test_a_killed_keeper_is_started_anew_and_goes_on(yard: RunningYard) -> None:
    agent = fast_agent(yard)
    client = yard.ready()
    pid = run_fenced(yard, client, "stops")
    first = yard.keeper_pid()
    yard.end_keeper()
    eventually(lambda: yard.keeper_pid() not in (None, first), what="another keeper")
    assert is_alive(pid)
    agent.kill()
    wait_until(lambda: not is_alive(pid), within_s=FENCE_S + 4)


def test_engine_frozen_and_agent_killed_the_container_is_ended_all_the_same(
    yard: RunningYard, private_engine: MakePrivateEngine
) -> None:
    engine = private_engine()
    agent = fast_agent(yard, runtime="docker", docker_host=engine.url)
    client = yard.ready()
    client.submit(
        {
            "id": "stops",
            "image": BUSYBOX,
            "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
            "network": "none",
            "on_partition": {"stop_after": f"{FENCE_S}s"},
            "stop_grace": "1s",
        }
    )
    eventually(lambda: client.job("stops").state == "running")
    eventually(lambda: is_fenced(client, "stops"), what="it is fenced")
    with engine.api() as api:
        (container,) = api.containers()
        pid = api.inspect_container(container["Id"])["State"]["Pid"]
    engine.freeze()
    agent.kill()
    wait_until(lambda: not is_alive(pid), within_s=FENCE_S + 4)
    engine.thaw()
    agent.start()
    attempt = first_attempt(client, "stops")
    assert (attempt["reason"], attempt["exit_code"]) == ("node_lost", 137)
    assert attempt["message"].startswith("ended by the keeper: ")
