"""The runtime on a real engine: how containers begin, end, are found again and go."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.containers import Status
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.docker_runtime import engine
from gpuyard_agent.docker_runtime.client import spoken_version
from gpuyard_agent.runtime import LogPosition
from tests.agent.docker_runtime.bench import Bench, gpu
from tests.agent.docker_runtime.conftest import MakeBench
from tests.support.engine import Engine


async def test_a_command_runs_and_its_code_and_streams_come_back(bench: Bench) -> None:
    launch = bench.shell("echo out; echo err >&2; exit 3")

    exit = await bench.run(launch)

    assert (exit.code, exit.out_of_memory, exit.engine_restarted) == (3, False, False)
    assert await bench.read(launch.key) == (b"out\n", b"err\n")


async def test_calls_of_the_engine_need_no_threads(bench: Bench) -> None:
    await bench.start(bench.launch_of("sleep", "600"))
    before = threading.active_count()

    await asyncio.gather(*(bench.runtime.seen() for _ in range(30)))

    assert threading.active_count() <= before


async def test_a_hundred_instant_exits_are_all_told(bench: Bench) -> None:
    at_once = asyncio.Semaphore(4)

    async def one(number: int) -> int | None:
        async with at_once:
            launch = bench.shell(f"exit {number}", network="host")
            exit = await bench.run(launch)
            await bench.runtime.remove(launch.key)
            return exit.code

    codes = await asyncio.gather(*(one(number) for number in range(100)))

    assert codes == list(range(100))


async def test_an_end_before_anybody_waits_is_kept(bench: Bench) -> None:
    launch = bench.shell("exit 4")
    await bench.start(launch)
    await asyncio.sleep(1)

    assert (await asyncio.wait_for(bench.runtime.wait(launch.key), 1)).code == 4


async def test_a_missing_image_is_said_without_a_pull(bench: Bench) -> None:
    launch = bench.launch_of("true", image="gpuyard-test/no-such-image:1")

    with pytest.raises(RuntimeFailure, match="No such image") as raised:
        await bench.start(launch)

    assert (raised.value.reason, raised.value.temporary) == ("image_not_found", True)


async def test_an_image_that_may_never_be_pulled_is_missing_for_good(bench: Bench) -> None:
    launch = bench.launch_of("true", image="gpuyard-test/no-such-image:1", pull="never")

    for step in (bench.runtime.launch(launch), bench.runtime.prepare(launch, lambda _: None)):
        with pytest.raises(RuntimeFailure, match="never to pull") as raised:
            await step
        assert (raised.value.reason, raised.value.temporary) == ("image_not_found", False)


@pytest.mark.parametrize(
    "image", ["Team/Image:1", "a//b", "../image", "http://host/image", "a?b=c"]
)
async def test_what_is_no_name_of_an_image_is_no_use_trying_again(bench: Bench, image: str) -> None:
    with pytest.raises(RuntimeFailure, match="invalid reference format") as raised:
        await bench.runtime.prepare(bench.launch_of("true", image=image), lambda _: None)
    assert (raised.value.reason, raised.value.temporary) == ("invalid", False)


async def test_an_image_that_is_there_needs_no_pull(bench: Bench) -> None:
    told: list[object] = []
    await bench.runtime.prepare(bench.launch_of("true"), told.append)
    assert told == []


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
async def test_a_command_that_cannot_run_ends_with_dockers_code(
    bench: Bench, command: str, code: int
) -> None:
    assert (await bench.run(bench.launch_of(command))).code == code


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
async def test_a_start_that_docker_refuses_is_an_end_that_stays(
    bench: Bench, make_bench: MakeBench, command: str, code: int
) -> None:
    launch = bench.launch_of(command)
    # With an init the command fails inside the container; without one the engine refuses.
    with bench.engine.api() as api:
        body = {"Image": launch.image, "Cmd": launch.command, "Labels": launch.labels}
        api.create_container_from_config(body, launch.container_name)

    seen = await bench.start(launch)

    assert seen.exit is not None
    assert (seen.status, seen.exit.code) == (Status.EXITED, code)
    assert command in str(seen.exit.message)
    assert await bench.runtime.wait(launch.key) == seen.exit
    assert (await bench.start(launch)).exit == seen.exit
    after_restart = await make_bench(bench.engine, yard=bench.yard)
    (again,) = await after_restart.runtime.seen()
    assert again.exit is not None
    assert (again.status, again.exit.code) == (Status.EXITED, code)


async def test_a_container_over_its_memory_limit_is_told_as_such(bench: Bench) -> None:
    launch = bench.shell("x=$(tr '\\0' a </dev/zero | head -c 200000000)", memory_mib=16)

    exit = await bench.run(launch)

    assert (exit.code, exit.out_of_memory) == (137, True)


async def test_a_kill_from_outside_is_no_memory_kill(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600", memory_mib=64)
    seen = await bench.start(launch)
    with bench.engine.api() as api:
        api.kill(seen.container_id)

    exit = await bench.runtime.wait(launch.key)

    assert (exit.code, exit.out_of_memory, exit.engine_restarted) == (137, False, False)
    assert "through the Docker Engine" in str(exit.message)


async def test_a_container_removed_from_outside_ends_its_wait(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600")
    seen = await bench.start(launch)
    waiting = asyncio.create_task(bench.runtime.wait(launch.key))
    await asyncio.sleep(0)
    with bench.engine.api() as api:
        api.remove_container(seen.container_id, force=True)

    assert (await asyncio.wait_for(waiting, 10)).code in (137, None)
    assert await bench.runtime.seen() == []


async def test_signals_reach_the_command_and_an_ended_one_is_no_error(bench: Bench) -> None:
    launch = bench.shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    await bench.start(launch)
    async for _ in bench.runtime.logs(launch.key, LogPosition()):
        await bench.runtime.signal(launch.key, "SIGTERM")
        break

    assert (await bench.runtime.wait(launch.key)).code == 7
    await bench.runtime.signal(launch.key, "SIGKILL")
    await bench.runtime.signal(AttemptKey("team-a", "unknown", 1), "SIGTERM")


async def test_launching_twice_makes_one_container_that_runs_once(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600")

    first = await bench.start(launch)
    second = await bench.start(launch)

    assert second.container_id == first.container_id
    assert (second.status, len(await bench.runtime.seen())) == (Status.RUNNING, 1)


async def test_launching_what_has_ended_does_not_run_it_again(bench: Bench) -> None:
    launch = bench.shell("echo once; exit 5")
    await bench.run(launch)

    again = await bench.start(launch)

    assert (again.status, again.exit and again.exit.code) == (Status.EXITED, 5)
    assert await bench.read(launch.key) == (b"once\n", b"")


async def test_a_create_whose_answer_was_lost_is_gone_on_with(bench: Bench) -> None:
    launch = bench.shell("exit 6")
    with bench.engine.api() as api:
        api.create_container_from_config(
            {"Image": launch.image, "Cmd": launch.command, "Labels": launch.labels},
            launch.container_name,
        )

    assert (await bench.run(launch)).code == 6


async def test_a_name_taken_by_another_is_refused_and_left_alone(bench: Bench) -> None:
    launch = bench.launch_of("true")
    with bench.engine.api() as api:
        foreign = api.create_container_from_config(
            {"Image": launch.image, "Cmd": ["true"], "Labels": {"gpuyard.yard": bench.yard}},
            launch.container_name,
        )["Id"]
        with pytest.raises(RuntimeFailure, match="not this attempt's") as raised:
            await bench.start(launch)
        assert not raised.value.temporary
        assert api.inspect_container(foreign)["State"]["Status"] == "created"
    with pytest.raises(RuntimeFailure, match="not this attempt's"):
        await bench.start(dataclasses.replace(launch, labels={**launch.labels, "x": "y"}))


async def test_a_restarted_agent_finds_what_runs_and_what_ended_meanwhile(
    bench: Bench, make_bench: MakeBench
) -> None:
    runs, ended = bench.launch_of("sleep", "600"), bench.shell("exit 9")
    started = await bench.start(runs)
    await bench.run(ended)
    await bench.runtime.close()

    later = await make_bench(bench.engine, yard=bench.yard)
    seen = {one.key: one for one in await later.runtime.seen()}

    assert seen[runs.key].status is Status.RUNNING
    assert seen[runs.key].container_id == started.container_id
    assert seen[runs.key].started_at
    assert seen[runs.key].image_digest
    assert seen[runs.key].spec_sha256 == "spec-1"
    assert (seen[ended.key].status, seen[ended.key].exit) == (
        Status.EXITED,
        await later.runtime.wait(ended.key),
    )
    waiting = asyncio.create_task(later.runtime.wait(runs.key))
    await later.runtime.signal(runs.key, "SIGKILL")
    assert (await asyncio.wait_for(waiting, 10)).code == 137


async def test_an_agent_that_starts_looks_at_some_of_its_containers_at_a_time(
    bench: Bench, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await bench.start(bench.launch_of("sleep", "600"))
    monkeypatch.setattr(engine, "LOOKS_AT_ONCE", 2)
    later = await make_bench(bench.engine, yard=bench.yard)
    inspect, looks, most = later.docker.client.inspect, 0, 0

    async def counted(container: str) -> dict[str, Any]:
        nonlocal looks, most
        looks += 1
        most = max(most, looks)
        try:
            return await inspect(container)
        finally:
            looks -= 1

    monkeypatch.setattr(later.docker.client, "inspect", counted)
    assert len(await later.runtime.seen()) == 4
    assert most == 2


async def test_removing_ends_it_and_one_that_is_gone_is_no_error(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600")
    await bench.start(launch)

    await bench.runtime.remove(launch.key)
    await bench.runtime.remove(launch.key)

    assert await bench.runtime.seen() == []
    assert (await bench.runtime.wait(launch.key)).code is None


async def test_two_yards_and_two_nodes_on_one_engine_never_meet(
    bench: Bench, make_bench: MakeBench
) -> None:
    other_yard = await make_bench(bench.engine)
    other_node = await make_bench(bench.engine, yard=bench.yard, node="node-2")
    launch = bench.launch_of("sleep", "600")
    await bench.start(launch)

    assert len(await bench.runtime.seen()) == 1
    for other in (other_yard, other_node):
        assert await other.runtime.seen() == []
        await other.runtime.remove(launch.key)
        await other.runtime.signal(launch.key, "SIGKILL")
    assert [one.status for one in await bench.runtime.seen()] == [Status.RUNNING]


async def test_an_engine_without_the_toolkit_says_what_to_do(bench: Bench) -> None:
    launch = bench.launch_of("true", gpus=(gpu("GPU-a"),))

    with pytest.raises(RuntimeFailure, match="could not select device driver") as raised:
        await bench.start(launch)

    assert "nvidia-ctk runtime configure" in str(raised.value)
    assert (raised.value.reason, raised.value.temporary) == ("runtime_error", False)
    (left,) = await bench.runtime.seen()
    assert left.status is Status.CREATED
    await bench.runtime.remove(launch.key)


async def test_looking_tells_process_digest_and_grant(bench: Bench) -> None:
    launch = bench.launch_of("sleep", "600", env={"NVIDIA_VISIBLE_DEVICES": "void"})
    await bench.start(launch)

    look = await bench.runtime.look(launch)

    assert look is not None
    assert look.pid and Path(f"/proc/{look.pid}").exists()
    assert look.image_digest and look.image_digest.startswith("sha256:")
    assert (look.mismatch, bool(look.started_at)) == (None, True)
    asked = dataclasses.replace(launch, gpus=(gpu("GPU-a"),))
    wrong = await bench.runtime.look(asked)
    assert wrong is not None and "GPU-a" in str(wrong.mismatch)


async def test_a_healthy_engine_has_no_problems_and_tells_its_version(bench: Bench) -> None:
    assert await bench.as_runtime.problems() == []
    assert (await bench.runtime.version())[0].isdigit()
    assert "Runtimes" in await bench.runtime.info()


async def test_without_an_engine_the_node_says_so(tmp_path: Path) -> None:
    absent = Bench(Engine(tmp_path / "docker.sock"))

    with pytest.raises(RuntimeFailure, match="does not exist") as raised:
        await absent.runtime.open()

    assert raised.value.temporary
    (reason,) = await absent.runtime.problems()
    (again,) = await absent.runtime.problems()
    assert reason["code"] == "docker_unreachable"
    assert reason["since"] == again["since"]


_AS_NOBODY = """
import asyncio, json, os, sys
from gpuyard.errors import RuntimeFailure
from gpuyard_agent.docker_runtime.engine import DockerEngine
from gpuyard_agent.docker_runtime.runtime import DockerRuntime

# Only now: another user may not read the environment that these come from.
os.setgroups([])
os.setgid(65534)
os.setuid(65534)

async def main():
    runtime = DockerRuntime(DockerEngine("yard01", url=sys.argv[1]), "node-1")
    try:
        await runtime.open()
    except RuntimeFailure as fault:
        print(json.dumps([str(fault), fault.temporary, await runtime.problems()]))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_permission_the_node_says_what_to_do(docker_engine: Engine) -> None:
    if docker_engine.path.stat().st_mode & 0o006:
        pytest.skip("everybody may use this engine's socket")
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, docker_engine.url],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )

    message, temporary, problems = json.loads(done.stdout)
    assert message == (
        f"permission denied on {docker_engine.path}: add the agent's user to group docker "
        "(which is as good as root) or run it as root"
    )
    assert temporary is True
    assert [problem["code"] for problem in problems] == ["docker_permission"]


@pytest.mark.parametrize(
    ("newest", "oldest", "spoken"),
    [("1.41", "1.12", "1.41"), ("1.44", "1.24", "1.44"), ("1.52", "1.44", "1.44"),
     ("1.60", "1.48", "1.48")],
)  # fmt: skip
def test_the_api_version_suits_the_engine(newest: str, oldest: str, spoken: str) -> None:
    assert spoken_version({"ApiVersion": newest, "MinAPIVersion": oldest}) == spoken


async def test_search_paths_go_in_front_of_the_images_own(bench: Bench) -> None:
    folders = {"PATH": "/usr/local/nvidia/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    launch = bench.launch_of("sh", "-c", "echo $PATH; echo $LD_LIBRARY_PATH", prepend_env=folders)

    await bench.run(launch)

    path, libraries = (await bench.read(launch.key))[0].decode().splitlines()
    assert path.startswith("/usr/local/nvidia/bin:") and path.endswith("/bin")
    assert libraries == "/usr/local/nvidia/lib64"
