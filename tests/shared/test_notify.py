"""What a service manager is told, as it hears it on its socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard import notify


class Manager:
    """The end of the socket that systemd holds."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def hears(self) -> str:
        told = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, 400), 20)
        return told.decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    listening = Manager(tmp_path / "notify")
    yield listening
    listening.close()


async def test_a_life_from_its_start_to_its_end(manager: Manager) -> None:
    lines = ["starts"]
    with notify.life(lambda: lines[-1]) as life:
        assert await manager.hears() == "STATUS=starts"
        lines.append("works")
        life.ready()
        life.ready()
        assert await manager.hears() == "READY=1\nSTATUS=works"
        life.look()
        lines.append("rests")
        life.look()
        assert await manager.hears() == "STATUS=rests", "a line that did not change is told once"
        life.stopping(within_s=90)
        assert await manager.hears() == "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000"
    lines.append("told by nobody")
    with notify.life(lambda: lines[-1]):
        assert await manager.hears() == "STATUS=told by nobody", "it ended once"
    assert await manager.hears() == "STOPPING=1"


async def test_signs_of_life_bring_the_line_of_status(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    lines = ["one"]
    with notify.life(lambda: lines[-1]):
        assert [await manager.hears() for _ in range(2)] == ["STATUS=one", "WATCHDOG=1"]
        lines.append("two")
        assert await manager.hears() == "WATCHDOG=1"
        assert await manager.hears() == "STATUS=two"


async def test_where_nobody_listens_nothing_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    asked: list[str] = []
    with notify.life(lambda: asked.append("") or "line") as life:  # type: ignore[func-returns-value]
        life.ready()
        life.look()
    assert not asked
