"""What needs an engine of one's own: the toolkit's double, restarts, crashes, a freeze."""

import asyncio

import pytest

from gpuyard_agent.core.containers import Status
from tests.agent.docker_runtime.bench import gpu
from tests.agent.docker_runtime.conftest import MakeBench
from tests.support.engine import MakePrivateEngine


async def test_with_the_toolkit_the_grant_is_in_the_container(
    private_engine: MakePrivateEngine, make_bench: MakeBench
) -> None:
    bench = await make_bench(private_engine("--bridge=none", toolkit=True))
    launch = bench.shell("env; sleep 600", gpus=(gpu("GPU-a"), gpu("GPU-b")))

    seen = await bench.start(launch)

    with bench.engine.api() as api:
        (request,) = api.inspect_container(seen.container_id)["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-a", "GPU-b"]
    assert request["Count"] == 0
    look = await bench.runtime.look(launch)
    assert look is not None and look.mismatch is None


@pytest.mark.parametrize("how", ["stop", "kill", "restart"])
async def test_an_engine_that_goes_takes_the_blame_for_its_containers(
    private_engine: MakePrivateEngine, make_bench: MakeBench, how: str
) -> None:
    engine = private_engine("--bridge=none")
    bench = await make_bench(engine)
    launch = bench.launch_of("sleep", "600")
    await bench.start(launch)
    waiting = asyncio.create_task(bench.runtime.wait(launch.key))
    await asyncio.sleep(0)

    await asyncio.to_thread(getattr(engine, how))
    if how == "restart":  # and once more, before anybody could look
        await asyncio.to_thread(engine.kill)
    assert [one["code"] for one in await bench.runtime.problems()] == ["docker_unreachable"]
    await asyncio.to_thread(engine.start)

    exit = await asyncio.wait_for(waiting, 20)
    assert exit.engine_restarted
    (seen,) = await bench.runtime.seen()
    assert (seen.status, seen.exit) == (Status.EXITED, exit)
    # What comes after needs no new runtime.
    assert (await asyncio.wait_for(bench.run(bench.shell("exit 2")), 20)).code == 2


async def test_what_ended_while_no_engine_was_there_keeps_its_own_code(
    private_engine: MakePrivateEngine, make_bench: MakeBench
) -> None:
    engine = private_engine("--bridge=none")
    bench = await make_bench(engine)
    runs, ends = bench.launch_of("sleep", "600"), bench.shell("sleep 1.5; exit 3")
    for launch in (runs, ends):
        await bench.start(launch)
    waiting = [asyncio.create_task(bench.runtime.wait(one.key)) for one in (runs, ends)]
    await asyncio.sleep(0)

    await asyncio.to_thread(engine.kill)
    await asyncio.sleep(3)
    await asyncio.to_thread(engine.start)

    killed, ended = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert killed.engine_restarted
    assert (ended.code, ended.engine_restarted) == (3, False)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_an_engine_that_was_restarted_while_no_agent_looked(
    private_engine: MakePrivateEngine, make_bench: MakeBench, how: str
) -> None:
    engine = private_engine("--bridge=none")
    bench = await make_bench(engine)
    runs, ended = bench.launch_of("sleep", "600"), bench.shell("exit 4")
    await bench.start(runs)
    await bench.run(ended)
    await bench.runtime.close()
    await asyncio.sleep(1)  # an engine killed sooner has not written the code down itself

    await asyncio.to_thread(getattr(engine, how))
    await asyncio.to_thread(engine.start)
    later = await make_bench(engine, yard=bench.yard)

    exits = {seen.key: seen.exit for seen in await later.runtime.seen()}
    killed, own = exits[runs.key], exits[ended.key]
    assert killed is not None and killed.engine_restarted
    assert own is not None and (own.code, own.engine_restarted) == (4, False)
    # A kill after the restart is no doing of the engine's.
    after = later.launch_of("sleep", "600")
    seen = await later.start(after)
    with engine.api() as api:
        api.kill(seen.container_id)
    assert not (await asyncio.wait_for(later.runtime.wait(after.key), 20)).engine_restarted


async def test_a_container_that_outlives_its_engine_is_waited_for_on(
    private_engine: MakePrivateEngine, make_bench: MakeBench
) -> None:
    engine = private_engine("--bridge=none", "--live-restore")
    bench = await make_bench(engine)
    outlives, ends = bench.launch_of("sleep", "600"), bench.shell("sleep 2; exit 3")
    for launch in (outlives, ends):
        await bench.start(launch)
    waiting = [asyncio.create_task(bench.runtime.wait(one.key)) for one in (outlives, ends)]

    await asyncio.to_thread(engine.stop)
    await asyncio.sleep(2)
    await asyncio.to_thread(engine.start)

    exit = await asyncio.wait_for(waiting[1], 20)
    assert (exit.code, exit.engine_restarted) == (3, False)
    assert not waiting[0].done()
    await bench.runtime.signal(outlives.key, "SIGKILL")
    assert (await asyncio.wait_for(waiting[0], 20)).code == 137


async def test_a_frozen_engine_is_a_problem_and_nothing_hangs_on_it(
    private_engine: MakePrivateEngine, make_bench: MakeBench
) -> None:
    engine = private_engine("--bridge=none")
    bench = await make_bench(engine)
    engine.freeze()
    try:
        problems = await asyncio.wait_for(bench.runtime.problems(), 15)
        if not problems:  # its last threads may still have answered
            problems = await asyncio.wait_for(bench.runtime.problems(), 15)
    finally:
        engine.thaw()
    (problem,) = problems
    assert problem["code"] == "docker_unreachable"
    assert "does not answer in time" in problem["message"]
