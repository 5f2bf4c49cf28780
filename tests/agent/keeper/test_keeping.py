"""The agent's view of a real keeper: started where nobody does, known to answer or not."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from gpuyard_agent.keeper.client import DetachedKeeper, KeeperClient
from gpuyard_agent.keeper.ledger import Fence
from gpuyard_agent.loop.assembly import make_keeper
from gpuyard_agent.loop.keeping import HostKeeper
from gpuyard_agent.settings import AgentSettings
from tests.support.keeper import KeeperProcess, boot_now


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.02)


def pid_in(directory: Path) -> int:
    return int((directory / "lock").read_text())


async def test_one_is_started_and_started_anew_and_outlives_the_agent(tmp_path: Path) -> None:
    changes: list[bool] = []
    mine = HostKeeper(KeeperClient(tmp_path), detached=DetachedKeeper(tmp_path))
    mine.on_change = lambda: changes.append(mine.answers)
    mine.open()
    await until(lambda: mine.answers)
    first = pid_in(tmp_path)
    assert os.getsid(first) == first
    fence = Fence(boot_now() + 60, 60, 0)
    answer = await mine.ask(arm={"n/t/j/1": fence})
    assert answer is not None
    assert answer.held == {"n/t/j/1": fence.deadline}
    os.kill(first, signal.SIGKILL)
    await until(lambda: changes == [True, False, True])
    second = pid_in(tmp_path)
    assert second != first
    assert list(mine.records()) == ["n/t/j/1"]
    await mine.close()
    os.kill(second, signal.SIGKILL)  # fails were it gone


async def test_where_a_service_manager_sees_to_it_none_is_started(tmp_path: Path) -> None:
    settings = AgentSettings(dir=str(tmp_path), runtime="process")
    mine = make_keeper(settings, {"NOTIFY_SOCKET": "/run/systemd/notify"})
    assert mine is not None
    mine.open()
    await asyncio.sleep(0.5)
    assert not mine.answers
    assert not (tmp_path / "keeper").exists()
    await mine.close()
    keeper = KeeperProcess(tmp_path / "keeper")
    keeper.start()
    again = make_keeper(settings, {"NOTIFY_SOCKET": "/run/systemd/notify"})
    assert again is not None
    again.open()
    await until(lambda: again.answers)
    await again.close()
    keeper.kill()


async def test_a_frozen_keeper_is_noticed_and_asked_nothing_meanwhile(tmp_path: Path) -> None:
    keeper = KeeperProcess(tmp_path)
    keeper.start()
    mine = HostKeeper(KeeperClient(tmp_path), detached=None)
    mine.open()
    await until(lambda: mine.answers)
    keeper.signal(signal.SIGSTOP)
    await until(lambda: not mine.answers)
    began = boot_now()
    assert await mine.ask(release=["a"]) is None
    assert boot_now() - began < 1
    keeper.signal(signal.SIGCONT)
    await until(lambda: mine.answers)
    await mine.close()
    keeper.kill()


def test_simulated_attempts_have_nothing_to_be_kept() -> None:
    assert make_keeper(AgentSettings(simulate="50"), {}) is None
    assert make_keeper(AgentSettings(runtime="simulated"), {}) is None
