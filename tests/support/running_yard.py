"""A whole yard for system tests: the real server, coordinators and agents, as real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuyard import Client
from gpuyard.errors import Unavailable
from tests.support.nats_server import MakeNatsServer, NatsServer

T = TypeVar("T")
_STOP_S = 15.0


def eventually(check: Callable[[], T], *, within_s: float = 60.0, what: str = "") -> T:
    """The first true answer of `check`, asked again and again; fails with the last one. A yard
    that does not answer yet is no answer."""
    deadline = time.monotonic() + within_s
    while True:
        answer: T | Unavailable
        try:
            answer = check()
        except Unavailable as fault:
            answer = fault
        else:
            if answer:
                return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what or check}; last: {answer!r}")
        time.sleep(0.05)


class Daemon:
    """One process of the yard with its log; ended by its own pid."""

    def __init__(self, module: str, log: Path, arguments: Sequence[str], **env: str) -> None:
        self.log = log
        self._command = [sys.executable, "-m", module, *arguments]
        self._env = {**os.environ, "GPUYARD_LOG_LEVEL": "debug", **env}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of one that ended by itself; None while it runs, or was stopped."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_S)
            self._process = None

    def stop(self) -> int | None:
        """SIGTERM; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"did not stop: {self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


def keeper_pid(agent_directory: Path) -> int | None:
    """The keeper of the agent with that folder; None where none runs."""
    lock = agent_directory / "keeper" / "lock"
    pid = int(lock.read_text() or 0) if lock.exists() else 0
    command = Path(f"/proc/{pid}/cmdline")
    if pid and command.exists() and os.fsencode(lock.parent) in command.read_bytes():
        return pid
    return None


def end_keeper(agent_directory: Path) -> None:
    if (pid := keeper_pid(agent_directory)) is not None:
        os.kill(pid, signal.SIGKILL)


def end_jobs(agent_directory: Path) -> None:
    """What jobs of the runtime `process` left running: they outlive their agent."""
    for child in agent_directory.glob("nodes/*/attempts/*/*/child"):
        told = child.read_text()
        stat = Path(f"/proc/{told.split()[0]}/stat")
        if stat.exists() and _started(stat.read_text()) == _started(told):
            os.killpg(int(told.split()[0]), signal.SIGKILL)


def _started(stat: str) -> str:
    """When the process of that stat began: no other with its id has that."""
    return stat.rpartition(")")[2].split()[19]


class RunningYard:
    """Verbs of an operator on a yard of this machine. Close it at the end."""

    def __init__(self, server: NatsServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.coordinator = self.add_coordinator("coordinator")
        self.agents: dict[str, Daemon] = {}
        self._clients: list[Client] = []

    def add_coordinator(self, name: str) -> Daemon:
        return Daemon(
            "gpuyard_coordinator",
            self.directory / f"{name}.log",
            ["--url", self.server.url, "--dir", str(self.directory / name)],
        )

    def agent(
        self,
        name: str = "node",
        *,
        runtime: str = "process",
        docker_host: str = "",
        address: str = "",
        **flags: str,
    ) -> Daemon:
        """Starts an agent; `flags` are its options with underscores (`simulate="1"`)."""
        arguments = ["--url", self.server.url, "--dir", str(self.directory / f"agent-{name}")]
        arguments += ["--name", name, "--runtime", runtime]
        for key, value in flags.items():
            arguments += [f"--{key.replace('_', '-')}", value]
        env = {"DOCKER_HOST": docker_host} if docker_host else {}
        env |= {"GPUYARD_ADDRESS": address} if address else {}
        daemon = Daemon("gpuyard_agent", self.directory / f"{name}.log", arguments, **env)
        daemon.start()
        self.agents[name] = daemon
        return daemon

    def keeper_pid(self, name: str = "node") -> int | None:
        """The keeper of an agent, which outlives it; None where none runs."""
        return keeper_pid(self.directory / f"agent-{name}")

    def end_keeper(self, name: str = "node") -> None:
        """SIGKILL for an agent's keeper; nothing where there is none."""
        end_keeper(self.directory / f"agent-{name}")

    def client(self, tenant: str = "default", user: str = "tester") -> Client:
        client = Client(url=self.server.url, tenant=tenant, user=user)
        client.connect()
        self._clients.append(client)
        return client

    def ready(self, nodes: int = 1, *, within_s: float = 60.0) -> Client:
        """A client, once that many nodes take work."""
        client = self.client()

        def are_ready() -> bool:
            return [node["state"] for node in client.nodes()].count("ready") >= nodes

        try:
            eventually(are_ready, within_s=within_s, what=f"{nodes} ready nodes")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from None
        return client

    def cli(
        self, *arguments: str, timeout_s: float = 60, **env: str
    ) -> "subprocess.CompletedProcess[str]":
        """Runs the command line against this yard."""
        return subprocess.run(
            [sys.executable, "-m", "gpuyard.cli", *arguments],
            env={**os.environ, "GPUYARD_URL": self.server.url, "NO_COLOR": "1", **env},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What a command with `--json` prints."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def tails(self) -> str:
        daemons = [self.coordinator, *self.agents.values()]
        return "\n".join(f"--- {d.log.name}\n{d.tail()}" for d in daemons)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for name, daemon in self.agents.items():
            daemon.kill()
            self.end_keeper(name)
            end_jobs(self.directory / f"agent-{name}")
        self.coordinator.kill()


@pytest.fixture
def yard(nats_server: NatsServer, tmp_path: Path) -> Iterator[RunningYard]:
    """A yard with a running coordinator and no agent yet."""
    running = RunningYard(nats_server, tmp_path)
    running.coordinator.start()
    yield running
    running.close()


@pytest.fixture
def second_yard(make_nats_server: MakeNatsServer, tmp_path: Path) -> Iterator[RunningYard]:
    """Another yard on the same machine, with a bus of its own."""
    directory = tmp_path / "second"
    directory.mkdir()
    running = RunningYard(make_nats_server(), directory)
    running.coordinator.start()
    yield running
    running.close()
