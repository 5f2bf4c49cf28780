"""Jobs over several nodes: members meet, start and end together; their output is told apart."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.busybox import BUSYBOX
from tests.support.engine import MakePrivateEngine, PrivateEngine
from tests.support.running_yard import RunningYard, eventually

MEET = """
if [ $RANK = 0 ]; then nc -l -p $MASTER_PORT -e echo met at $MASTER_ADDR
else until nc $MASTER_ADDR $MASTER_PORT < /dev/null; do sleep 0.1; done; fi
echo rank $RANK of $WORLD_SIZE
exec sleep 600
"""


@pytest.fixture
def two_hosts(
    yard: RunningYard, private_engine: MakePrivateEngine
) -> Iterator[dict[str, PrivateEngine]]:
    """Two nodes, each with an engine in a network namespace of its own, and a cable between."""
    engines = {name: private_engine("--bridge=none") for name in ("n1", "n2")}
    one, two = (engine.namespace for engine in engines.values())
    _ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "cable", "netns", two)
    for (name, engine), host in zip(engines.items(), (1, 2), strict=True):
        address = f"192.0.2.{host}"
        for command in (
            ["addr", "add", f"{address}/24", "dev", "cable"],
            ["link", "set", "cable", "up"],
        ):
            _ip("-n", engine.namespace, *command)
        yard.agent(name, runtime="docker", docker_host=engine.url, simulate="1", address=address)
    yield engines


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def test_real_processes_meet_and_one_that_dies_ends_all(
    yard: RunningYard, two_hosts: dict[str, PrivateEngine]
) -> None:
    client = yard.ready(2)
    spec = {"image": BUSYBOX, "command": ["sh", "-c", MEET], "nodes": 2, "gpus": 1}
    client.submit(spec | {"id": "meet", "stop_grace": "2s"})

    expected = {(0, "rank 0 of 2"), (1, "rank 1 of 2"), (1, "met at 192.0.2.1")}
    eventually(
        lambda: expected <= {(line.rank, line.text) for line in client.logs("meet")}, within_s=30
    )
    view = client.job("meet").view
    assert view["nodes"] == ["n1", "n2"] and len(view["gpus"]) == 2
    (attempt,) = view["attempts"]
    with two_hosts["n2"].api() as api:
        api.kill(attempt["members"][1]["container_id"], "SIGKILL")

    job = client.wait("meet", timeout_s=20)
    assert (job.state, job.reason, job.exit_code) == ("failed", "exited", 137)
    assert str(job.message).startswith(
        "rank 1 on node n2 exited with 137: killed through the Docker"
    )
    (attempt,) = job.view["attempts"]
    assert [member["reason"] for member in attempt["members"]] == ["cancelled", "exited"]
    eventually(lambda: all(_has_none(engine) for engine in two_hosts.values()))


def _has_none(engine: PrivateEngine) -> bool:
    with engine.api() as api:
        return not api.containers(all=True)


def test_a_gang_of_processes_on_one_host_as_the_command_line_shows_it(yard: RunningYard) -> None:
    yard.agent(runtime="process", simulate="3")
    client = yard.ready(3)
    script = "echo rank $RANK of $WORLD_SIZE; exit $((RANK * 3))"
    done = yard.cli("run", "-q", "--nodes", "2", "--id", "two", "any", "sh", "-c", script)
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 | rank 0 of 2", "1 | rank 1 of 2"]
    first, second = client.job("two").view["nodes"]
    said = f"gpuyard: job two failed (exited): rank 1 on node {second} exited with 3\n"
    assert done.stderr == said

    told = yard.cli("logs", "two")
    assert sorted(told.stdout.splitlines()) == ["0 | rank 0 of 2", "1 | rank 1 of 2"]
    assert yard.cli("logs", "--rank", "1", "two").stdout == "rank 1 of 2\n"
    assert yard.cli("logs", "--node", first, "two").stdout == "rank 0 of 2\n"
    assert yard.cli("logs", "--rank", "2", "two").stdout == ""
    shown = yard.cli("job", "two").stdout
    assert f"rank 0  {first}" in shown
    assert f"{first} +1" in yard.cli("jobs", "--all").stdout


def test_a_simulated_gang_over_a_fleet_runs_to_its_end(yard: RunningYard) -> None:
    yard.agent(runtime="simulated", simulate="30")
    client = yard.ready(30)
    client.submit({"id": "many", "image": "any", "nodes": 30, "gpus": 8})
    job = client.wait("many", timeout_s=30)
    assert (job.state, job.exit_code) == ("succeeded", 0), job.message
    (attempt,) = job.view["attempts"]
    assert len(attempt["members"]) == 30
    assert {member["reason"] for member in attempt["members"]} == {"exited"}
