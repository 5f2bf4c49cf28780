"""A socket in front of a Docker engine that loses or withholds the answers a test names."""

import contextlib
import re
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.engine import Engine

_PIECE = 64 * 1024


@dataclass(slots=True)
class Fault:
    """What happens to requests whose first line matches, as often as `left` says."""

    pattern: re.Pattern[bytes]
    reaches_engine: bool
    left: int
    happened: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait(self, timeout_s: float = 20.0) -> None:
        """Returns when it has happened once more; fails if it does not."""
        assert self.happened.acquire(timeout=timeout_s), f"nothing matched {self.pattern.pattern!r}"


class EngineProxy(Engine):
    """Use as a context manager; what no fault names goes through untouched, both ways."""

    def __init__(self, engine: Engine) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gpuyard-proxy-")
        super().__init__(Path(self._directory.name) / "docker.sock")
        self._engine = engine
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)

    def lose_answer(self, pattern: str, *, times: int = 1) -> Fault:
        """The engine does it; the connection breaks before its answer comes."""
        return self._add(pattern, reaches_engine=True, times=times)

    def withhold(self, pattern: str, *, times: int = 1_000_000) -> Fault:
        """Never reaches the engine and is never answered: a call that hangs."""
        return self._add(pattern, reaches_engine=False, times=times)

    def heal(self) -> None:
        """No more faults; what hangs already goes on hanging."""
        with self._lock:
            self._faults.clear()

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._directory.cleanup()

    def _add(self, pattern: str, *, reaches_engine: bool, times: int) -> Fault:
        fault = Fault(re.compile(pattern.encode()), reaches_engine, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine, contextlib.suppress(OSError):
            engine.connect(str(self._engine.path))
            losing: Fault | None = None
            for source, data in self._pieces(client, engine):
                if source is engine:
                    if losing is not None:
                        losing.happened.release()
                        return
                    client.sendall(data)
                    continue
                fault = self._fault_of(data)
                if fault is not None and not fault.reaches_engine:
                    fault.happened.release()
                    self._closing.wait()
                    return
                losing = fault or losing
                engine.sendall(data)

    def _pieces(
        self, client: socket.socket, engine: socket.socket
    ) -> Iterator[tuple[socket.socket, bytes]]:
        while not self._closing.is_set():
            ready, _, _ = select.select([client, engine], [], [], 0.5)
            for source in ready:
                data = source.recv(_PIECE)
                if not data:
                    return
                yield source, data

    def _fault_of(self, data: bytes) -> Fault | None:
        """The fault that a request meets; bodies and later pieces begin with no method."""
        line = data.partition(b"\r\n")[0]
        if not line.endswith(b" HTTP/1.1"):
            return None
        with self._lock:
            for fault in self._faults:
                if fault.left and fault.pattern.search(line):
                    fault.left -= 1
                    return fault
        return None
