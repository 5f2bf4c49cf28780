"""`gpuyard` as a process of its own, on pipes or on a terminal, with a clean environment."""

import asyncio
import contextlib
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

COMMAND = [sys.executable, "-m", "gpuyard.cli"]


def environment(url: str | None, **more: str) -> dict[str, str]:
    """The caller's without its own GPUYARD_*: a test must find no other yard."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUYARD_")}
    kept |= {"HOME": "/nonexistent", "TERM": "xterm", "COLUMNS": "80"}
    return kept | ({"GPUYARD_URL": url} if url else {}) | {"GPUYARD_USER": "alice"} | more


@dataclass(frozen=True)
class Outcome:
    code: int
    out: bytes
    err: str


async def gpuyard(
    url: str | None, *arguments: str, stdin: bytes = b"", cwd: Path | None = None, **env: str
) -> Outcome:
    """Runs a command to its end."""
    async with started(url, *arguments, cwd=cwd, **env) as process:
        out, err = await asyncio.wait_for(process.communicate(stdin), 30)
        return Outcome(process.returncode or 0, out, err.decode())


@contextlib.asynccontextmanager
async def started(
    url: str | None, *arguments: str, cwd: Path | None = None, **env: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command on pipes, ended with the block at the latest."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=cwd or Path("/"),
        env=environment(url, **env),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


class OnTerminal:
    """A command whose stdin, stdout and stderr are one terminal; an async context manager."""

    def __init__(
        self, url: str, *arguments: str, rows: int = 24, columns: int = 80, **env: str
    ) -> None:
        self._url = url
        self._arguments = arguments
        self._size = (rows, columns)
        self._env = {"COLUMNS": str(columns), **env}
        self._master = -1
        self._process: asyncio.subprocess.Process | None = None
        self.shown = ""

    async def __aenter__(self) -> Self:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        termios.tcsetwinsize(slave, self._size)
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *self._arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd="/",
            env=environment(self._url, **self._env),
            # A session of its own with this terminal, so that Ctrl-C reaches it and only it.
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """The terminal goes away, as when a window is closed or a line drops."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def settings(self) -> list[object]:
        """How the terminal is set now."""
        return termios.tcgetattr(self._master)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def see(self, text: str, within_s: float = 15.0) -> None:
        """Waits until the terminal has shown `text`."""
        async with asyncio.timeout(within_s):
            while text not in self.shown:
                self._read()
                await asyncio.sleep(0.02)

    async def end(self, within_s: float = 15.0) -> int:
        assert self._process is not None
        code = await asyncio.wait_for(self._process.wait(), within_s)
        self._read()
        return code

    def _read(self) -> None:
        if self._master < 0:
            return
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._master, 65536):
                self.shown += data.decode(errors="replace")


def _take_terminal() -> None:
    import fcntl

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
