"""The agent's end of the keeper's socket, and what it reads of the keeper's file."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuyard_agent.keeper import store
from gpuyard_agent.keeper.daemon import MAX_REQUEST_BYTES, socket_address
from gpuyard_agent.keeper.ledger import Fence

ANSWER_S: Final = 2.0
"""A keeper that takes longer than this does not answer."""
_LOG_BYTES: Final = 1024 * 1024
_KEPT_ENV: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG")


class KeeperSilent(Exception):
    """The keeper does not answer, or says no."""


class KeeperClient:
    """Asks the keeper of one folder, one question at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The keeper's answer (`held`, `found`); raises KeeperSilent."""
        async with self._lock:
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await self._exchange(request)
            except (OSError, TimeoutError, ValueError, asyncio.LimitOverrunError) as fault:
                self._drop()
                raise KeeperSilent(str(fault) or "no answer in time") from fault
            except asyncio.CancelledError:
                self._drop()  # its answer would be taken for that of the next question
                raise
        if "error" in answer:
            raise KeeperSilent(str(answer["error"]))
        return answer

    def records(self) -> dict[str, Fence]:
        """All that the keeper's file holds."""
        try:
            return store.load(str(self.directory), store.boot_id())
        except (OSError, store.Damaged):
            return {}

    async def close(self) -> None:
        streams = self._streams
        self._drop()
        if streams is not None:
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the keeper went away")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError("not an answer")
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            return await asyncio.open_unix_connection(
                socket_address(folder), limit=MAX_REQUEST_BYTES
            )
        finally:
            os.close(folder)

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            with contextlib.suppress(OSError):
                streams[1].close()


class DetachedKeeper:
    """Starts a keeper in a session of its own, so that it outlives this process however it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts one unless that of the last call is still there; raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._directory / "log"
        mode = "wb" if path.exists() and path.stat().st_size > _LOG_BYTES else "ab"
        with path.open(mode) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuyard_agent.keeper", self._directory, "--while-needed"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT_ENV if name in os.environ},
                start_new_session=True,
            )

    def let_go(self) -> None:
        """It is to outlive this process: no complaint about a child that was not waited for."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0
