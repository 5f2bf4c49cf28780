"""Commands against a coordinator of canned answers: what is printed where, and the exit code."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.shared.cli.command import COMMAND, environment, gpuyard, started
from tests.shared.client.fake_yard import FakeJob, FakeYard, OnSubmit, exits, runs_on
from tests.support.nats_server import NatsServer


def ends(reason: str, code: int | None = None, *, starts: bool = True) -> OnSubmit:
    """A job that ends for `reason`."""

    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        if starts:
            await yard.chunk(job, b"", end=True)
        else:
            job.attempts[-1]["started_at"] = None
        await yard.end(job, code, reason=reason)

    return live


def refuses(*errors: dict[str, Any]) -> OnSubmit:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.reject(job, *errors)

    return live


CONFLICT = {"field": "id", "code": "conflict", "message": "job x exists already"}
FAULT = {"field": "gpus", "code": "invalid", "message": "no such thing"}


@pytest.mark.parametrize(
    ("life", "code", "told"),
    [
        (exits(0), 0, ""),
        (exits(7), 7, ""),
        (exits(127), 127, ""),
        (ends("out_of_memory", 137), 137, "failed (out_of_memory)"),
        (ends("time_limit", 143), 124, "failed (time_limit)"),
        (ends("cancelled", 143), 143, "cancelled (cancelled)"),
        (ends("yard_stopped", None), 143, "cancelled (yard_stopped)"),
        (ends("image_not_found", starts=False), 125, "failed (image_not_found): no such image"),
        (ends("node_lost"), 125, "failed (node_lost)"),
        (ends("from_the_future"), 125, "a reason that this version does not know"),
        (refuses(FAULT), 125, "gpus: no such thing"),
        (refuses(CONFLICT), 125, "job x exists already"),
    ],
)
async def test_run_exits_with_what_became_of_the_job(
    life: OnSubmit, code: int, told: str, nats_server: NatsServer
) -> None:
    async with FakeYard(nats_server.url, life):
        done = await gpuyard(nats_server.url, "run", "busybox", "true")
    assert done.code == code
    assert told in done.err
    lines = [line for line in done.err.splitlines() if line.startswith("gpuyard:")]
    assert len(lines) == (1 if told else 0)


async def test_run_passes_each_stream_unchanged(nats_server: NatsServer) -> None:
    raw = bytes(range(256)) * 300

    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        await yard.assign(job)
        await yard.chunk(job, raw)
        await yard.chunk(job, b"err", stream=2)
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live):
        async with started(nats_server.url, "run", "busybox") as process:
            out, err = await process.communicate()
        assert (process.returncode, out, err) == (0, raw, b"err")


async def test_run_as_json_keeps_stdout_for_json(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(7)):
        done = await gpuyard(nats_server.url, "run", "--json", "busybox")
    assert (done.code, json.loads(done.out)["exit_code"]) == (7, 7)
    assert "out\nerr\n" in done.err


async def test_detached_run_and_submit_print_the_id(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard:
        detached = await gpuyard(nats_server.url, "run", "-d", "--id", "one", "busybox")
        submitted = await gpuyard(nats_server.url, "submit", "--id", "two", "busybox")
        as_json = await gpuyard(nats_server.url, "submit", "--json", "--id", "three", "busybox")
        assert (detached.out, submitted.out) == (b"one\n", b"two\n")
        assert json.loads(as_json.out)["id"] == "three"
        assert sorted(yard.jobs) == ["one", "three", "two"]


async def test_submit_takes_files_and_waits(nats_server: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("image: a\nid: a\n---\nimage: b\nid: b\n")
    async with FakeYard(nats_server.url, exits(3)) as yard:
        done = await gpuyard(nats_server.url, "submit", "--wait", "--gpus", "2", "-f", str(path))
        assert (done.code, done.out) == (3, b"a\nb\n")
        assert [job.spec["gpus"] for job in yard.jobs.values()] == [2, 2]
        stdin = await gpuyard(nats_server.url, "run", "-f", "-", stdin=b"image: c\nid: c\n")
        assert (stdin.code, stdin.out) == (3, b"out\n")


async def test_a_stored_job_without_a_leader_is_told(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, leads=False):
        done = await gpuyard(nats_server.url, "submit", "--id", "one", "busybox")
    assert (done.code, done.out) == (0, b"one\n")
    assert "no coordinator has answered yet" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["job", "nope"], 1, "no job nope"),
        (["logs", "nope"], 1, "no job nope"),
        (["wait", "nope"], 1, "no job nope"),
        (["cancel", "nope"], 1, "no job nope"),
        (["cancel", "nope", "neither"], 1, "no job neither"),
        (["node", "nope"], 1, "no node nope"),
        (["restore", "-y", "/no/such.gz"], 1, "/no/such.gz: no such file"),
        (["submit", "-f", "/no/such.yaml"], 2, "/no/such.yaml: no such file"),
        (["run", "-f", "/no/such.yaml"], 125, "/no/such.yaml: no such file"),
        (["run"], 125, "IMAGE is missing"),
        (["submit"], 2, "IMAGE is missing"),
        (["run", "-f", "x", "busybox"], 125, "IMAGE and -f are both given"),
        (["run", "--privileged", "busybox"], 125, "--privileged cannot be used here"),
        (["run", "--ipc=host", "busybox"], 125, "--shm-size"),
        (["run", "--gpuss", "1", "busybox"], 125, "did you mean --gpus?"),
        (["submit", "--mount", "type=bind", "busybox"], 2, "write it as -v"),
        (["run", "-m", "8x", "busybox"], 125, "'8x' is not a size"),
        (["run", "--timeout", "soon", "busybox"], 125, "--timeout: 'soon' is not a duration"),
        (["run", "--id", "Not An Id", "busybox"], 125, "id: must be"),
        (["jobs", "--state", "lost"], 2, "--state 'lost' is none"),
        (["jobs", "--since", "whenever"], 2, "--since 'whenever' is no time; write 90s"),
        (["jobs", "--limit", "0"], 2, "invalid value for '--limit'"),
        (["jobs", "extra"], 2, "got unexpected extra argument"),
        (["job"], 2, "missing argument 'ID'"),
        (["cancel"], 2, "name jobs by ID, or choose them"),
        (["cancel", "x", "--all"], 2, "name jobs by ID, or choose them"),
        (["jobz"], 2, "did you mean job"),
        (["--tenant", "Big Team", "jobs"], 2, "tenant 'Big Team' (from argument)"),
        (["--url", "http://x", "jobs"], 2, "the url from argument is not one"),
        (["--context", "lab", "jobs"], 2, "there is no context 'lab'"),
        (["run", "--context", "lab", "busybox"], 125, "there is no context 'lab'"),
    ],
)
async def test_a_fault_is_one_line_and_a_code(
    arguments: list[str], code: int, told: str, module_yard_url: str
) -> None:
    done = await gpuyard(module_yard_url, *arguments)
    assert (done.code, done.out) == (code, b"")
    lines = done.err.splitlines()
    assert all(line.startswith("gpuyard: ") for line in lines)
    assert len(lines) == (2 if "neither" in arguments else 1)
    assert told in done.err


@pytest.fixture
async def module_yard_url(module_nats_server: NatsServer) -> Any:
    async with FakeYard(module_nats_server.url, runs_on):
        yield module_nats_server.url


@pytest.mark.parametrize("command", [["jobs"], ["run", "busybox"], ["submit", "busybox"]])
async def test_an_unreachable_bus_is_code_3(command: list[str]) -> None:
    done = await gpuyard("nats://t0ken@127.0.0.1:1", *command)
    assert (done.code, done.out) == (3, b"")
    assert "cannot reach nats://***@127.0.0.1:1: connection refused" in done.err
    assert "the address is from GPUYARD_URL" in done.err
    assert "t0ken" not in done.err


async def test_without_a_yard_the_way_to_one_is_told(tmp_path: Path) -> None:
    done = await gpuyard(None, "nodes", cwd=tmp_path)
    assert done.code == 3
    assert "start a yard with 'gpuyard up'" in done.err


async def test_no_leader_is_code_3(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, leads=False):
        done = await gpuyard(nats_server.url, "nodes")
    assert (done.code, done.out) == (3, b"")
    assert "no coordinator answers on nats://127.0.0.1" in done.err


async def test_not_allowed_is_code_4(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.refuses["nodes"] = {"code": "not_allowed", "message": "operators only"}
        done = await gpuyard(nats_server.url, "nodes")
    assert (done.code, done.err) == (4, "gpuyard: operators only\n")


async def test_only_debug_shows_a_traceback(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url):
        plain = await gpuyard(nats_server.url, "job", "nope")
        debug = await gpuyard(nats_server.url, "--debug", "job", "nope")
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err


async def test_wait_exits_with_the_jobs_codes(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(3)) as yard:
        await gpuyard(nats_server.url, "submit", "--id", "three", "busybox")
        yard.on_submit = exits(9)
        await gpuyard(nats_server.url, "submit", "--id", "nine", "busybox")
        yard.on_submit = runs_on
        await gpuyard(nats_server.url, "submit", "--id", "goes-on", "busybox")
        assert (await gpuyard(nats_server.url, "wait", "three")).code == 3
        both = await gpuyard(nats_server.url, "wait", "--json", "three", "nine")
        assert both.code == 9
        assert [view["id"] for view in json.loads(both.out)] == ["three", "nine"]
        late = await gpuyard(nats_server.url, "wait", "--timeout", "0.2s", "goes-on")
        assert (late.code, "not over after 0.2 s" in late.err) == (124, True)


async def test_a_fault_in_the_last_document_submits_none(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        for second, told in (
            (b"image: b\npriority: 500", "priority: must be at most 100, not 500"),
            (b"image: b\nid: Not An Id", "id: must be 1 to 48 lower-case letters"),
            (b"image: b\nlabels: {a: " + b"x" * 70_000 + b"}", "the job has 70"),
        ):
            stdin = b"image: a\n---\n" + second + b"\n"
            done = await gpuyard(nats_server.url, "submit", "-f", "-", stdin=stdin)
            assert (done.code, done.out) == (1, b"")
            assert done.err.startswith(f"gpuyard: stdin: document 2: {told}")
            assert done.err.endswith("; none of the 2 jobs is handed in\n")
        assert yard.submissions == []


async def test_cancel_by_id_and_by_choice(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard:
        for id in ("job-a", "job-b", "job-c"):
            await gpuyard(nats_server.url, "submit", "--id", id, "busybox")
        one = await gpuyard(nats_server.url, "cancel", "job-a", "nope", "--reason", "enough")
        assert (one.code, one.out) == (1, b"job-a\n")
        assert ("cancel", {"v": 1, "id": "job-a", "reason": "enough"}) in yard.calls
        asked = await gpuyard(nats_server.url, "cancel", "--all")
        assert (asked.code, "-y says yes" in asked.err) == (2, True)
        rest = await gpuyard(nats_server.url, "cancel", "--all", "-y", "--json")
        assert sorted(view["id"] for view in json.loads(rest.out)) == ["job-b", "job-c"]


async def test_lists_and_details(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(3)) as yard:
        empty = await gpuyard(nats_server.url, "jobs")
        assert (empty.code, empty.out) == (0, b"")
        assert "no unfinished jobs; -a shows finished ones" in empty.err
        await gpuyard(nats_server.url, "run", "--id", "done", "--name", "n", "busybox")
        yard.on_submit = runs_on
        await gpuyard(nats_server.url, "submit", "--id", "active", "busybox")
        assert (await gpuyard(nats_server.url, "ps", "-q")).out == b"active\n"
        assert (await gpuyard(nats_server.url, "-q", "jobs", "-a")).out == b"done\nactive\n"
        table = (await gpuyard(nats_server.url, "jobs", "-a")).out.decode()
        assert table.splitlines()[0].split() == [
            *("ID", "NAME", "USER", "STATE", "GPUS", "NODE", "AGE", "WHY")
        ]
        as_json = json.loads((await gpuyard(nats_server.url, "jobs", "-a", "--json")).out)
        assert [view["id"] for view in as_json] == ["done", "active"]
        job = json.loads((await gpuyard(nats_server.url, "job", "--json", "done")).out)
        assert [event["kind"] for event in job["events"]][-1] == "failed"
        assert "Exit code" in (await gpuyard(nats_server.url, "job", "done")).out.decode()
        logs = await gpuyard(nats_server.url, "logs", "done")
        assert (logs.out, logs.err) == (b"out\n", "err\n")
        lines = json.loads((await gpuyard(nats_server.url, "logs", "--json", "done")).out)
        assert [(line["stream"], line["text"]) for line in lines] == [
            ("stdout", "out"),
            ("stderr", "err"),
        ]
        follow = await gpuyard(nats_server.url, "logs", "-f", "--json", "done")
        assert len([json.loads(line) for line in follow.out.splitlines()]) == 2
        events = (await gpuyard(nats_server.url, "events", "done")).out.decode()
        assert events.split()[3] == "accepted"
        version = json.loads((await gpuyard(nats_server.url, "version", "--json")).out)
        assert version["yard"]["yard"] == "abc123"


async def test_version_needs_no_yard() -> None:
    done = await gpuyard("nats://127.0.0.1:1", "version")
    assert (done.code, done.out.startswith(b"gpuyard ")) == (0, True)


async def shell(url: str, line: str) -> tuple[int, bytes, bytes]:
    """(code, stdout, stderr) of a line for bash in which `gpuyard` is ours."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", line.replace("gpuyard", shlex.join(COMMAND))),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(url),
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, out, err


async def test_a_closed_stdout_is_told_and_nothing_is_started(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        code, _, err = await shell(nats_server.url, "gpuyard run busybox >&-")
        assert (code, yard.submissions) == (125, [])
        assert err == b"gpuyard: standard output is closed; write >/dev/null to drop it\n"
        assert (await shell(nats_server.url, "gpuyard status >&-"))[0] == 2


async def test_a_closed_stderr_loses_only_what_goes_there(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url, exits(7)):
        code, out, err = await shell(nats_server.url, "gpuyard run busybox 2>&-")
        assert (code, out, err) == (7, b"out\n", b"")
        code, out, err = await shell(nats_server.url, "gpuyard run --bogus busybox <&- 2>&-")
        assert (code, out, err) == (125, b"", b"")


async def test_off_a_terminal_run_says_once_what_it_waits_for_and_pulls(
    nats_server: NatsServer,
) -> None:
    async def live(yard: FakeYard, job: FakeJob) -> None:
        await yard.accept(job)
        for message in ("0/1 nodes fit", "0/1 nodes fit", "1 job goes first"):
            await yard.event(job, "queued", message=message)
        await yard.assign(job)
        for done in (1, 2):
            for node in ("n1", "n2"):
                data = {"done_bytes": done, "total_bytes": 2, "node": node}
                await yard.event(job, "pulling", data=data)
        await yard.chunk(job, b"out\n")
        await yard.event(job, "running")
        await yard.chunk(job, b"", end=True)
        await yard.end(job)

    async with FakeYard(nats_server.url, live):
        loud = await gpuyard(nats_server.url, "run", "--id", "one", "busybox")
        assert (loud.code, loud.err.splitlines()) == (
            0,
            [
                "gpuyard: job one waits: 0/1 nodes fit",
                "gpuyard: job one waits: 1 job goes first",
                "gpuyard: job one is pulling busybox on n1",
                "gpuyard: job one is pulling busybox on n2",
                "gpuyard: job one has pulled busybox on n1, n2",
            ],
        )
        assert loud.out == b"out\n"
        quiet = await gpuyard(nats_server.url, "run", "-q", "--id", "two", "busybox")
        assert (quiet.code, quiet.err) == (0, "")


async def test_a_closed_pipe_ends_quietly(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        for number in range(10_000):
            id = f"job-{number:05d}"
            yard.jobs[id] = FakeJob({"id": id, "image": "busybox"}, "default", "alice")
        line = f"{shlex.join(COMMAND)} jobs | head -n 1; echo ${{PIPESTATUS[0]}}"
        shell = await asyncio.create_subprocess_exec(
            "bash",
            *("-c", line),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(nats_server.url),
        )
        out, err = await shell.communicate()
        assert out.decode().splitlines()[1:] == ["141"]
        assert err == b""


async def test_ten_thousand_jobs_are_listed(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        for number in range(10_000):
            id = f"job-{number:05d}"
            yard.jobs[id] = FakeJob({"id": id, "image": "busybox"}, "default", "alice")
        done = await gpuyard(nats_server.url, "jobs", "-q")
        assert len(done.out.splitlines()) == 10_000
        few = await gpuyard(nats_server.url, "jobs", "-q", "--limit", "700")
        assert len(few.out.splitlines()) == 700
