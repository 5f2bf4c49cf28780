"""Engines whose answers get lost, that hang on one container, or cannot remove one."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.containers import Status
from gpuyard_agent.docker_runtime import client, runtime
from tests.agent.docker_runtime.bench import Bench
from tests.agent.docker_runtime.conftest import MakeBench
from tests.support.engine import Engine, MakePrivateEngine
from tests.support.engine_proxy import EngineProxy


def change_flag(file: Path, flag: str) -> bool:
    """`chattr`: what it makes immutable not even root can remove."""
    done = subprocess.run(["chattr", flag, file], check=False, capture_output=True)
    return done.returncode == 0


@pytest.fixture
def proxy(docker_engine: Engine, busybox_image: str) -> Iterator[EngineProxy]:
    with EngineProxy(docker_engine) as made:
        yield made


@pytest.fixture
async def bench(proxy: EngineProxy, make_bench: MakeBench) -> Bench:
    return await make_bench(proxy)


@pytest.mark.parametrize("call", ["containers/create", "containers/[0-9a-f]+/start"])
async def test_a_call_whose_answer_was_lost_is_gone_on_with(
    bench: Bench, proxy: EngineProxy, call: str
) -> None:
    fault = proxy.lose_answer(f"^POST .*/{call}")
    launch = bench.shell("echo once; sleep 600")

    seen = await bench.start(launch)

    fault.wait()
    assert seen.status is Status.RUNNING
    (only,) = await bench.runtime.seen()
    assert only.container_id == seen.container_id
    again = await bench.start(launch)
    assert (again.container_id, again.status) == (seen.container_id, Status.RUNNING)
    await bench.runtime.signal(launch.key, "SIGKILL")
    assert (await asyncio.wait_for(bench.runtime.wait(launch.key), 10)).code == 137
    assert await bench.read(launch.key) == (b"once\n", b"")


async def test_a_container_that_ended_before_its_lost_answer_keeps_its_end(
    bench: Bench, proxy: EngineProxy
) -> None:
    proxy.lose_answer("^POST .*/start")
    assert (await asyncio.wait_for(bench.run(bench.shell("exit 5")), 20)).code == 5


async def test_calls_that_hang_on_stuck_containers_hold_up_nothing_else(
    bench: Bench, proxy: EngineProxy
) -> None:
    stuck = bench.launch_of("sleep", "600")
    await bench.start(stuck)
    fault = proxy.withhold("^(DELETE|POST .*/kill)")
    hanging = [
        asyncio.create_task(call)
        for _ in range(16)
        for call in (
            bench.runtime.remove(stuck.key),
            bench.runtime.signal(stuck.key, "SIGTERM"),
        )
    ]
    await asyncio.to_thread(fault.wait)

    async with asyncio.timeout(20):
        assert (await bench.run(bench.shell("exit 2"))).code == 2
        assert await bench.runtime.problems() == []
        assert len(await bench.runtime.seen()) == 2
    assert not any(task.done() for task in hanging)

    for task in hanging:
        task.cancel()
    proxy.heal()


async def test_a_container_that_cannot_be_inspected_counts_as_running(
    bench: Bench, proxy: EngineProxy, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "INSPECT_S", 0.5)
    stuck, other = bench.shell("exit 3"), bench.launch_of("sleep", "600")
    seen = await bench.start(stuck)
    await bench.runtime.wait(stuck.key)
    await bench.start(other)
    await bench.runtime.close()
    proxy.withhold(f"^GET .*/containers/{seen.container_id}/json")

    later = await make_bench(proxy, yard=bench.yard)
    found = {one.key: one for one in await later.runtime.seen()}
    assert {one.status for one in found.values()} == {Status.RUNNING}
    assert found[stuck.key].container_id == seen.container_id
    assert found[stuck.key].spec_sha256 == "spec-1"
    with pytest.raises(RuntimeFailure, match="in time"):
        await later.runtime.wait(stuck.key)

    proxy.heal()
    exits = {one.key: one.exit for one in await later.runtime.seen()}
    ended = exits[stuck.key]
    assert ended is not None and ended.code == 3


async def test_a_removal_that_is_stuck_says_so_and_succeeds_once_it_can(
    private_engine: MakePrivateEngine, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_REMOVE_S", 1.0)
    engine = private_engine("--bridge=none")
    bench = await make_bench(engine)
    launch = bench.shell("exit 4")
    await bench.run(launch)
    with engine.api() as api:
        folder = Path(api.info()["DockerRootDir"], "containers")
    (file,) = folder.glob("*/hostname")
    if not change_flag(file, "+i"):
        pytest.skip("this file system has no immutable files")
    try:
        with pytest.raises(RuntimeFailure, match="cannot be removed") as raised:
            await bench.runtime.remove(launch.key)
        assert raised.value.temporary
        # Half removed, and still its own end: what holds a GPU was over before.
        (dead,) = await bench.runtime.seen()
        assert dead.exit is not None
        assert (dead.status, dead.exit.code) == (Status.EXITED, 4)
        restarted = await make_bench(engine, yard=bench.yard)
        (again,) = await restarted.runtime.seen()
        assert (again.status, again.exit and again.exit.code) == (Status.EXITED, 4)
    finally:
        change_flag(file, "-i")
    await bench.runtime.remove(launch.key)
    assert await bench.runtime.seen() == []


async def test_a_paused_container_runs_and_says_so(
    docker_engine: Engine, busybox_image: str, make_bench: MakeBench
) -> None:
    bench = await make_bench(docker_engine)
    launch = bench.launch_of("sleep", "600")
    seen = await bench.start(launch)
    with docker_engine.api() as api:
        api.pause(seen.container_id)
        (paused,) = await bench.runtime.seen()
        assert paused.status is Status.RUNNING
        assert paused.note is not None and "is paused" in paused.note
        api.unpause(seen.container_id)
        (goes_on,) = await bench.runtime.seen()
        assert (goes_on.status, goes_on.note) == (Status.RUNNING, None)
        api.pause(seen.container_id)
    # It can be ended all the same.
    await bench.runtime.signal(launch.key, "SIGKILL")
    assert (await asyncio.wait_for(bench.runtime.wait(launch.key), 10)).code == 137
