"""A yard of real processes for one measurement: nats-server, coordinator, one agent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.report import Unmeasurable
from gpuyard.client.sync_client import Client
from gpuyard.errors import Unavailable
from tests.support.nats_server import NatsServer

STORE_GIB: Final = 2
"""What the yard's streams may take; the rest of the server's store is for a benchmark's own."""
_READY_S: Final = 30.0
_END_S: Final = 15.0
_ROOT: Final = Path(__file__).parent.parent


class Yard:
    """Use it as a context manager: inside, its node is ready. Every acknowledged write is synced.

    `agent` are `GPUYARD_*` settings of the agent. Logs stay in `directory`.
    """

    def __init__(self, directory: Path, *, agent: Mapping[str, str]) -> None:
        self.server = NatsServer(directory / "nats")
        self.node = ""
        """The name of its node, once it is ready."""
        self._directory = directory
        self._config = directory / "coordinator.toml"
        self._agent_settings = agent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def agent_pid(self) -> int:
        return self._processes["gpuyard_agent"].pid

    def client(self) -> Client:
        """A client of tenant `default` that does not look at the caller's own configuration."""
        return Client(url=self.url, tenant="default", user="bench")

    def environment(self) -> dict[str, str]:
        """For programs that are to find this yard and nothing else of the caller's.

        They may keep byte code, as installed ones have it: else each start compiles every source.
        """
        kept = {key: text for key, text in os.environ.items() if not key.startswith("GPUYARD_")}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        return kept | {"GPUYARD_URL": self.url}

    def __enter__(self) -> Self:
        self.server.start()
        try:
            self._config.write_text(f"store_max_gib = {STORE_GIB}\ndir = '{self._config.parent}'\n")
            self.start_coordinator()
            own = {"GPUYARD_DIR": str(self._directory / "agent")}
            self._spawn("gpuyard_agent", own | dict(self._agent_settings))
            self.node = self._wait_for_node()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the agent, then the coordinator, then the server; containers are the caller's."""
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.server.stop()

    def start_coordinator(self) -> None:
        """Starts it; it is not waited for."""
        self._spawn("gpuyard_coordinator", {}, "--config", str(self._config))

    def kill_coordinator(self) -> None:
        """kill -9, and gone when this returns."""
        process = self._processes.pop("gpuyard_coordinator")
        process.kill()
        process.wait()

    def _spawn(self, module: str, settings: Mapping[str, str], *arguments: str) -> None:
        with (self._directory / f"{module}.log").open("ab") as log:
            self._processes[module] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=_ROOT,
                env=self.environment() | dict(settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for_node(self) -> str:
        """The name of the first node that is ready."""
        deadline = time.monotonic() + _READY_S
        found: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            self._check_alive()
            try:
                with self.client() as client:
                    found = client.nodes()
            except Unavailable:
                found = []
            for node in found:
                if node["state"] == "ready":
                    return str(node["name"])
            time.sleep(0.1)
        reasons = [node["reasons"] for node in found]
        raise RuntimeError(f"the node is not ready after {_READY_S:g} s: {reasons}{self._tails()}")

    def _check_alive(self) -> None:
        for module, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{module} ended with {process.returncode}{self._tails()}")

    def _tails(self) -> str:
        logs = [self._directory / f"{module}.log" for module in self._processes]
        return "".join(f"\n{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


def wait_for_state(client: Client, job: str, state: str, *, timeout_s: float = 60.0) -> None:
    """Returns once the job is in that state; RuntimeError where it ends or stays otherwise."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        seen = client.job(job)
        if seen.state == state:
            return
        if seen.is_over:
            break
        time.sleep(0.05)
    raise RuntimeError(f"job {job} is {seen.state}, not {state}: {seen.reason} {seen.message}")


def engine_url() -> str:
    """The address of the machine's engine; Unmeasurable where none answers."""
    from tests.support.engine import Engine

    address = os.environ.get("DOCKER_HOST", "")
    named = address.removeprefix("unix://") if address.startswith("unix://") else ""
    engine = Engine(Path(named or "/var/run/docker.sock"))
    if reason := engine.silence():
        raise Unmeasurable(reason)
    return engine.url
