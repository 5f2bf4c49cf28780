"""`run` and the signals and keys that reach it, on a terminal and without one."""

import asyncio
import shlex
import signal

import pytest

from tests.shared.cli.command import COMMAND, OnTerminal, environment, gpuyard, started
from tests.shared.client.fake_yard import FakeJob, FakeYard, exits, runs_on
from tests.support.nats_server import NatsServer

RUN = ("run", "--id", "one", "busybox")


async def begun(yard: FakeYard) -> FakeJob:
    """The job, once it has printed its first line."""
    async with asyncio.timeout(15):
        while "one" not in yard.jobs or not yard.jobs["one"].chunks:
            await asyncio.sleep(0.02)
    return yard.jobs["one"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
async def test_without_a_terminal_a_signal_cancels(
    number: signal.Signals, code: int, nats_server: NatsServer
) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, started(nats_server.url, *RUN) as run:
        assert run.stdout is not None
        assert await run.stdout.readline() == b"begun\n"
        run.send_signal(number)
        assert await asyncio.wait_for(run.wait(), 15) == code
        assert yard.jobs["one"].state == "cancelled"


async def test_a_hangup_leaves_the_job_running(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, started(nats_server.url, *RUN) as run:
        assert run.stdout is not None
        await run.stdout.readline()
        run.send_signal(signal.SIGHUP)
        assert await asyncio.wait_for(run.wait(), 15) == 0
        assert yard.jobs["one"].state == "running"


async def test_a_second_signal_leaves_at_once(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, started(nats_server.url, *RUN) as run:
        assert run.stdout is not None and run.stderr is not None
        await run.stdout.readline()
        yard.on_cancel = lambda _yard, _job: None
        run.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert run.returncode is None
        run.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(run.wait(), 5) == 143
        assert b"was asked to end" in await run.stderr.read()


async def test_a_job_that_ends_by_itself_keeps_its_code(nats_server: NatsServer) -> None:
    async def too_late(yard: FakeYard, job: FakeJob) -> None:
        await yard.chunk(job, b"", end=True)
        await yard.end(job, 5)

    async with FakeYard(nats_server.url, runs_on) as yard, started(nats_server.url, *RUN) as run:
        assert run.stdout is not None
        await run.stdout.readline()
        yard.on_cancel = too_late
        run.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(run.wait(), 15) == 5


async def test_a_signal_before_the_answer_revokes_the_job(nats_server: NatsServer) -> None:
    async with (
        FakeYard(nats_server.url, leads=False) as yard,
        started(nats_server.url, *RUN) as run,
    ):
        async with asyncio.timeout(15):
            while not (await yard.bus.jetstream.state("GPUYARD_SUBMIT")).messages:
                await asyncio.sleep(0.02)
        run.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(run.wait(), 15) == 130
        last = await yard.bus.jetstream.last("GPUYARD_SUBMIT", "gpuyard.submit.default.alice")
        assert last is not None
        assert b"cancel" in last.data


async def test_its_own_timeout_cancels(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard:
        done = await gpuyard(nats_server.url, "run", "--timeout", "1s", "--id", "one", "busybox")
        assert (done.code, done.out) == (124, b"begun\n")
        assert yard.jobs["one"].state == "cancelled"


async def test_a_reader_that_leaves_ends_run_and_not_the_job(nats_server: NatsServer) -> None:
    line = f"{shlex.join([*COMMAND, *RUN])} | head -n 1; echo ${{PIPESTATUS[0]}}"
    async with FakeYard(nats_server.url, runs_on) as yard:
        shell = await asyncio.create_subprocess_exec(
            "bash",
            *("-c", line),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(nats_server.url),
        )
        job = await begun(yard)
        ending = asyncio.create_task(shell.communicate())
        while not ending.done():
            await yard.chunk(job, b"more\n")
            await asyncio.sleep(0.1)
        out, err = await ending
        assert out == b"begun\n141\n"
        assert err == b"gpuyard: nobody reads the output any more; job one goes on\n"
        assert job.state == "running"


async def test_a_slow_reader_loses_nothing(nats_server: NatsServer) -> None:
    size = 8 * 1024 * 1024

    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        for _ in range(size // 65536):
            await yard.chunk(job, b"x" * 65536)
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), started(nats_server.url, *RUN) as run:
        assert run.stdout is not None
        await asyncio.sleep(1.5)
        assert len(await asyncio.wait_for(run.stdout.read(), 30)) == size
        assert await run.wait() == 0


async def test_on_a_terminal_the_first_press_tells_and_the_second_cancels(
    nats_server: NatsServer,
) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, OnTerminal(nats_server.url, *RUN) as run:
        await run.see("begun")
        run.press(b"\x03")
        await run.see("job one goes on; Ctrl-C again within 3 s cancels it")
        assert yard.jobs["one"].state == "running"
        run.press(b"\x03")
        assert await run.end() == 130
        assert yard.jobs["one"].state == "cancelled"


async def test_on_a_terminal_a_late_second_press_only_tells_again(
    nats_server: NatsServer,
) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, OnTerminal(nats_server.url, *RUN) as run:
        await run.see("begun")
        run.press(b"\x03")
        await run.see("Ctrl-C again within 3 s")
        await asyncio.sleep(3.2)
        run.shown = ""
        run.press(b"\x03")
        await run.see("Ctrl-C again within 3 s")
        assert yard.jobs["one"].state == "running"


async def test_the_detach_keys_leave_the_job_running(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard, OnTerminal(nats_server.url, *RUN) as run:
        await run.see("begun")
        run.press(b"\x10")
        await asyncio.sleep(0.1)
        run.press(b"\x11")
        assert await run.end() == 0
        assert "goes on; 'gpuyard logs -f one' follows it" in run.shown
        assert yard.jobs["one"].state == "running"


async def test_progress_is_shown_on_a_terminal_and_taken_away(nats_server: NatsServer) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.event(job, "accepted")
        await yard.event(job, "verdict", message="0/1 nodes fit")
        await asyncio.sleep(0.3)
        await yard.assign(job)
        await yard.event(job, "pulling", data={"done_bytes": 512 << 20, "total_bytes": 1024 << 20})
        await asyncio.sleep(0.3)
        await exits_now(yard, job)

    async def exits_now(yard: FakeYard, job: FakeJob) -> None:
        await yard.chunk(job, b"out\n")
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live), OnTerminal(nats_server.url, *RUN) as run:
        assert await run.end() == 0
        assert "job one queued: 0/1 nodes fit" in run.shown
        assert "pulling the image on n1: 512 MiB of 1.0 GiB" in run.shown
        assert run.shown.endswith("\r\x1b[Kout\r\n")


async def test_quiet_shows_no_progress(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(0)), OnTerminal(nats_server.url, "-q", *RUN) as run:
        assert await run.end() == 0
        assert "\x1b[K" not in run.shown
