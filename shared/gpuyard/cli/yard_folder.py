"""The folder of a yard that `gpuyard up` runs: its lock, its settings, its files.

One yard a folder: the lock is held for as long as the yard runs, by the kernel, so that a yard
that was killed leaves nothing that looks alive.
"""

import fcntl
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpuyard.cli.ending import UsageFault
from gpuyard.client.yard_file import YARD_FILE, lives, started_ticks
from gpuyard.errors import GpuyardError

MAX_LOG_BYTES: Final = 16 * 1024 * 1024
MIB: Final = 1024 * 1024
STORE_MIB: Final = 5 * 1024
"""What the bus may store where the disk has room."""
LEAST_STORE_MIB: Final = 256
_MARKER: Final = "yard.json"
_LOCK: Final = "lock"


class YardRuns(GpuyardError):
    """Another process runs a yard in the folder."""


class YardFolder:
    """`<dir>` with everything in it; made on first use, for the caller alone."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.env_file = self.path / YARD_FILE

    @property
    def log_dir(self) -> Path:
        return self.path / "log"

    def make(self) -> None:
        """Create the folder, or raise UsageFault where it is not one of ours to use."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageFault(f"--dir {self.path}: it is not a folder")
        is_new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        if is_new or self.path.stat().st_uid == os.geteuid():
            # Tokens, states and outputs of jobs: nobody else's business.
            self.path.chmod(0o700)
        else:
            raise UsageFault(f"--dir {self.path}: it belongs to somebody else")
        for name in ("log", "nats", "coordinator", "agent"):
            (self.path / name).mkdir(exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; raises YardRuns with the pid where a yard runs in it."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise YardRuns(
                    f"a yard runs in {self.path} already (pid {self.holder() or 'unknown'}); "
                    "'gpuyard down' ends it"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> int | None:
        """The process that runs the yard of this folder; None where none does."""
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            return int(text) if text.isdigit() else None
        finally:
            os.close(descriptor)
        return None

    def empty(self) -> None:
        """Remove everything but the lock; raises UsageFault where it is no yard's folder."""
        known = {_MARKER, _LOCK, YARD_FILE, "children.json", "log", "nats", "coordinator", "agent"}
        known |= {"nats-server.conf", "coordinator.toml"}
        strange = sorted({entry.name for entry in self.path.iterdir()} - known)
        if strange:
            raise UsageFault(
                f"--fresh: {self.path} holds {strange[0]!r}, which is no yard's; remove it yourself"
            )
        for entry in self.path.iterdir():
            if entry.name == _LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self.make()

    def port_and_token(self) -> tuple[int, str]:
        """Kept over restarts where the port is still free; the token is as secret as the folder."""
        try:
            kept = json.loads((self.path / _MARKER).read_text())
            port, token = int(kept["port"]), str(kept["token"])
        except (OSError, ValueError, KeyError, TypeError):
            port, token = 0, secrets.token_hex(16)
        if not _is_free(port):
            port = unused_port()
        self.write(_MARKER, json.dumps({"port": port, "token": token}) + "\n")
        return port, token

    def write(self, name: str, text: str) -> Path:
        """A file of the folder, for the caller alone, in one step."""
        path = self.path / name
        fresh = path.with_name(f"{name}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.replace(path)
        return path

    def log_file(self, name: str) -> Path:
        """Where a part writes; one that grew large in earlier runs is set aside."""
        path = self.log_dir / f"{name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return path

    def store_mib(self) -> int:
        """How much the bus may keep here: at most four fifths of the disk that is left."""
        left = shutil.disk_usage(self.path).free // MIB
        kept = sum(f.stat().st_size for f in (self.path / "nats").rglob("*") if f.is_file()) // MIB
        size = min(STORE_MIB, (left + kept) * 4 // 5)
        if size < LEAST_STORE_MIB:
            raise GpuyardError(
                f"the disk under {self.path} has {left} MiB left, and a yard needs "
                f"{LEAST_STORE_MIB * 5 // 4}; make room, or choose another --dir"
            )
        return size

    def remember(self, children: dict[str, int]) -> None:
        """Note the processes that run, so that they can be ended even after a crash of ours."""
        notes = {name: [pid, started_ticks(pid)] for name, pid in children.items()}
        self.write("children.json", json.dumps(notes) + "\n")

    def leftovers(self) -> dict[str, int]:
        """Processes noted by an earlier run that still live, by name."""
        try:
            notes: dict[str, Any] = json.loads((self.path / "children.json").read_text())
            return {
                name: int(pid)
                for name, (pid, started) in notes.items()
                if started and lives(int(pid), str(started))
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


def _is_free(port: int) -> bool:
    if not 0 < port < 65536:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def unused_port() -> int:
    """A port that nobody listens on, outside the range that outgoing connections take theirs from.

    While the server restarts, no client of another program can then land on its port.
    """
    first_ephemeral = 32768
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        first_ephemeral = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    low, high = (10240, first_ephemeral) if first_ephemeral > 12000 else (61000, 65536)
    while True:
        port = low + secrets.randbelow(high - low)
        if _is_free(port):
            return port
