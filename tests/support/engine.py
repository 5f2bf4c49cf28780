"""Docker engines for tests: the machine's own, and private ones that a test may break."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import docker
import pytest

from tests.support.busybox import BUSYBOX, busybox_path, import_busybox
from tests.support.processes import end, is_alive

_START_S = 40.0
_STOP_S = 30.0
_NEEDED = ("dockerd", "ip", "iptables", "nsenter")
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


class Engine:
    """A Docker engine behind a socket of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path  # of its socket

    @property
    def url(self) -> str:
        """What `DOCKER_HOST` and the Docker SDK take."""
        return f"unix://{self.path}"

    def api(self, *, timeout_s: float = 60) -> docker.APIClient:
        """A client that the caller closes: `with engine.api() as api`."""
        return docker.APIClient(base_url=self.url, version="auto", timeout=timeout_s)

    def silence(self) -> str | None:
        """Why it does not answer, None when it does."""
        # Asked by hand: the SDK's client leaves its socket open when its first call fails.
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(self.path))
                connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                answer = connection.recv(64).partition(b"\r\n")[0].decode(errors="replace")
        except OSError as error:
            return f"no Docker engine answers on {self.path}: {error.strerror or error}"
        if " 200 " in answer:
            return None
        return f"no Docker engine answers on {self.path}: it says {answer!r}"


class PrivateEngine(Engine):
    """A second dockerd with its own network namespace and store, so that a test may break it.

    Use it as a context manager, or call `close` at the end: it leaves no process, mount,
    namespace or file behind. Images start empty: `import_busybox(engine)`.
    """

    def __init__(self, *flags: str, toolkit: bool = False) -> None:
        """Nothing runs until `start`. `flags` go to dockerd, for example `--live-restore`.

        With `toolkit` the engine accepts GPU requests, by a hook that does nothing.
        """
        # Not pytest's tmp_path: containerd's sockets need a short path.
        self._root = Path(tempfile.mkdtemp(prefix="gpuyard-engine-"))
        super().__init__(self._root / "docker.sock")
        self.log = self._root / "dockerd.log"
        self._flags = flags
        self._namespace = self._root.name
        self._process: subprocess.Popen[bytes] | None = None
        self._commands = _PATH
        if toolkit:
            self._commands = os.pathsep.join([str(self._toolkit_double()), _PATH])

    @property
    def namespace(self) -> str:
        """The name of its network namespace, as `ip netns` has it."""
        return self._namespace

    @property
    def pid(self) -> int:
        """The process id of the running dockerd."""
        return self._running().pid

    def start(self) -> None:
        """Starts dockerd and returns once it answers; raises RuntimeError with its log if not."""
        if self._process is not None:
            raise RuntimeError("dockerd already runs")
        if not Path("/run/netns", self._namespace).exists():
            subprocess.run(["ip", "netns", "add", self._namespace], check=True)
        for pid_file in ("docker.pid", "exec/containerd/containerd.pid"):
            _forget_if_dead(self._root / pid_file)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, "PATH": self._commands},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at pytest must not reach it before the teardown
            )
        deadline = time.monotonic() + _START_S
        while self.silence():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"dockerd did not come up:\n{tail}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends dockerd with SIGTERM, frozen or not; containers end too, unless live-restored."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends dockerd with SIGKILL; its containers run on."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """`stop` and `start`; after a `kill`, only `start`."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stops dockerd with SIGSTOP: its socket accepts and nothing answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # The last of its threads may go on for a moment, and answer.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Lets a frozen dockerd go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends it with all its containers and removes what it left."""
        self._end(signal.SIGTERM)
        _kill_all(_processes_of(self._root))
        _unmount_below(self._root)
        subprocess.run(["ip", "netns", "del", self._namespace], check=False, capture_output=True)
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
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

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("dockerd is not running")
        return self._process

    def _command(self) -> list[str]:
        # nsenter and not `ip netns exec`: that one mounts a fresh /sys, which hides the cgroups.
        return [
            "nsenter",
            f"--net=/run/netns/{self._namespace}",
            "dockerd",
            f"--host={self.url}",
            f"--data-root={self._root / 'data'}",
            f"--exec-root={self._root / 'exec'}",
            f"--pidfile={self._root / 'docker.pid'}",
            *self._flags,
        ]

    def _toolkit_double(self) -> Path:
        directory = self._root / "toolkit"
        directory.mkdir()
        hook = directory / "nvidia-container-runtime-hook"
        hook.write_text("#!/bin/sh\nexit 0\n")
        hook.chmod(0o755)
        return directory

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, number, within_s=_STOP_S)


MakePrivateEngine = Callable[..., PrivateEngine]


@pytest.fixture(scope="session")
def docker_engine() -> Engine:
    """The engine that the machine runs, or a skip that says why there is none.

    Tests share it: they name what they make after themselves and remove it.
    """
    address = os.environ.get("DOCKER_HOST", "")
    named = address.removeprefix("unix://") if address.startswith("unix://") else ""
    engine = Engine(Path(named or "/var/run/docker.sock"))
    reason = engine.silence()
    if reason:
        pytest.skip(reason)
    return engine


@pytest.fixture(scope="session")
def busybox_image(docker_engine: Engine) -> str:
    """The name of a small image on `docker_engine`, with a shell and the usual commands."""
    _skip_without_busybox()
    with docker_engine.api() as api:
        import_busybox(api)
    return BUSYBOX


@pytest.fixture
def private_engine() -> Iterator[MakePrivateEngine]:
    """`private_engine(*flags, toolkit=False, busybox=True)` starts one; all end with the test."""
    skip_without_private_engines()
    engines: list[PrivateEngine] = []

    def make(*flags: str, toolkit: bool = False, busybox: bool = True) -> PrivateEngine:
        if busybox:
            _skip_without_busybox()
        engine = PrivateEngine(*flags, toolkit=toolkit)
        engines.append(engine)
        engine.start()
        if busybox:
            with engine.api() as api:
                import_busybox(api)
        return engine

    yield make
    for engine in engines:
        engine.close()


def skip_without_private_engines() -> None:
    """Skips the test, saying why, where no second dockerd can be started."""
    if os.geteuid() != 0:
        pytest.skip("a private Docker engine needs root")
    missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(f"a private Docker engine needs {', '.join(missing)}")


def _skip_without_busybox() -> None:
    if busybox_path() is None:
        pytest.skip("no static busybox to make an image of: apt-get install busybox-static")


def _forget_if_dead(pid_file: Path) -> None:
    # Killed daemons leave these, and dockerd takes even a zombie for a running containerd.
    if pid_file.exists() and not is_alive(int(pid_file.read_text())):
        pid_file.unlink()


def _processes_of(root: Path) -> list[int]:
    """Whatever names the engine's directory in its arguments, and the children of those.

    That is containerd, the shims and, as the shims' children, each container's first process.
    """
    parents: dict[int, int] = {}
    named: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
        parents[int(entry.name)] = parent
        if os.fsencode(root) in arguments:
            named.add(int(entry.name))
    return [pid for pid, parent in parents.items() if pid in named or parent in named]


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(is_alive(pid) for pid in pids):
        time.sleep(0.05)


def _unmount_below(root: Path) -> None:
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((p for p in points if Path(p).is_relative_to(root)), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
