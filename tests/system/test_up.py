"""`gpuyard up`, a job on it, and its end: all parts real, jobs as plain processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import is_alive

COMMAND = [sys.executable, "-m", "gpuyard.cli"]
READY = re.compile(r"ready: 1 node, 8 simulated GPUs, runtime process, nats://127\.0\.0\.1:\d+\n")
UP = ("up", "-d", "--runtime", "process", "--simulate", "1")


class Place:
    """A folder in which commands run, as a user's shell would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.yard = folder / ".gpuyard"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUYARD_")}
        self.env = kept | {"HOME": str(folder)}

    def run(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def children(self) -> dict[str, int]:
        notes = json.loads((self.yard / "children.json").read_text())
        return {name: int(pid) for name, (pid, _) in notes.items()}

    def job(self, id: str) -> dict[str, object]:
        view: dict[str, object] = json.loads(self.run("job", "--json", id).stdout)
        return view

    def until(self, check: Callable[[], bool], within_s: float = 30) -> None:
        deadline = time.monotonic() + within_s
        while not check():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        files = sorted((self.yard / "log").glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.run("down", timeout_s=90)


@pytest.fixture
def up(place: Place) -> Place:
    """A folder with a yard that is up."""
    done = place.run(*UP)
    assert done.returncode == 0, done.stderr + place.logs()
    assert READY.fullmatch(done.stdout)
    return place


def test_a_job_runs_and_its_code_comes_back(up: Place) -> None:
    done = up.run("run", "--gpus", "1", "any", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    below = up.folder / "a" / "b"
    below.mkdir(parents=True)
    up.folder = below
    nodes = json.loads(up.run("nodes", "--json").stdout)
    assert [len(node["gpus"]) for node in nodes] == [8]
    assert nodes[0]["runtime"] == "process"


def test_the_file_that_holds_the_token_is_private(up: Place) -> None:
    path = up.yard / "gpuyard.env"
    assert path.stat().st_mode & 0o777 == 0o600
    token = re.search(r"nats://([0-9a-f]{32})@", path.read_text())
    assert token is not None
    for pid in up.children().values():
        assert token[1] not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_second_yard_in_the_folder_is_refused(up: Place) -> None:
    again = up.run(*UP)
    assert (again.returncode, again.stdout) == (1, "")
    assert re.fullmatch(
        r"gpuyard: a yard runs in \S+ already \(pid \d+\); 'gpuyard down' ends it\n", again.stderr
    )


def test_down_ends_everything_and_keeps_what_was(up: Place) -> None:
    pids = up.children()
    running = up.run("run", "-d", "--stop-timeout", "5", "any", "sleep", "600").stdout.strip()
    waiting = up.run("submit", "--gpus", "9", "any", "true").stdout.strip()
    up.until(lambda: up.job(running)["state"] == "running")
    port = re.search(r"URL=.*:(\d+)\n", (up.yard / "gpuyard.env").read_text())
    down = up.run("down", timeout_s=90)
    assert (down.returncode, down.stdout) == (0, "")
    assert not any(is_alive(pid) for pid in pids.values())
    assert not (up.yard / "gpuyard.env").exists()
    assert up.run("jobs").returncode == 3
    assert "no yard runs in" in up.run("down").stderr
    again = up.run(*UP)
    assert again.returncode == 0, again.stderr + up.logs()
    assert port is not None
    assert f":{port[1]}\n" in again.stdout
    ended = up.job(running)
    assert (ended["state"], ended["reason"]) == ("cancelled", "yard_stopped")
    assert up.job(waiting)["state"] == "queued"


def test_ctrl_c_ends_a_yard_in_the_foreground(place: Place) -> None:
    yard = place.start("up", "--runtime", "process", "--simulate", "1")
    assert yard.stdout is not None
    assert READY.fullmatch(yard.stdout.readline())
    assert place.run("run", "any", "true").returncode == 0
    yard.send_signal(signal.SIGINT)
    _, err = yard.communicate(timeout=60)
    assert yard.returncode == 0
    assert "stopping: jobs get SIGTERM and their grace" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["coordinator", "agent", "nats-server"])
def test_a_part_that_dies_is_started_again(up: Place, name: str) -> None:
    running = up.run("run", "-d", "any", "sleep", "600").stdout.strip()
    up.until(lambda: up.job(running)["state"] == "running")
    old = up.children()[name]
    os.kill(old, signal.SIGKILL)
    up.until(lambda: up.children().get(name, old) != old)
    up.until(lambda: up.run("run", "any", "true").returncode == 0)
    assert up.job(running)["state"] == "running"
    assert f"{name} ended by signal 9; starting it again" in (up.yard / "log/up.log").read_text()


def test_a_yard_that_was_killed_is_taken_over(up: Place) -> None:
    running = up.run("run", "-d", "any", "sleep", "600").stdout.strip()
    up.until(lambda: up.job(running)["state"] == "running")
    old = up.children()
    supervisor = int((up.yard / "lock").read_text())
    os.kill(supervisor, signal.SIGKILL)
    up.until(lambda: not is_alive(supervisor))
    again = up.run(*UP)
    assert again.returncode == 0, again.stderr + up.logs()
    assert not any(is_alive(pid) for pid in old.values())
    assert up.job(running)["state"] == "running"


def test_down_after_a_kill_ends_what_was_left(up: Place) -> None:
    old = up.children()
    os.kill(int((up.yard / "lock").read_text()), signal.SIGKILL)
    down = up.run("down", timeout_s=90)
    assert "was killed; ending what it left behind" in down.stderr
    up.until(lambda: not any(is_alive(pid) for pid in old.values()))


def test_fresh_forgets_the_jobs(up: Place) -> None:
    id = up.run("submit", "--gpus", "9", "any", "true").stdout.strip()
    up.run("down", timeout_s=90)
    assert up.run(*UP, "--fresh").returncode == 0
    assert up.run("job", id).returncode == 1


def test_a_yard_that_cannot_come_up_says_why(place: Place) -> None:
    place.folder.joinpath("fleet.yaml").write_text("nodes: [{name: BAD NAME, gpus: []}]\n")
    done = place.run("up", "-d", "--runtime", "simulated", "--simulate", "fleet.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "agent does not stay up" in done.stderr
    assert "Traceback" not in done.stderr
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        assert not any(is_alive(pid) for pid in place.children().values())


def test_a_large_fleet_is_simulated(place: Place) -> None:
    done = place.run("up", "-d", "--simulate", "25")
    assert done.returncode == 0, done.stderr + place.logs()
    assert "ready: 25 nodes, 200 simulated GPUs, runtime simulated" in done.stdout
    done = place.run("run", "--gpus", "8", "-l", "sim.exit_code=3", "any")
    assert done.returncode == 3
