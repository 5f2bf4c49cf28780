"""A real nats-server for one test or one module, with the faults that tests need."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.processes import end

_START_S = 10.0
_STOP_S = 10.0


class NatsServer:
    """A nats-server on loopback with JetStream on disk; url and store outlive every restart.

    Every acknowledged write is synced, as in production. Use it as a context manager, or call
    `stop` at the end.
    """

    def __init__(self, directory: Path, *, token: str | None = None, extra: str = "") -> None:
        """Nothing runs until `start`. `extra` is appended to the configuration as it stands."""
        self.token = token
        self.port = 0
        self.log = directory / "nats-server.log"
        self.store = directory / "jetstream"
        """Everything that it keeps."""
        self._directory = directory
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect, the token included."""
        login = f"{self.token}@" if self.token else ""
        return f"nats://{login}127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """What it calls itself, once it has a port."""
        return self._name(self.port)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    def start(self) -> None:
        """Starts it and returns once it serves clients, on the same port as before if it had one.

        Raises RuntimeError with the end of its log when it does not come up.
        """
        if self._process is not None:
            raise RuntimeError("nats-server already runs")
        tries = 1 if self.port else 5
        for left in reversed(range(tries)):
            port = self.port or unused_port()
            self._spawn(port)
            if self._serves(port):
                self.port = port
                return
            self.kill()
            if not left:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"nats-server did not come up on port {port}:\n{tail}")

    def stop(self) -> None:
        """Ends it with SIGTERM, frozen or not; does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it with SIGKILL; does nothing when it is not running."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """`stop` and `start`; after a `kill`, only `start`."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stops it with SIGSTOP: connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)
        # The last of its threads may go on for a moment, and answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Lets a frozen server go on."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("nats-server is not running")
        return self._process

    def _spawn(self, port: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "nats-server.conf"
        config.write_text(self._config(port))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at pytest must not reach it before the teardown
            )

    def _config(self, port: int) -> str:
        lines = [
            f"server_name: {json.dumps(self._name(port))}",
            f'listen: "127.0.0.1:{port}"',
            "jetstream {",
            f"  store_dir: {json.dumps(str(self.store))}",
            "  sync_interval: always",
            "  max_memory_store: 256MB",
            "  max_file_store: 4GB",
            "}",
        ]
        if self.token:
            lines.append(f"authorization {{ token: {json.dumps(self.token)} }}")
        return "\n".join([*lines, self._extra, ""])

    def _name(self, port: int) -> str:
        return f"{self._directory.name}-{port}"

    def _serves(self, port: int) -> bool:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._running().poll() is None:
            if _server_name(port) == self._name(port):
                return True
            time.sleep(0.02)
        return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, number, within_s=_STOP_S)


MakeNatsServer = Callable[..., NatsServer]


@pytest.fixture
def make_nats_server(tmp_path: Path) -> Iterator[MakeNatsServer]:
    """`make_nats_server(token=None, extra="")` starts one more server; all end with the test."""
    servers: list[NatsServer] = []

    def make(*, token: str | None = None, extra: str = "") -> NatsServer:
        server = NatsServer(tmp_path / f"nats-{len(servers)}", token=token, extra=extra)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def nats_server(make_nats_server: MakeNatsServer) -> NatsServer:
    """A server of this test's own: it may be killed, frozen and restarted."""
    return make_nats_server()


@pytest.fixture(scope="module")
def module_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests of a module, which leave it running and use names of their own."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


def _binary() -> str:
    beside_python = Path(sys.executable).with_name("nats-server")
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("no nats-server beside this Python or on the PATH: make venv")
    return found


def unused_port() -> int:
    """A port of loopback that nothing listens on."""
    # Below the range that outgoing connections take theirs from: while the server is down in a
    # restart test, no client of a parallel test can land on its port.
    first_ephemeral = 32768
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if range_file.exists():
        first_ephemeral = int(range_file.read_text().split()[0])
    low, high = (10240, first_ephemeral) if first_ephemeral > 12000 else (61000, 65536)
    while True:
        port = random.SystemRandom().randrange(low, high)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _server_name(port: int) -> str | None:
    """What the server on that port calls itself, None while none speaks."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            line = connection.makefile("rb").readline()
    except OSError:
        return None
    if not line.startswith(b"INFO "):
        return None
    name: str = json.loads(line[5:]).get("server_name", "")
    return name
