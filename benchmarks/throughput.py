"""10,000 queued jobs that take no time, 5,000 nodes of 8 GPUs that beat: placements a second.

Real nats-server that syncs every write, one coordinator, and one process that plays all agents
(`light_fleet.py`), all on this machine's cores. The jobs are submitted before, each with a spec of
its own and 1 GPU, while their tenant may run one job at a time and one that does not end runs
already; an operator then lifts that limit. The clock starts when that request is sent: from then on
the leader may place. It stops, for `placed`, when the last job's node is told of it, and for
`ended`, which the goal is about, when its node is told that its end is committed. Between the two
each job is reported as running, that is committed and answered, and only then reported as over:
what a job costs is its whole life after the queue, with every transition committed. The regular
beats go on all the time.

Beside the rates stand the CPU seconds of each process for a job: they tell what the machine could
do if others left it alone. Checked afterwards: all jobs are kept as succeeded, and the event stream
has each transition once.

Floor: as many commits with as many messages, and beside them as many events, all of the same sizes,
on the same server by one program that decides nothing and has no fleet.

`python -m benchmarks.throughput run JOBS NODES` is the same at another size.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import light_fleet, machine
from benchmarks.report import Goal, Result, table
from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_MESSAGES,
    Bus,
    Publication,
    Sizes,
    connect,
    ensure_streams,
    stream_configs,
)
from gpuyard.errors import Unavailable
from gpuyard_coordinator.store import Store
from tests.support.nats_server import NatsServer

JOBS: Final = 10_000
NODES: Final = 5_000
GOAL_PER_S: Final = 2000
TENANT: Final = "team-a"
EVENTS_OF_A_JOB: Final = 5
"""accepted, queued, assigned, running, succeeded."""
EVENTS_OF_THE_ENDLESS: Final = 3
READY_S: Final = 180.0
_STORE_GIB: Final = 2
_SUBMITTERS: Final = 200
_FLOOR_STATE: Final = "$KV.floor"
_FLOOR_EVENTS: Final = "floor.events"
Progress = Callable[[str], None]


def run(progress: Progress, jobs: int = JOBS, nodes: int = NODES) -> Result:
    result = Result("throughput", f"{jobs:,} queued jobs that take no time onto {nodes:,} nodes")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "nats") as server,
    ):
        figures = asyncio.run(_Bench(server, Path(folder), jobs, nodes, progress).measure())
    rows = [
        [name, f"{figures[f'{name}_per_s']:.0f}", f"{figures[f'{name}_s']:.2f}"]
        for name in ("placed", "ended", "floor")
    ]
    result.text += table(["", "jobs/s", "seconds"], rows)
    rows = [
        [name, f"{figures[f'{name}_cpu_ms']:.3f}"]
        for name in ("coordinator", "server", "fleet", "all", "floor", "floor_server")
    ]
    result.text += table(["", "CPU ms a job"], rows)
    result.text.append(
        f"{figures['commits']:.0f} commits, {figures['bucket_messages']:.0f} messages to the "
        f"bucket, {figures['event_messages']:.0f} events, {figures['beats']:.0f} beats"
    )
    result.figures = figures
    result.goals = [
        Goal("time of a job to its end", figures["ended_s"] * 1e3 / jobs, 1e3 / GOAL_PER_S, "ms"),
        Goal("CPU time of all for a job", figures["all_cpu_ms"], 2e3 / GOAL_PER_S, "ms"),
    ]
    return result


class _Bench:
    def __init__(
        self, server: NatsServer, folder: Path, jobs: int, nodes: int, progress: Progress
    ) -> None:
        self._server = server
        self._folder = folder
        self._jobs = jobs
        self._nodes = nodes
        self._progress = progress
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._bus: Bus

    async def measure(self) -> dict[str, float]:
        url = self._server.url
        async with await connect(url, name="bench", inbox_prefix="_INBOX.t._.bench") as self._bus:
            await ensure_streams(self._bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
            self._spawn()
            try:
                await self._until_ready()
                await self._hold_back()
                self._progress(f"submitting {self._jobs:,} jobs")
                await self._submit()
                self._progress("placing")
                figures = await self._window()
                await self._check()
            finally:
                for process in self._processes.values():
                    process.terminate()
                    process.wait(30.0)
            self._progress("the floor")
            return figures | await self._floor(figures)

    def _spawn(self) -> None:
        config = self._folder / "coordinator.toml"
        config.write_text(f"store_max_gib = {_STORE_GIB}\ndir = '{self._folder}'\n")
        url, nodes = self._server.url, str(self._nodes)
        commands = {
            "coordinator": ["-m", "gpuyard_coordinator", "--config", str(config), "--url", url],
            "fleet": ["-m", "benchmarks.light_fleet", url, nodes],
        }
        for name, command in commands.items():
            with (self._folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )

    async def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """What the leader answers, once somebody leads; for what may be asked twice."""
        subject = subjects.api(subjects.OPERATOR_TENANT, "bench", operation)
        request = {"v": 1, **arguments}
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    answer = await self._bus.tenants.request(subject, request, timeout_s=30.0)
                    break
                except Unavailable:
                    await asyncio.sleep(0.2)
        body = answer.body()
        if "error" in body:
            raise RuntimeError(f"{operation}: {body['error']}")
        return body

    async def _until_ready(self) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                await asyncio.sleep(2.0)
                nodes: dict[str, int] = (await self._ask("status")).get("nodes") or {}
                self._progress(f"{nodes.get('ready', 0)} of {self._nodes} nodes are ready")
                if nodes.get("ready") == self._nodes:
                    return

    async def _hold_back(self) -> None:
        """The tenant has one job that does not end, and may have no other."""
        job = _job(0) | {"id": light_fleet.ENDLESS}
        await self._bus.jetstream.publish(
            Publication(subjects.submit(TENANT, "alice"), codec.encode(job))
        )
        async with asyncio.timeout(READY_S):
            while (await self._fleet())["placed"] < 1:
                await asyncio.sleep(0.1)
        await self._apply_limit({"running_jobs": 1})

    async def _apply_limit(self, limits: dict[str, int]) -> None:
        await self._ask("tenant-apply", document={"tenant": TENANT, "limits": limits})

    async def _submit(self) -> None:
        numbers = iter(range(self._jobs))

        async def send() -> None:
            for number in numbers:
                body = codec.encode(_job(number))
                publication = Publication(subjects.submit(TENANT, "alice"), body)
                await self._bus.jetstream.publish(publication, timeout_s=30.0)

        await asyncio.gather(*(send() for _ in range(_SUBMITTERS)))
        async with asyncio.timeout(READY_S):
            # None while the bus's storage does not answer.
            while sum(((await self._ask("status"))["queue"] or {}).values()) < self._jobs:
                await asyncio.sleep(0.5)

    async def _window(self) -> dict[str, float]:
        pids = {name: process.pid for name, process in self._processes.items()}
        pids["server"] = self._server.pid
        before, since = await self._counts(), await self._leads_since()
        cpu = {name: machine.cpu_s([pid]) for name, pid in pids.items()}
        began = time.monotonic()
        await self._apply_limit({})
        async with asyncio.timeout(READY_S):
            while (fleet := await self._fleet())["ended"] < self._jobs:
                await asyncio.sleep(0.1)
        spent = {name: machine.cpu_s([pid]) - cpu[name] for name, pid in pids.items()}
        after = await self._counts()
        if await self._leads_since() != since:
            raise RuntimeError("the leader lost its lease meanwhile: this machine is too busy")
        placed, ended = fleet["placed_at"] - began, fleet["ended_at"] - began
        return {
            **{f"{name}_cpu_ms": seconds * 1e3 / self._jobs for name, seconds in spent.items()},
            "all_cpu_ms": sum(spent.values()) * 1e3 / self._jobs,
            "placed_s": placed,
            "ended_s": ended,
            "placed_per_s": self._jobs / placed,
            "ended_per_s": self._jobs / ended,
            **{name: count - before[name] for name, count in after.items()},
        }

    async def _fleet(self) -> dict[str, Any]:
        return (await self._bus.app.request(light_fleet.STATUS, {"v": 1}, timeout_s=30.0)).body()

    async def _leads_since(self) -> str:
        return str((await self._ask("status"))["leader"]["since"])

    async def _counts(self) -> dict[str, int]:
        """What there ever was: commits, messages of the bucket, events, beats."""
        jetstream = self._bus.jetstream
        leader = (await self._ask("status"))["leader"]
        return {
            "commits": leader["commits"],
            "bucket_messages": (await jetstream.state(subjects.STATE_STREAM)).last_sequence,
            "event_messages": (await jetstream.state(subjects.EVENTS_STREAM)).last_sequence,
            "beats": (await self._fleet())["beats"],
        }

    async def _check(self) -> None:
        """Raises RuntimeError where a job or a transition is missing, or there twice."""
        states: dict[str, int] = {}
        cursor: int | None = 0
        await asyncio.sleep(2.0)  # the last checkpoint, and the last events
        store = Store(self._bus.jetstream)
        while cursor is not None:
            jobs, cursor = await store.list_done(TENANT, cursor=cursor)
            for job in jobs:
                states[job["state"]] = states.get(job["state"], 0) + 1
        if states != {"succeeded": self._jobs}:
            raise RuntimeError(f"not all jobs succeeded: {states}")
        events = await self._bus.jetstream.state(subjects.EVENTS_STREAM)
        if events.messages != EVENTS_OF_A_JOB * self._jobs + EVENTS_OF_THE_ENDLESS:
            raise RuntimeError(f"{events.messages} events of {self._jobs} jobs")

    async def _floor(self, figures: dict[str, float]) -> dict[str, float]:
        jetstream = self._bus.jetstream
        events = await jetstream.state(subjects.EVENTS_STREAM)
        (document,), _ = await Store(jetstream).list_done(TENANT, limit=1)
        for config in _floor_streams():
            await jetstream.call(f"STREAM.CREATE.{config['name']}", config)
        writing = [
            self._floor_commits(figures, len(codec.encode(document))),
            self._floor_events(int(figures["event_messages"]), events.bytes // events.messages),
        ]
        pid = self._server.pid
        began, cpu, server = time.monotonic(), time.process_time(), machine.cpu_s([pid])
        await asyncio.gather(*writing)
        took = time.monotonic() - began
        return {
            "floor_s": took,
            "floor_per_s": self._jobs / took,
            "floor_cpu_ms": (time.process_time() - cpu) * 1e3 / self._jobs,
            "floor_server_cpu_ms": (machine.cpu_s([pid]) - server) * 1e3 / self._jobs,
        }

    async def _floor_commits(self, figures: dict[str, float], job_bytes: int) -> None:
        """As many commits, of as many messages; one for each job deletes its key, and is empty."""
        commits, messages = int(figures["commits"]), int(figures["bucket_messages"])
        data = os.urandom(job_bytes * (messages - self._jobs) // messages)
        names = [f"{_FLOOR_STATE}.job.{number}" for number in range(messages)]
        for number in range(commits):
            part = slice(messages * number // commits, messages * (number + 1) // commits)
            await self._write(names[part], data)

    async def _floor_events(self, count: int, size: int) -> None:
        names = [f"{_FLOOR_EVENTS}.{number}" for number in range(count)]
        await self._write(names, os.urandom(max(1, size - 100)))

    async def _write(self, names: Sequence[str], data: bytes) -> None:
        for start in range(0, len(names), MAX_BATCH_MESSAGES):
            part = names[start : start + MAX_BATCH_MESSAGES]
            await self._bus.jetstream.publish_batch([Publication(name, data) for name in part])


def _job(number: int) -> dict[str, Any]:
    return {
        "v": 1,
        "id": f"train-{number}",
        "image": "pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime",
        "command": ["python", "train.py", "--seed", str(number)],
        "env": {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "8"},
        "gpus": 1,
        "memory_mib": 32768,
        "max_runtime": "4h",
    }


def _floor_streams() -> list[dict[str, Any]]:
    """The yard's own configuration of the two, under other names."""
    found = {c["name"]: c for c in stream_configs(Sizes.within(1024**3))}
    return [
        found[subjects.STATE_STREAM] | {"name": "KV_floor", "subjects": [f"{_FLOOR_STATE}.>"]},
        found[subjects.EVENTS_STREAM] | {"name": "FLOOR", "subjects": [f"{_FLOOR_EVENTS}.>"]},
    ]


if __name__ == "__main__":
    print(run(lambda line: print(line, file=sys.stderr), *map(int, sys.argv[2:4])))
