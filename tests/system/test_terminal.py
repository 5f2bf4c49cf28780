"""`run` at a real terminal of a real yard: Ctrl-C, hangup, detach, and every exit code."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gpuyard import Client
from tests.shared.cli.command import OnTerminal, gpuyard, started
from tests.support.nats_server import NatsServer
from tests.support.running_yard import RunningYard, eventually

SLEEP = ("any", "sh", "-c", "echo begun; exec sleep 600")


@pytest.fixture(scope="module")
def yard(
    module_nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningYard]:
    """One yard for all: its jobs are plain processes."""
    running = RunningYard(module_nats_server, tmp_path_factory.mktemp("yard"))
    try:
        running.coordinator.start()
        running.agent(simulate="1")
        running.ready()
        yield running
    finally:
        running.close()


@pytest.fixture
def client(yard: RunningYard) -> Iterator[Client]:
    client = yard.client(user="alice")
    yield client
    for job in client.jobs():
        client.cancel(job.id)
        client.wait(job.id, timeout_s=60)


@pytest.fixture
def url(yard: RunningYard, client: Client) -> str:
    return yard.server.url


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("any", "true"), 0),
        (("any", "sh", "-c", "exit 7"), 7),
        (("--time", "1s", "any", "sleep", "600"), 124),
        (("--timeout", "1s", "any", "sleep", "600"), 124),
        (("--name", "x" * 200, "any", "true"), 125),
        (("--no-such-flag", "any", "true"), 125),
        (("any", "/etc/passwd"), 126),
        (("any", "/no/such/program"), 127),
        (("any", "sh", "-c", "kill -HUP $$"), 129),
        (("any", "sh", "-c", "kill -KILL $$"), 137),
        (("any", "sh", "-c", "kill -SEGV $$"), 139),
        (("any", "sh", "-c", "kill -TERM $$"), 143),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_exit_code(words: tuple[str, ...], code: int, url: str) -> None:
    async with OnTerminal(url, "run", *words) as run:
        assert await run.end(30) == code, run.shown
    assert "Traceback" not in run.shown


async def test_submit_wait_and_wait_exit_with_the_same_codes(url: str) -> None:
    shell = ("any", "sh", "-c", "exit 9")
    async with OnTerminal(url, "submit", "--wait", "--id", "nine", *shell) as submit:
        assert await submit.end(30) == 9
    assert "nine" in submit.shown
    limited = ("submit", "--wait", "--time", "1s", "--id", "late", "any", "sleep", "600")
    async with OnTerminal(url, *limited) as submit:
        assert await submit.end(30) == 124
    async with OnTerminal(url, "wait", "nine", "late") as wait:
        assert await wait.end(30) == 124


async def test_one_ctrl_c_tells_and_two_cancel(url: str, client: Client) -> None:
    async with OnTerminal(url, "run", "--id", "twice", *SLEEP) as run:
        await run.see("begun")
        run.press(b"\x03")
        await run.see("job twice goes on; Ctrl-C again within 3 s cancels it")
        assert client.job("twice").state == "running"
        run.press(b"\x03")
        assert await run.end(30) == 130
    assert client.wait("twice", timeout_s=30).state == "cancelled"


async def test_the_detach_keys_leave_the_job(url: str, client: Client) -> None:
    async with OnTerminal(url, "run", "--id", "left", *SLEEP) as run:
        await run.see("begun")
        run.press(b"\x10\x11")
        assert await run.end() == 0
        assert "'gpuyard logs -f left' follows it" in run.shown
    assert client.job("left").state == "running"


async def test_a_terminal_that_goes_away_leaves_the_job(url: str, client: Client) -> None:
    async with OnTerminal(url, "run", "--id", "hung-up", *SLEEP) as run:
        await run.see("begun")
        run.hang_up()
        assert await run.end() == 0
    assert client.job("hung-up").state == "running"


async def test_a_job_cancelled_by_somebody_else_is_143(url: str, client: Client) -> None:
    async with OnTerminal(url, "run", "--id", "taken", *SLEEP) as run:
        await run.see("begun")
        client.cancel("taken", reason="needed elsewhere")
        assert await run.end(30) == 143
        assert "cancelled" in run.shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_without_a_terminal_a_signal_cancels(
    number: signal.Signals, code: int, url: str, client: Client
) -> None:
    id = f"no-terminal-{code}"
    async with started(url, "run", "--id", id, *SLEEP) as run:
        assert run.stdout is not None
        assert await run.stdout.readline() == b"begun\n"
        run.send_signal(number)
        assert await asyncio.wait_for(run.wait(), 30) == code
    assert client.wait(id, timeout_s=30).state == "cancelled"


async def test_without_a_terminal_a_hangup_detaches(url: str, client: Client) -> None:
    async with started(url, "run", "--id", "nohup", *SLEEP) as run:
        assert run.stdout is not None
        await run.stdout.readline()
        run.send_signal(signal.SIGHUP)
        assert await asyncio.wait_for(run.wait(), 30) == 0
    assert client.job("nohup").state == "running"


async def test_detached_from_the_start(url: str, client: Client) -> None:
    async with OnTerminal(url, "run", "-d", "--id", "background", *SLEEP) as run:
        assert await run.end() == 0
        assert run.shown == "background\r\n"
    eventually(lambda: client.job("background").state == "running")


async def test_the_terminal_is_as_it_was(url: str) -> None:
    import termios

    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    os.close(master)
    os.close(slave)
    async with OnTerminal(url, "run", *SLEEP) as run:
        await run.see("begun")
        run.press(b"\x10\x11")
        assert await run.end() == 0
        assert run.settings() == before


async def test_a_pipe_that_closes_ends_the_command_and_not_the_job(
    url: str, client: Client
) -> None:
    shell = ("any", "sh", "-c", "while echo line; do sleep 0.1; done")
    async with started(url, "run", "--id", "piped", *shell) as run:
        assert run.stdout is not None
        await run.stdout.readline()
        run._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        assert await asyncio.wait_for(run.wait(), 30) == 141
    assert client.job("piped").state == "running"


async def test_quiet_lists_feed_other_commands(url: str, client: Client) -> None:
    for number in range(3):
        client.submit({"id": f"queue-{number}", "image": "any", "command": ["sleep", "600"]})
    listed = await gpuyard(url, "jobs", "-q")
    done = await gpuyard(url, "cancel", *listed.out.decode().split())
    assert (done.code, sorted(done.out.split())) == (0, [b"queue-0", b"queue-1", b"queue-2"])
