"""What `up` decides before it starts anything, and the folder it works in."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.cli import yard_parts
from gpuyard.cli.ending import UsageFault
from gpuyard.cli.up_session import first_run, ready_line
from gpuyard.cli.yard_folder import YardFolder, YardRuns, unused_port
from gpuyard.cli.yard_parts import (
    Plan,
    UpOptions,
    child_environment,
    commands,
    docker_fault,
    find_server,
    make_plan,
    write_server_config,
)
from gpuyard.errors import GpuyardError


@pytest.fixture
def folder(tmp_path: Path) -> YardFolder:
    made = YardFolder(tmp_path / "yard")
    made.make()
    return made


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A socket that answers the engine's ping with what the list holds."""
    answers = [b"HTTP/1.0 200 OK\r\n\r\nOK"]
    path = tmp_path / "docker.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1024)
                connection.sendall(answers[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    yield answers
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


def plan_of(
    runtime: str | None = None, simulate: str | None = None, injection: str | None = None
) -> Plan:
    return make_plan(UpOptions(runtime, simulate, injection, is_fresh=False))


def test_an_engine_that_answers_is_used(engine: list[bytes]) -> None:
    assert docker_fault() is None
    assert plan_of().runtime == "docker"
    assert plan_of("process").runtime == "process"


def test_something_else_on_the_socket_is_no_engine(engine: list[bytes]) -> None:
    engine[0] = b"SSH-2.0\r\n"
    assert "is no Docker engine" in (docker_fault() or "")


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_jobs_are_processes() -> None:
    plan = plan_of()
    assert plan.runtime == "process"
    assert any("jobs run as plain processes" in hint for hint in plan.hints)
    with pytest.raises(GpuyardError, match=r"no such file or directory.*or use --runtime process"):
        plan_of("docker")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's part")
def test_a_socket_without_permission_says_what_to_do(engine: list[bytes], tmp_path: Path) -> None:
    program = (
        "import os\nos.setuid(65534)\n"
        "from gpuyard.cli.yard_parts import docker_fault\nprint(docker_fault())"
    )
    (tmp_path / "docker.sock").chmod(0o600)
    for part in (tmp_path, *tmp_path.parents):
        if part != Path("/"):
            part.chmod(part.stat().st_mode | 0o011)
    told = subprocess.run(
        [sys.executable, "-c", f"import gpuyard.cli.yard_parts\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "usermod -aG docker" in told


@pytest.mark.usefixtures("no_engine")
def test_a_host_without_a_gpu_has_simulated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard_parts, "has_gpus", lambda: False)
    assert plan_of().simulate == "1"
    assert plan_of(simulate="0").simulate is None
    monkeypatch.setattr(yard_parts, "has_gpus", lambda: True)
    assert plan_of().simulate is None


@pytest.mark.usefixtures("no_engine")
def test_a_fleet_is_counted_and_a_large_one_only_simulated(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("nodes:\n - {name: 'a-{i}', count: 3}\n - {name: b}\n")
    assert (plan_of(simulate=str(fleet)).nodes, plan_of(simulate="2").nodes) == (4, 2)
    assert plan_of(simulate="21").runtime == "simulated"
    assert plan_of(simulate="20").runtime == "process"
    assert plan_of("process", simulate="21").runtime == "process"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: 3", "it is no fleet file"),
        ("a: [", "it is no fleet file"),
        ("- x", "it is no fleet file"),
        ("nodes: [{name: a, count: many}]", "it is no fleet file"),
    ],
)
def test_a_file_that_is_no_fleet(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(UsageFault, match=told):
        plan_of("process", simulate=str(path))


@pytest.mark.parametrize("simulate", ["no-such-file", "-3"])
def test_neither_a_number_nor_a_file(simulate: str) -> None:
    with pytest.raises(UsageFault, match=f"--simulate {simulate}"):
        plan_of("process", simulate=simulate)


def fake_server(path: Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho nats-server: v{version}\n")
    path.chmod(0o755)


def test_a_server_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_server(tmp_path / "nats-server", "2.12.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_server() == tmp_path / "nats-server"


def test_an_old_server_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server(tmp_path / "nats-server", "2.9.10")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_server() == Path(sys.executable).with_name("nats-server")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    with pytest.raises(GpuyardError, match=r"nats-server is 2\.9\.10.*pip install"):
        find_server()


def test_the_folder_is_the_callers_alone(folder: YardFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700
    path = write_server_config(folder, port=4000, token='to"ken')
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert 'token: "to\\"ken"' in text
    assert "sync_interval: always" in text
    assert 'listen: "127.0.0.1:4000"' in text


def test_one_yard_a_folder(folder: YardFolder) -> None:
    assert folder.holder() is None
    with folder.locked():
        assert folder.holder() == os.getpid()
        with pytest.raises(YardRuns, match=rf"pid {os.getpid()}\); 'gpuyard down' ends it"):
            folder.locked().__enter__()
    assert folder.holder() is None
    with folder.locked():
        pass


def test_port_and_token_are_kept_while_the_port_is_free(folder: YardFolder) -> None:
    port, token = folder.port_and_token()
    assert folder.port_and_token() == (port, token)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        other, same = folder.port_and_token()
    assert other != port
    assert same == token
    (folder.path / "yard.json").write_text("rubbish")
    assert folder.port_and_token()[1] != token


def test_fresh_empties_a_yards_folder_and_no_other(folder: YardFolder) -> None:
    folder.port_and_token()
    (folder.path / "nats" / "data").write_text("x")
    folder.empty()
    assert sorted(p.name for p in folder.path.iterdir()) == ["agent", "coordinator", "log", "nats"]
    assert not (folder.path / "nats" / "data").exists()
    (folder.path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageFault, match=r"holds 'thesis\.tex', which is no yard's"):
        folder.empty()
    assert (folder.path / "thesis.tex").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageFault, match="it is not a folder"):
        YardFolder(tmp_path / "file").make()


def test_children_are_remembered_by_pid_and_start(folder: YardFolder) -> None:
    folder.remember({"agent": os.getpid()})
    assert folder.leftovers() == {"agent": os.getpid()}
    notes = json.loads((folder.path / "children.json").read_text())
    notes["agent"][1] = "1"
    folder.write("children.json", json.dumps(notes))
    assert folder.leftovers() == {}
    folder.write("children.json", "[1, 2]")
    assert folder.leftovers() == {}


def test_no_secret_is_among_the_arguments(folder: YardFolder) -> None:
    plan = Plan(Path("/nats-server"), "process", "2", "none", 2, ())
    started = commands(plan, folder, folder.path / "nats-server.conf")
    assert list(started) == ["nats-server", "coordinator", "agent"]
    assert not any("://" in word for line in started.values() for word in line)
    assert started["agent"][-4:] == ["--simulate", "2", "--gpu-injection", "none"]
    assert "--stop-jobs-on-exit" in started["agent"]
    env = child_environment("nats://t@h", {"GPUYARD_TENANT": "x", "GPUYARD_CA": "y", "A": "b"})
    assert env == {"A": "b", "GPUYARD_URL": "nats://t@h"}


def test_a_port_is_free(folder: YardFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", unused_port()))


@pytest.mark.parametrize(
    ("nodes", "simulate", "line"),
    [
        ([8], "1", "ready: 1 node, 8 simulated GPUs, runtime docker"),
        ([8, 8], "2", "ready: 2 nodes, 16 simulated GPUs, runtime docker"),
        ([1], None, "ready: 1 node, 1 GPU, runtime docker"),
        ([0], None, "ready: 1 node, 0 GPUs, runtime docker"),
    ],
)
def test_the_line_that_scripts_wait_for(nodes: list[int], simulate: str | None, line: str) -> None:
    plan = Plan(Path("/s"), "docker", simulate, None, len(nodes), ())
    assert ready_line(plan, [{"gpus": [{}] * count} for count in nodes]) == line


@pytest.mark.parametrize(
    ("runtime", "gpus", "line"),
    [
        ("docker", 8, "gpuyard run --gpus 1 IMAGE COMMAND"),
        ("process", 8, "gpuyard run --gpus 1 ANY-IMAGE COMMAND"),
        ("docker", 0, "gpuyard run IMAGE COMMAND"),
    ],
)
def test_what_to_try_first_asks_for_no_gpu_where_there_is_none(
    runtime: str, gpus: int, line: str
) -> None:
    plan = Plan(Path("nats-server"), runtime, None, None, 1, ())
    assert first_run(plan, [{"gpus": [{}] * gpus}]) == line
