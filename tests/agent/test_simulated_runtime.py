"""The simulated runtime: attempts last as their labels say, on one timer for thousands."""

import asyncio
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.launch import Launch, LaunchContext, launch_of
from gpuyard_agent.runtime import LogPosition, Status
from gpuyard_agent.simulated_runtime import SimulatedRuntime, Timers
from tests.support.agent_builders import NODE, YARD, entry, key

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


async def test_thousands_share_one_timer() -> None:
    timers = Timers()
    runtime = SimulatedRuntime(timers)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for i in range(3000):
        await runtime.launch(launch(f"job-{i}", duration="0.2s"))
    ends = [await runtime.wait(key(f"job-{i}")) for i in range(3000)]
    assert all(end.code == 0 for end in ends)
    assert loop.time() - began < 5


async def test_timers_fire_in_order_of_time_whatever_the_order_of_asking() -> None:
    timers, fired = Timers(), list[str]()
    now = asyncio.get_running_loop().time()
    timers.at(now + 0.03, lambda: fired.append("late"))
    timers.at(now + 0.01, lambda: fired.append("early"))
    timers.at(now + 0.02, lambda: fired.append("middle"))
    await asyncio.sleep(0.05)
    assert fired == ["early", "middle", "late"]
