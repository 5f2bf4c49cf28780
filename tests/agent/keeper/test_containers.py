"""The keeper and real containers: without the agent, with the engine frozen, paused, late."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.keeper.processes import find
from gpuyard_agent.runtime import Reach
from tests.agent.docker_runtime.bench import Bench
from tests.support.engine import Engine, MakePrivateEngine
from tests.support.keeper import KeeperProcess, boot_now, fence_in, wait_until
from tests.support.processes import is_alive

NAME = "node/team-a/job/1"
OBEYS = "trap 'exit 7' TERM; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; sh -c 'while :; do sleep 0.05; done' & while :; do sleep 0.05; done"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperProcess]:
    made = KeeperProcess(tmp_path / "keeper")
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def bench(docker_engine: Engine, busybox_image: str) -> AsyncIterator[Bench]:
    made = Bench(docker_engine)
    await made.runtime.open()
    yield made
    await made.close()


def pids_of(reach: Reach) -> list[int]:
    return find(reach).pids


async def test_the_reach_is_told_between_create_and_start(bench: Bench) -> None:
    told: list[tuple[Reach, list[int]]] = []

    async def hold(reach: Reach) -> None:
        told.append((reach, pids_of(reach)))

    launch = bench.shell(OBEYS)
    seen = await bench.runtime.launch(launch, hold)
    assert told == [(bench.runtime.reach(seen), [])]
    assert pids_of(told[0][0]), "it runs now, and is found by the id alone"


async def test_what_hold_raises_starts_nothing(bench: Bench) -> None:
    async def refuse(reach: Reach) -> None:
        raise RuntimeError("too late")

    launch = bench.shell(OBEYS)
    with pytest.raises(RuntimeError, match="too late"):
        await bench.runtime.launch(launch, refuse)
    assert [seen.status for seen in await bench.runtime.seen()] == ["created"]


async def test_a_container_is_asked_and_then_killed_whole(
    bench: Bench, keeper: KeeperProcess
) -> None:
    obeys = await bench.start(bench.shell(OBEYS))
    deaf = await bench.start(bench.shell(DEAF))
    reaches = {seen.key: bench.runtime.reach(seen) for seen in (obeys, deaf)}
    over_at = boot_now() + 2
    await keeper.ask(
        arm={str(key): fence_in(2, grace_s=1.5, reach=reach) for key, reach in reaches.items()}
    )
    assert (await bench.runtime.wait(obeys.key)).code == 7
    assert boot_now() < over_at
    assert (await bench.runtime.wait(deaf.key)).code == 137
    assert over_at <= boot_now() < over_at + 2


async def test_a_paused_container_is_killed_too(bench: Bench, keeper: KeeperProcess) -> None:
    seen = await bench.start(bench.shell(DEAF))
    with bench.engine.api() as api:
        api.pause(seen.container_id)
    await keeper.ask(arm={NAME: fence_in(0, reach=bench.runtime.reach(seen))})
    assert (await bench.runtime.wait(seen.key)).code == 137


@pytest.mark.parametrize("paused", [False, True])
async def test_where_the_kernel_kills_no_group_each_process_is_killed(
    bench: Bench, paused: bool
) -> None:
    seen = await bench.start(bench.shell(DEAF))
    reach = bench.runtime.reach(seen)
    assert reach is not None
    if paused:
        with bench.engine.api() as api:
            api.pause(seen.container_id)
    found = find(reach)
    found.unified = None
    if paused and found.freezer is None:
        pytest.skip("only the freezer of cgroup v1 holds back a signal")
    found.kill()
    wait_until(lambda: not find(reach).pids, within_s=2)
    assert (await bench.runtime.wait(seen.key)).code == 137


async def test_only_the_container_of_the_fence_is_ended(
    bench: Bench, keeper: KeeperProcess
) -> None:
    seen = await bench.start(bench.shell(DEAF))
    other = await bench.start(bench.shell(DEAF))
    reach = bench.runtime.reach(other)
    assert reach is not None
    await keeper.ask(arm={NAME: fence_in(0, reach=bench.runtime.reach(seen))})
    await bench.runtime.wait(seen.key)
    assert pids_of(reach)


async def test_a_frozen_engine_holds_up_nothing(
    private_engine: MakePrivateEngine, keeper: KeeperProcess
) -> None:
    engine = private_engine()
    bench = Bench(engine)
    await bench.runtime.open()
    seen = await bench.start(bench.shell(DEAF))
    reach = bench.runtime.reach(seen)
    assert reach is not None
    wait_until(lambda: len(pids_of(reach)) >= 3, what="the command and what it started")
    pids = pids_of(reach)
    engine.freeze()
    try:
        await keeper.ask(arm={NAME: fence_in(1.0, grace_s=0.5, reach=reach)})
        wait_until(lambda: not any(is_alive(pid) for pid in pids))
    finally:
        engine.thaw()
    assert (await bench.runtime.wait(seen.key)).code == 137
    await bench.close()


async def test_a_container_that_starts_late_is_ended_at_once(
    bench: Bench, keeper: KeeperProcess
) -> None:
    async def refuse(reach: Reach) -> None:
        await keeper.ask(arm={NAME: fence_in(0, reach=reach)})
        raise RuntimeError("its start is asked for late")

    launch = bench.shell(DEAF)
    with pytest.raises(RuntimeError):
        await bench.runtime.launch(launch, refuse)
    await asyncio.sleep(0.6)
    # It is ended once a process of it exists, maybe before the engine calls it started.
    with contextlib.suppress(RuntimeFailure):
        await bench.start(launch)
    (seen,) = await bench.runtime.seen()
    reach = bench.runtime.reach(seen)
    assert reach is not None
    wait_until(lambda: not pids_of(reach), within_s=2)
    assert keeper.said().count("SIGKILL") == 1
