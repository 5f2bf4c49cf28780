"""The process runtime on real processes: ends, signals, output, and adoption after kill -9."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.core.launch import AttemptKey, Launch, LaunchContext, launch_of
from gpuyard_agent.process_runtime import ProcessRuntime
from gpuyard_agent.process_runtime.shim import Folder, Process, parse_stat, process_of
from gpuyard_agent.runtime import LogPosition, Status
from tests.support.agent_builders import NODE, YARD, entry, gpu, key
from tests.support.processes import is_alive

CONTEXT = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")


def launch(*command: str, job: str = "job-1", **spec: Any) -> Launch:
    return launch_of(entry(job, command=list(command), **spec), CONTEXT)


def shell(script: str, job: str = "job-1", **spec: Any) -> Launch:
    return launch("sh", "-c", script, job=job, **spec)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime(tmp_path, yard=YARD, node=NODE)
    await made.open()
    yield made
    for seen in await made.seen():
        await made.remove(seen.key)
    await made.close()


async def until(is_so: Callable[[], bool]) -> None:
    """A signal is delivered a moment after it was sent."""
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.01)


async def output(
    runtime: ProcessRuntime, which: AttemptKey, position: LogPosition | None = None
) -> dict[int, bytes]:
    streams = {1: b"", 2: b""}
    async for piece in runtime.logs(which, position or LogPosition()):
        streams[piece.stream] += piece.data
    return streams


async def test_a_command_ends_with_its_code_and_its_output(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(shell("echo out; echo err >&2; exit 3"))
    assert (await runtime.wait(seen.key)).code == 3
    assert await output(runtime, seen.key) == {1: b"out\n", 2: b"err\n"}
    (over,) = await runtime.seen()
    assert (over.status, over.exit is not None and over.exit.code) == (Status.EXITED, 3)


async def test_a_running_one_shows_its_pid(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(launch("sleep", "60"))
    assert seen.status is Status.RUNNING
    (pid,) = seen.pids
    cmdline = Path(f"/proc/{pid}/cmdline")
    await until(lambda: cmdline.read_bytes() == b"sleep\x0060\x00")
    assert os.getpgid(pid) == pid, "it leads a group of its own"


async def test_a_second_launch_starts_nothing(runtime: ProcessRuntime) -> None:
    first = await runtime.launch(launch("sleep", "60"))
    assert await runtime.launch(launch("sleep", "60")) == first
    await runtime.signal(first.key, "SIGKILL")
    await runtime.wait(first.key)
    over = await runtime.launch(launch("sleep", "60"))
    assert over.status is Status.EXITED


async def test_sigterm_goes_to_the_command_and_sigkill_to_its_group(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > child; sleep 60; sleep 60"
    seen = await runtime.launch(shell(script, workdir=str(tmp_path)))
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        await asyncio.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    await runtime.signal(seen.key, "SIGTERM")
    await asyncio.sleep(0.05)
    assert is_alive(seen.pids[0])
    await runtime.signal(seen.key, "SIGKILL")
    assert (await runtime.wait(seen.key)).code == 137
    await until(lambda: not is_alive(child))
    await runtime.signal(seen.key, "SIGTERM")  # over already: no error


async def test_what_a_command_leaves_behind_goes_with_it(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    await runtime.launch(shell("sleep 60 & echo $! > child", workdir=str(tmp_path)))
    await runtime.wait(key())
    child = int((tmp_path / "child").read_text())
    await until(lambda: not is_alive(child))


async def test_a_command_that_does_not_exist_ends_with_127(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(launch("/no/such/command"))
    assert (await runtime.wait(seen.key)).code == 127
    assert b"/no/such/command" in (await output(runtime, seen.key))[2]


async def test_the_environment_is_the_jobs_and_not_the_agents(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_CREDENTIALS", "secret")
    seen = await runtime.launch(launch("env", env={"A": "b c", "PATH": "/bin:/usr/bin", "d": "1"}))
    await runtime.wait(seen.key)
    lines = (await output(runtime, seen.key))[1].decode().splitlines()
    assert {"A=b c", "PATH=/bin:/usr/bin", "d=1", "GPUYARD_JOB_ID=job-1"} <= set(lines)
    assert "CUDA_VISIBLE_DEVICES=" in lines
    assert not any("secret" in line or line.startswith("_gy") for line in lines)


async def test_a_grant_is_all_that_cuda_sees_unless_the_job_says_otherwise(
    runtime: ProcessRuntime,
) -> None:
    seen = await runtime.launch(
        shell("echo $CUDA_VISIBLE_DEVICES", gpus=[gpu("GPU-a"), gpu("GPU-b")])
    )
    assert await output(runtime, seen.key) == {1: b"GPU-a,GPU-b\n", 2: b""}
    own = {"CUDA_VISIBLE_DEVICES": "0"}
    other = await runtime.launch(shell("echo $CUDA_VISIBLE_DEVICES", job="job-2", env=own))
    assert (await output(runtime, other.key))[1] == b"0\n"


async def test_the_working_directory(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.launch(shell("pwd", workdir="/usr"))
    assert (await output(runtime, key()))[1] == b"/usr\n"
    await runtime.launch(shell("pwd", job="job-2"))
    assert (await output(runtime, key("job-2")))[1].decode().strip().endswith("/work")
    with pytest.raises(RuntimeFailure, match="/no/such"):
        await runtime.launch(shell("pwd", job="job-3", workdir="/no/such"))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"command": None}, "command"),
        ({"run_as": "1000"}, "run_as"),
        ({"mounts": [{"source": "/a", "target": "/b", "read_only": True}]}, "/a"),
    ],
)
async def test_what_a_process_cannot_honour_is_refused_by_name(
    runtime: ProcessRuntime, spec: dict[str, Any], named: str
) -> None:
    with pytest.raises(RuntimeFailure, match=named) as caught:
        await runtime.launch(launch_of(entry(**spec), CONTEXT))
    assert caught.value.reason == "invalid"


async def test_output_comes_as_it_is_written(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(shell("echo first; sleep 0.3; echo second"))
    began = time.monotonic()
    times = []
    async for piece in runtime.logs(seen.key, LogPosition()):
        times.append((piece.data, time.monotonic() - began))
    assert [data for data, _ in times] == [b"first\n", b"second\n"]
    assert times[0][1] < 0.2
    assert 0.2 < times[1][1] < 0.45


async def test_output_goes_on_from_a_position(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(shell("printf 0123456789; printf abc >&2"))
    await runtime.wait(seen.key)
    position = LogPosition(stdout=7, stderr=1)
    pieces = [piece async for piece in runtime.logs(seen.key, position)]
    assert [(piece.stream, piece.offset, piece.data) for piece in pieces] == [
        (1, 7, b"789"),
        (2, 1, b"bc"),
    ]


async def test_much_output_arrives_whole(runtime: ProcessRuntime) -> None:
    seen = await runtime.launch(shell("yes 0123456789abcdef | head -c 5000000"))
    streams = await output(runtime, seen.key)
    assert len(streams[1]) == 5_000_000
    assert streams[1] == (b"0123456789abcdef\n" * 294118)[:5_000_000]


async def test_output_without_inotify(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path, yard=YARD, node=NODE)  # never opened: nothing listens
    seen = await runtime.launch(shell("echo first; sleep 0.1; echo second"))
    assert (await output(runtime, seen.key))[1] == b"first\nsecond\n"
    await runtime.remove(seen.key)


async def test_other_yards_and_nodes_are_not_ours(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.launch(launch("true"))
    for yard, node in ((YARD, "node-2"), ("xyz789", NODE)):
        assert await ProcessRuntime(tmp_path, yard=yard, node=node).seen() == []


async def test_what_was_removed_is_gone(runtime: ProcessRuntime, tmp_path: Path) -> None:
    seen = await runtime.launch(launch("sleep", "60"))
    await runtime.remove(seen.key)
    await runtime.remove(seen.key)
    assert await runtime.seen() == []
    assert not is_alive(seen.pids[0])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeFailure):
        await runtime.wait(seen.key)


async def test_a_shell_that_was_killed_takes_its_command_along(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    seen = await runtime.launch(launch("sleep", "60"))
    shim = Folder(tmp_path / "team-a.job-1.1").shim()
    assert shim is not None
    waiting = asyncio.create_task(runtime.wait(seen.key))
    await asyncio.sleep(0.02)
    os.kill(shim.pid, signal.SIGKILL)
    exit = await asyncio.wait_for(waiting, 5)
    assert exit.code is None
    assert exit.message == "its shell was killed"
    await until(lambda: not is_alive(seen.pids[0]))
    assert (await runtime.wait(seen.key)).code is None


async def test_stray_signals_do_not_end_the_shell(runtime: ProcessRuntime, tmp_path: Path) -> None:
    seen = await runtime.launch(shell("sleep 0.3; exit 4"))
    shim = Folder(tmp_path / "team-a.job-1.1").shim()
    assert shim is not None
    for _ in range(3):
        os.kill(shim.pid, signal.SIGTERM)
        await asyncio.sleep(0.02)
    assert (await runtime.wait(seen.key)).code == 4


# An agent that is killed and comes back.

HOLDER = """
import asyncio, json, sys
from pathlib import Path
from gpuyard_agent.process_runtime import ProcessRuntime
from tests.agent.test_process_runtime import shell

async def main():
    runtime = ProcessRuntime(Path(sys.argv[1]), yard="abc123", node="node-1")
    await runtime.open()
    seen = await runtime.launch(shell(sys.argv[2]))
    print(json.dumps(seen.pids), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def killed_holder(directory: Path, script: str) -> int:
    """Starts `script` under a helper process, kills that with -9, returns the command's pid."""
    root = Path(__file__).parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), script],
        stdout=subprocess.PIPE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    with holder:
        assert holder.stdout is not None
        (pid,) = json.loads(holder.stdout.readline())
        holder.kill()
    return int(pid)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_command_that_fills_the_disk_keeps_its_own_code(small_disk: Path) -> None:
    runtime = ProcessRuntime(small_disk, yard=YARD, node=NODE)
    await runtime.open()
    fill = f"while echo full >>{small_disk}/ballast; do :; done; exit 7"
    seen = await runtime.launch(shell(fill))
    assert (await runtime.wait(seen.key)).code == 7
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "more").write_bytes(bytes(4096))
    (small_disk / "ballast").unlink()
    await runtime.remove(key("job-1"))
    await runtime.close()


async def test_a_killed_agents_process_is_adopted_with_its_code_and_output(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    pid = killed_holder(tmp_path, "echo before; sleep 1; echo after; exit 5")
    assert is_alive(pid)
    (seen,) = await runtime.seen()
    assert (seen.status, seen.pids) == (Status.RUNNING, (pid,))
    assert (await runtime.launch(shell("exit 1"))).pids == (pid,), "adopted, not started again"
    assert (await asyncio.wait_for(runtime.wait(seen.key), 10)).code == 5
    assert (await output(runtime, seen.key))[1] == b"before\nafter\n"


async def test_an_end_while_nobody_watched_is_found(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    pid = killed_holder(tmp_path, "sleep 0.2; exit 6")
    while is_alive(pid):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)
    (seen,) = await runtime.seen()
    assert seen.exit is not None
    assert (seen.status, seen.exit.code) == (Status.EXITED, 6)


async def test_an_adopted_process_can_be_ended(runtime: ProcessRuntime, tmp_path: Path) -> None:
    pid = killed_holder(tmp_path, "sleep 60")
    await runtime.signal(key(), "SIGTERM")
    assert (await asyncio.wait_for(runtime.wait(key()), 5)).code == 143
    assert not is_alive(pid)


async def test_a_start_that_was_cut_short_left_nothing_and_can_be_made_again(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    folder = Folder(tmp_path / "team-a.job-1.1")
    meta = {"yard": YARD, "node": NODE, "key": list(key()), "spec_sha256": "0" * 64}
    folder.create(meta)
    (seen,) = await runtime.seen()
    assert seen.status is Status.CREATED
    again = await runtime.launch(shell("exit 8"))
    assert again.key == key()
    assert (await runtime.wait(key())).code == 8


async def test_a_pid_that_was_used_again_is_not_taken_for_ours(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    own = process_of(os.getpid())
    assert own is not None
    folder = Folder(tmp_path / "team-a.job-1.1")
    folder.create({"yard": YARD, "node": NODE, "key": list(key()), "spec_sha256": "0" * 64})
    # Another process's pid, with an earlier one's start time, as after a reboot.
    stat = Path("/proc/self/stat").read_text().replace(f" {own.started} ", " 1 ")
    for name in ("shim", "child"):
        (folder.path / name).write_text(stat)
    (seen,) = await runtime.seen()
    assert seen.status is Status.EXITED
    assert seen.exit is not None
    assert seen.exit.code is None
    await runtime.signal(key(), "SIGTERM")  # would end this test


def test_the_name_of_a_process_may_hold_anything() -> None:
    stat = "42 (a ) (b) S " + " ".join(str(n) for n in range(4, 53))
    assert parse_stat(stat) == Process(42, 22)
    assert parse_stat("") is None


@pytest.mark.parametrize(("agents", "jobs"), [(-500, 0), (200, 200)])
async def test_a_spared_agent_does_not_spare_its_jobs(
    runtime: ProcessRuntime, agents: int, jobs: int
) -> None:
    score = Path("/proc/self/oom_score_adj")
    before = score.read_text()
    try:
        score.write_text(str(agents))
    except PermissionError:
        pytest.skip("a score below one's own needs CAP_SYS_RESOURCE")
    try:
        seen = await runtime.launch(launch("cat", str(score)))
        await runtime.wait(seen.key)
    finally:
        score.write_text(before)
    assert await output(runtime, seen.key) == {1: f"{jobs}\n".encode(), 2: b""}
