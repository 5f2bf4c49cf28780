"""The keeper's process on real processes: what it ends, when, and what stops it from that."""

import asyncio
import json
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuyard_agent.keeper import store
from gpuyard_agent.keeper.client import KeeperSilent
from gpuyard_agent.process_runtime import ProcessRuntime
from gpuyard_agent.runtime import Seen
from tests.agent.test_process_runtime import shell
from tests.support.agent_builders import NODE, YARD, key
from tests.support.keeper import KeeperProcess, boot_now, fence_in, wait_until
from tests.support.processes import is_alive

NAME = f"{NODE}/{key()}"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperProcess]:
    made = KeeperProcess(tmp_path / "keeper")
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime(tmp_path / "attempts", yard=YARD, node=NODE)
    await made.open()
    yield made
    for seen in await made.seen():
        await made.remove(seen.key)
    await made.close()


async def started(runtime: ProcessRuntime, script: str) -> tuple[Seen, tuple[str, str]]:
    seen = await runtime.launch(shell(script))
    reach = runtime.reach(seen)
    assert reach is not None
    return seen, reach


async def test_a_fence_is_on_the_disk_when_it_is_confirmed(keeper: KeeperProcess) -> None:
    answer = await keeper.ask(arm={NAME: fence_in(60)})
    keeper.kill()
    assert list(answer["held"]) == [NAME]
    assert list(store.load(str(keeper.directory), store.boot_id())) == [NAME]


async def test_a_command_that_obeys_gets_sigterm_inside_its_fence(
    keeper: KeeperProcess, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    script = f"trap 'date +%s.%N > {tmp_path}/asked; exit 0' TERM; while :; do sleep 0.05; done"
    seen, reach = await started(runtime, script)
    over_at = boot_now() + 3
    await keeper.ask(arm={NAME: fence_in(3, grace_s=2.0, reach=reach)})
    exit = await runtime.wait(seen.key)
    assert exit.code == 0
    assert boot_now() < over_at
    held = store.load(str(keeper.directory), store.boot_id())[NAME]
    assert held.termed is not None
    assert held.killed is None


async def test_a_command_that_does_not_obey_is_killed_with_all_it_started_at_its_fence(
    keeper: KeeperProcess, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    inner = f"trap '' TERM; echo $$ >> {tmp_path}/pids; while :; do sleep 0.05; done"
    (tmp_path / "inner").write_text(inner)
    script = f"trap '' TERM; sh {tmp_path}/inner & sh {tmp_path}/inner & sh {tmp_path}/inner"
    seen, reach = await started(runtime, script)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    over_at = boot_now() + 1.5
    await keeper.ask(arm={NAME: fence_in(1.5, grace_s=1.0, reach=reach)})
    exit = await runtime.wait(seen.key)
    assert exit.code == 137
    assert over_at <= boot_now() < over_at + 1
    all_of_it = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(is_alive(pid) for pid in all_of_it), within_s=1)


async def test_a_fence_that_is_moved_in_time_ends_nothing(
    keeper: KeeperProcess, runtime: ProcessRuntime
) -> None:
    seen, reach = await started(runtime, "sleep 60")
    for _ in range(8):
        await keeper.ask(arm={NAME: fence_in(0.6, reach=reach)})
        await asyncio.sleep(0.2)
    assert is_alive(seen.pids[0])
    await keeper.ask(release=[NAME])
    await asyncio.sleep(1.0)
    assert is_alive(seen.pids[0])


async def test_a_restarted_keeper_goes_on_from_its_file(
    keeper: KeeperProcess, runtime: ProcessRuntime
) -> None:
    seen, reach = await started(runtime, "sleep 60")
    await keeper.ask(arm={NAME: fence_in(1.0, reach=reach)})
    keeper.kill()
    await asyncio.sleep(1.2)
    assert is_alive(seen.pids[0])
    keeper.start()
    assert (await runtime.wait(seen.key)).code == 137


async def test_fences_of_another_boot_are_void(
    keeper: KeeperProcess, runtime: ProcessRuntime
) -> None:
    seen, reach = await started(runtime, "sleep 60")
    await keeper.ask(arm={NAME: fence_in(60, reach=reach)})
    keeper.kill()
    path = Path(store.path_in(str(keeper.directory)))
    body = json.loads(path.read_text())
    body["fences"][NAME]["deadline"], body["boot"] = 1.0, "another"
    path.write_text(json.dumps(body))
    keeper.start()
    assert (await keeper.ask())["held"] == {}
    assert is_alive(seen.pids[0])


async def test_a_pid_that_went_to_somebody_else_is_left_alone(
    keeper: KeeperProcess, runtime: ProcessRuntime, tmp_path: Path
) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        folder = tmp_path / "stale"
        folder.mkdir()
        stat = Path(f"/proc/{other.pid}/stat").read_text().split()
        stat[21] = str(int(stat[21]) - 100)
        (folder / "child").write_text(" ".join(stat))
        await keeper.ask(arm={NAME: fence_in(0, reach=("folder", str(folder)))})
        seen, reach = await started(runtime, "sleep 60")
        await keeper.ask(arm={"n/t/witness/1": fence_in(0.2, reach=reach)})
        await runtime.wait(seen.key)
        assert is_alive(other.pid)
    finally:
        other.kill()
        await other.wait()


async def test_what_starts_behind_a_fence_that_is_over_is_ended_too(
    keeper: KeeperProcess, runtime: ProcessRuntime
) -> None:
    folder = ("folder", str(runtime._folder(key()).path.absolute()))
    await keeper.ask(arm={NAME: fence_in(0, reach=folder)})
    await asyncio.sleep(0.5)
    seen, _ = await started(runtime, "sleep 60")
    assert (await runtime.wait(seen.key)).code == 137


async def test_it_says_what_it_finds(keeper: KeeperProcess, runtime: ProcessRuntime) -> None:
    _, reach = await started(runtime, "sleep 60")
    absent = ("container", "0123456789abcdef" * 4)
    answer = await keeper.ask(
        arm={NAME: fence_in(60, reach=reach), "other": fence_in(60, reach=absent)},
        find=[NAME, "other", "unknown"],
    )
    assert answer["found"] == [NAME]


async def test_nonsense_is_refused_and_changes_nothing(keeper: KeeperProcess) -> None:
    await keeper.ask(arm={NAME: fence_in(60)})
    with pytest.raises(KeeperSilent, match="not a number"):
        await keeper.ask(arm={"a": fence_in(60), "b": {"deadline": "soon"}})
    assert list((await keeper.ask())["held"]) == [NAME]


async def test_a_frozen_keeper_does_not_answer(keeper: KeeperProcess) -> None:
    keeper.signal(signal.SIGSTOP)
    with pytest.raises(KeeperSilent):
        await keeper.ask()
    keeper.signal(signal.SIGCONT)
    assert (await keeper.ask())["held"] == {}


async def test_a_disk_that_refuses_confirms_nothing_and_stops_no_kill(
    keeper: KeeperProcess, runtime: ProcessRuntime
) -> None:
    seen, reach = await started(runtime, "sleep 60")
    await keeper.ask(arm={NAME: fence_in(1.0, reach=reach)})
    (keeper.directory / "fences.json.new").unlink(missing_ok=True)
    (keeper.directory / "fences.json.new").mkdir()
    answer = await keeper.ask(arm={NAME: fence_in(1.2, reach=reach), "new": fence_in(60)})
    assert list(answer["held"]) == [NAME]
    assert (await runtime.wait(seen.key)).code == 137
    (keeper.directory / "fences.json.new").rmdir()
    await asyncio.sleep(1.2)
    assert sorted((await keeper.ask())["held"]) == ["new", NAME]


async def test_a_damaged_file_is_set_aside_and_told(keeper: KeeperProcess) -> None:
    await keeper.ask(arm={NAME: fence_in(60)})
    keeper.kill()
    Path(store.path_in(str(keeper.directory))).write_text("{")
    keeper.start()
    assert (await keeper.ask())["held"] == {}
    assert "cannot be read" in keeper.said()


def test_a_second_keeper_of_a_folder_leaves(keeper: KeeperProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuyard_agent.keeper", keeper.directory],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 0
    assert "another keeper holds" in done.stderr


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a", "--forever"]])
def test_a_line_that_cannot_be_meant_shows_the_usage(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuyard_agent.keeper", *words],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


async def test_one_that_is_there_while_needed_leaves_when_it_is_not(tmp_path: Path) -> None:
    keeper = KeeperProcess(tmp_path / ("a-long-name-" * 12), "--while-needed")
    keeper.start()
    try:
        await keeper.ask(arm={NAME: fence_in(600)})
        with pytest.raises(subprocess.TimeoutExpired):
            keeper.left(within_s=7)
        await keeper.ask(release=[NAME])
        assert keeper.left(within_s=10) == 0
    finally:
        keeper.kill()


def test_it_is_small_and_loads_nothing_of_the_agent(keeper: KeeperProcess) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, gpuyard_agent.keeper.daemon; print(*sys.modules, sep='\\n')",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    own = {name for name in loaded if name.split(".")[0] in ("gpuyard", "gpuyard_agent")}
    assert all(name == "gpuyard_agent" or ".keeper" in name for name in own)
    assert not loaded & {"asyncio", "typing", "dataclasses", "argparse", "subprocess"}
    pages = int(Path(f"/proc/{keeper.pid}/statm").read_text().split()[1])
    assert pages * resource.getpagesize() < 16 * 1024 * 1024
