"""What people wait for: a list of 10,000 jobs, `why` on 1,000 nodes, the next job after a release.

Real nats-server, coordinator and agent; the agent simulates nodes and GPUs and starts nothing. The
list is of 100 nodes' jobs, 800 that run and 9,200 of ten shapes that wait; `why` is asked of a job
with four lines of `where` that no node of a full fleet takes, while all 1,000 beat. The third yard
has one node, on which jobs that take all of it follow each other: timed from the beat that tells an
end to the push that starts the next, both seen by one subscriber.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.dispatch_floor import Floor, FloorTimes, WrittenKey
from benchmarks.report import Goal, Result, milliseconds, p50_p99, table
from benchmarks.yard import Yard
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, Publication, connect
from gpuyard.client.sync_client import Client
from gpuyard.errors import Unavailable

LIST_NODES: Final = 100
WHY_NODES: Final = 1000
GPUS: Final = 8
JOBS: Final = 10_000
SHAPES: Final = 10
LISTS: Final = 9
WHYS: Final = 30
RELEASES: Final = 200
JOBS_GOAL_S: Final = 1.0
WHY_GOAL_S: Final = 0.3
RELEASE_GOAL_MS: Final = 50.0
_SETTLE_S: Final = 240.0
_AT_ONCE: Final = 250
_HOUR: Final = {"image": "none", "labels": {"sim.duration": "1h"}}
Progress = Callable[[str], None]
Rows = dict[str, tuple[float, float]]


def run(progress: Progress) -> Result:
    result = Result("reads", f"{JOBS} jobs listed, why on {WHY_NODES} nodes, release to push")
    with _filled(LIST_NODES, progress) as (yard, client):
        shapes = [_HOUR | {"gpus": 2 + n % SHAPES} for n in range(JOBS - LIST_NODES * GPUS)]
        asyncio.run(_submit(yard.url, shapes))
        _until(client, lambda status: sum(status["queue"].values()) == len(shapes))
        progress(f"{JOBS} jobs are there; lists them")
        lists = _lists(yard, client)
    with _filled(WHY_NODES, progress) as (yard, client):
        progress("all GPUs are held; asks why")
        whys = _whys(yard, client)
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        released, floor = _releases(Path(folder), progress)
    releases: Rows = {
        "beat with the end -> push of the next job": p50_p99(released),
        "floor: one fenced commit, one push": p50_p99([f.commit + f.push for f in floor]),
    }
    result.text += [*_lines(f"list, ms ({LISTS} times)", lists), ""]
    result.text += [*_lines(f"why, ms ({WHYS} times)", whys), ""]
    result.text += _lines(f"release, ms ({RELEASES} times)", releases)
    result.figures = {
        "list_ms": _figures(lists),
        "why_ms": _figures(whys),
        "release_ms": _figures(releases),
    }
    result.goals = [
        Goal("p50 of gpuyard jobs", lists["gpuyard jobs"][0], JOBS_GOAL_S, "s"),
        Goal("p50 of Client.jobs()", lists["Client.jobs()"][0], JOBS_GOAL_S, "s"),
        Goal("p50 of Client.why()", whys["Client.why()"][0], WHY_GOAL_S, "s"),
        Goal("p99 of release -> push", p50_p99(released)[1] * 1000, RELEASE_GOAL_MS, "ms"),
    ]
    return result


@contextlib.contextmanager
def _filled(nodes: int, progress: Progress) -> Iterator[tuple[Yard, Client]]:
    """A yard whose GPUs are all held by jobs of one GPU that last an hour."""
    settings = {"GPUYARD_RUNTIME": "simulated", "GPUYARD_SIMULATE": str(nodes)}
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        Yard(Path(folder), agent=settings) as yard,
        yard.client() as client,
    ):
        _until(client, lambda status: status["nodes"].get("ready") == nodes)
        progress(f"{nodes} nodes are ready; submits a job for each of {nodes * GPUS} GPUs")
        asyncio.run(_submit(yard.url, [_HOUR | {"gpus": 1}] * (nodes * GPUS)))
        _until(client, lambda status: status["gpus"]["used"] == nodes * GPUS)
        yield yard, client


def _lists(yard: Yard, client: Client) -> Rows:
    views = [dict(job.view) for job in client.jobs()]
    if len(views) != JOBS:
        raise RuntimeError(f"{len(views)} jobs are listed")

    def encode_and_decode() -> None:
        for start in range(0, len(views), 500):
            codec.decode(codec.encode({"items": views[start : start + 500]}))

    return {
        "gpuyard jobs": _timed(LISTS, lambda: _cli(yard, "jobs")),
        "gpuyard jobs --json": _timed(LISTS, lambda: _cli(yard, "jobs", "--json")),
        "Client.jobs()": _timed(LISTS, lambda: list(client.jobs())),
        "floor: the same views, encoded and decoded": _timed(LISTS, encode_and_decode),
    }


def _whys(yard: Yard, client: Client) -> Rows:
    spec = {
        "gpus": 4,
        "where": ["gpu-name=*4090|*A100*", "gpu-memory>=24", "gpu-cuda-version>=12", "node!=x*"],
    }
    id = client.submit(_HOUR | spec).id
    found = client.why(id)
    if len(found["nodes"]) != WHY_NODES or not found["changes"]:
        raise RuntimeError(f"why says {found['verdict']}")

    def encode_and_decode() -> None:
        codec.decode(codec.encode({"v": 1, "why": found}))

    return {
        "gpuyard why": _timed(LISTS, lambda: _cli(yard, "why", id)),
        "Client.why()": _timed(WHYS, lambda: client.why(id)),
        "floor: one question and a small answer": _timed(WHYS, client.version),
        "floor: its answer, encoded and decoded": _timed(WHYS, encode_and_decode),
        "floor: gpuyard version": _timed(LISTS, lambda: _cli(yard, "version")),
    }


def _timed(rounds: int, call: Callable[[], object]) -> tuple[float, float]:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return p50_p99(seconds)


def _cli(yard: Yard, *arguments: str) -> None:
    command = [sys.executable, "-m", "gpuyard.cli", *arguments]
    subprocess.run(command, env=yard.environment(), check=True, stdout=subprocess.DEVNULL)


def _until(client: Client, is_reached: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + _SETTLE_S
    status: dict[str, Any] = {}
    while not status.get("nodes") or not is_reached(status):
        if time.monotonic() > deadline:
            seen = {key: status.get(key) for key in ("nodes", "gpus", "queue")}
            raise RuntimeError(f"the yard does not settle: {seen}")
        time.sleep(0.5)
        with contextlib.suppress(Unavailable):  # it is busy with what it was just sent
            status = client.status()


async def _submit(url: str, specs: Sequence[dict[str, Any]]) -> None:
    async with await connect(url, name="bench-submit", inbox_prefix="_INBOX.bench") as bus:
        for start in range(0, len(specs), _AT_ONCE):
            part = [json.dumps(spec).encode() for spec in specs[start : start + _AT_ONCE]]
            to = subjects.submit("default")
            await asyncio.gather(*(bus.jetstream.publish(Publication(to, body)) for body in part))


def _releases(folder: Path, progress: Progress) -> tuple[list[float], list[FloorTimes]]:
    settings = {"GPUYARD_RUNTIME": "simulated", "GPUYARD_SIMULATE": "1"}
    with Yard(folder, agent=settings) as yard:
        progress(f"one node; {RELEASES} jobs that take all of it")
        return asyncio.run(_follow(yard))


async def _follow(yard: Yard) -> tuple[list[float], list[FloorTimes]]:
    async with await connect(yard.url, name="bench", inbox_prefix="_INBOX.bench") as bus:
        tap = _Tap()
        await tap.start(bus, yard.node)
        spec = {"image": "none", "gpus": GPUS, "labels": {"sim.duration": "100ms"}}
        await _submit(yard.url, [spec] * (RELEASES + 1))
        async with asyncio.timeout(_SETTLE_S):
            while len(tap.seconds) < RELEASES:
                await asyncio.sleep(0.1)
        written = [WrittenKey("job.default.0123456789abcdef", tap.usual_commit(), False)]
        async with Floor(yard.url, written=written, wanted_bytes=tap.wanted_bytes) as floor:
            rounds = [await floor.once(json.dumps(spec).encode()) for _ in range(RELEASES)]
    return tap.seconds[:RELEASES], rounds


@dataclass(slots=True)
class _Tap:
    """Hears each beat, push and commit as they are routed."""

    seconds: list[float] = field(default_factory=list)
    wanted_bytes: int = 0
    _ended_at: float | None = None
    _ended: set[str] = field(default_factory=set)
    _wanted: set[str] = field(default_factory=set)
    _commits: list[int] = field(default_factory=list)

    async def start(self, bus: Bus, node: str) -> None:
        await bus.agents.subscribe(subjects.beat(node), self._on_beat)
        await bus.agents.subscribe(subjects.wanted(node), self._on_wanted)
        await bus.app.subscribe(subjects.state(subjects.COMMIT_KEY), self._on_commit)

    def usual_commit(self) -> int:
        """Bytes of the commits between an end and the push after it, the median."""
        return sorted(self._commits)[len(self._commits) // 2] if self._commits else 2048

    def _on_beat(self, message: Message) -> None:
        at = time.perf_counter()
        ended = {a["job"] for a in message.body()["attempts"] if a["state"] == "ended"}
        if ended - self._ended:
            self._ended_at = at
        self._ended |= ended

    def _on_commit(self, message: Message) -> None:
        if self._ended_at is not None:
            self._commits.append(len(message.data))

    def _on_wanted(self, message: Message) -> None:
        at = time.perf_counter()
        wanted = {entry["job"] for entry in message.body()["entries"]}
        if wanted - self._wanted and self._ended_at is not None:
            self.seconds.append(at - self._ended_at)
            self.wanted_bytes = len(message.data)
            self._ended_at = None
        self._wanted |= wanted


def _lines(title: str, rows: Rows) -> list[str]:
    cells = [(name, milliseconds(p50), milliseconds(p99)) for name, (p50, p99) in rows.items()]
    return table((title, "p50", "p99"), cells)


def _figures(rows: Rows) -> dict[str, dict[str, float]]:
    return {
        name: {"p50": round(p50 * 1000, 3), "p99": round(p99 * 1000, 3)}
        for name, (p50, p99) in rows.items()
    }
