"""A real keeper for tests, and questions to it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuyard_agent.keeper.client import KeeperClient
from gpuyard_agent.keeper.ledger import Fence


def boot_now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def fence_in(
    seconds: float, *, grace_s: float = 0.0, reach: tuple[str, str] | None = None
) -> dict[str, Any]:
    """The record of a fence that is over in so many seconds."""
    fence = Fence(boot_now() + seconds, 900.0, grace_s)
    fence.reach = reach
    return fence.as_record()


def wait_until(is_so: Callable[[], object], *, within_s: float = 10.0, what: str = "") -> float:
    """Seconds that it took to become true; fails after `within_s`."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what or is_so}")
        time.sleep(0.01)
    return time.monotonic() - began


class KeeperProcess:
    """`python -m gpuyard_agent.keeper` in a folder; ended by its own pid."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once its socket is there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "socket").unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuyard_agent.keeper", self.directory, *self._flags],
                stdout=log,
                stderr=log,
            )
        wait_until((self.directory / "socket").exists, what=self.said())

    async def ask(self, **question: Any) -> dict[str, Any]:
        """One question over a connection of its own; raises KeeperSilent."""
        client = KeeperClient(self.directory)
        try:
            return await client.ask(question)
        finally:
            await client.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def left(self, within_s: float) -> int:
        """The exit code, once it has gone by itself."""
        assert self._process is not None
        return self._process.wait(within_s)

    def said(self) -> str:
        log = self.directory / "log"
        return log.read_text() if log.exists() else ""
