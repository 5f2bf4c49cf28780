"""The simulated runtime: attempts last as their labels say, on one timer for thousands."""

import asyncio
import time
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.launch import Launch, LaunchContext, launch_of
from gpuyard_agent.core.memory import Memory
from gpuyard_agent.core.times import epoch_s
from gpuyard_agent.runtime import LogPosition, Status
from gpuyard_agent.simulated_runtime import SimulatedRuntime, Timers
from tests.support.agent_builders import (
    BOOT,
    NODE,
    YARD,
    attempt,
    ended,
    entry,
    intent,
    key,
    started,
)

CONTEXT = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")


def launch(job: str = "job-1", **labels: str) -> Launch:
    named: dict[str, Any] = {f"sim.{name}": value for name, value in labels.items()}
    return launch_of(entry(job, labels=named), CONTEXT)


async def test_it_runs_for_its_duration_and_ends_with_its_code() -> None:
    runtime = SimulatedRuntime(Timers())
    loop = asyncio.get_running_loop()
    began = loop.time()
    seen = await runtime.launch(launch(duration="0.05s", exit_code="3"))
    assert seen.status is Status.RUNNING
    assert (await runtime.wait(seen.key)).code == 3
    assert loop.time() - began >= 0.05
    (over,) = await runtime.seen()
    assert over.status is Status.EXITED
    assert over.exit is not None


async def test_a_second_launch_adopts_the_first() -> None:
    runtime = SimulatedRuntime(Timers())
    assert await runtime.launch(launch()) is await runtime.launch(launch())


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), ("SIGKILL", 137)])
async def test_signals_end_it_at_once(signal: str, code: int) -> None:
    runtime = SimulatedRuntime(Timers())
    seen = await runtime.launch(launch(duration="1h"))
    await runtime.signal(seen.key, signal)
    assert (await runtime.wait(seen.key)).code == code
    await runtime.signal(seen.key, "SIGKILL")
    assert (await runtime.wait(seen.key)).code == code


async def test_what_was_removed_is_gone_and_its_timer_harmless() -> None:
    runtime = SimulatedRuntime(Timers())
    seen = await runtime.launch(launch(duration="0.01s"))
    await runtime.remove(seen.key)
    await runtime.remove(seen.key)
    await asyncio.sleep(0.02)
    assert await runtime.seen() == []
    with pytest.raises(RuntimeFailure):
        await runtime.wait(seen.key)


async def test_it_has_no_output() -> None:
    runtime = SimulatedRuntime(Timers())
    seen = await runtime.launch(launch(duration="0.01s"))
    assert [piece async for piece in runtime.logs(seen.key, LogPosition())] == []
    assert [piece async for piece in runtime.logs(key("other"), LogPosition())] == []


@pytest.mark.parametrize("labels", [{"duration": "soon"}, {"exit_code": "x"}, {"exit_code": "256"}])
async def test_labels_that_mean_nothing_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        await SimulatedRuntime(Timers()).launch(launch(**labels))
    assert caught.value.reason == "invalid"


async def test_thousands_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_at, armed = loop.call_at, list[asyncio.TimerHandle]()

    def counted(when: float, *call: Any, **options: Any) -> asyncio.TimerHandle:
        if armed and not armed[-1].cancelled():
            assert armed[-1].when() <= loop.time(), "a second timer beside one that still waits"
        armed.append(call_at(when, *call, **options))
        return armed[-1]

    monkeypatch.setattr(loop, "call_at", counted)
    runtime = SimulatedRuntime(Timers())
    for i in range(3000):
        await runtime.launch(launch(f"later-{i}", duration=f"{4000 - i}s"))
    assert [handle.cancelled() for handle in armed] == [True] * 2999 + [False]
    for i in range(3000):
        await runtime.launch(launch(f"soon-{i}", duration="0.2s"))
    ends = [await runtime.wait(key(f"soon-{i}")) for i in range(3000)]
    assert all(end.code == 0 for end in ends)
    waiting = [handle for handle in armed if not handle.cancelled() and handle.when() > loop.time()]
    assert waiting == [armed[-1]]


async def test_timers_fire_in_order_of_time_whatever_the_order_of_asking() -> None:
    timers, fired = Timers(), list[str]()
    now = asyncio.get_running_loop().time()
    timers.at(now + 0.03, lambda: fired.append("late"))
    timers.at(now + 0.01, lambda: fired.append("early"))
    timers.at(now + 0.02, lambda: fired.append("middle"))
    await asyncio.sleep(0.05)
    assert fired == ["early", "middle", "late"]


def remembered(job: str, *, at: float, boot_id: str = BOOT, **facts: Any) -> Attempt:
    """An attempt of 10 s that ends with 3, started at `at` on the boot clock."""
    want = entry(job, labels={"sim.duration": "10s", "sim.exit_code": "3"})
    return attempt(want, launched=boot_id, started=started(at, boot_id=boot_id), **facts)


async def test_a_restarted_agent_finds_its_attempts_as_far_as_they_have_come() -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    memory = Memory()
    for made in (
        remembered("runs", at=now - 9.95),
        remembered("over", at=now - 20),
        remembered("stopped", at=now - 5, intent=intent(at=now - 3)),
        remembered("told", at=now - 20, result=ended()),
        remembered("of-another-boot", at=now - 5, boot_id="boot-0"),
        attempt(entry("accepted")),
    ):
        memory.attempts[made.key] = made
    runtime = SimulatedRuntime(Timers(), memory=memory, boot_id=BOOT, boot_clock=loop.time)
    await runtime.open()

    found = {seen.key.job: seen for seen in await runtime.seen()}

    assert set(found) == {"runs", "over", "stopped"}
    assert found["runs"].status is Status.RUNNING
    assert found["over"].exit is not None and found["over"].exit.code == 3
    age_s = time.time() - (epoch_s(found["over"].exit.ended_at) or 0)
    assert 9.9 < age_s < 15
    assert found["stopped"].exit is not None and found["stopped"].exit.code == 143
    assert (await asyncio.wait_for(runtime.wait(key("runs")), 5)).code == 3
