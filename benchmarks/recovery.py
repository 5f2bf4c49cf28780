"""A coordinator starts on a bucket with 100,000 live jobs: time until it places, and memory.

Real nats-server and coordinator. The documents are the coordinator's own: 20,000 jobs run on 1,000
nodes that are silent, one on each GPU and the others without any; the rest wait, no two of them
alike, of ten tenants with four sizes each. One free node beats, so the first placement is the
wanted document that it gets. Timed from the start of the process; CPU seconds and memory (its peak)
are the process's own until then.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.filled_yard import GPUS, beat, filled_cluster
from benchmarks.fleet import FleetNode
from benchmarks.report import Goal, Result, table
from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_MESSAGES,
    Bus,
    Publication,
    Sizes,
    connect,
    ensure_streams,
    last_values,
)
from gpuyard.model.job import spec_digest
from gpuyard.model.states import JobState
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.state import Attempt, Job, Node
from tests.support.nats_server import NatsServer

JOBS: Final = 100_000
NODES: Final = 1000
RUN_ON_EACH: Final = 20
TENANTS: Final = 10
SIZES: Final = (1, 2, 4, 8)
ROUNDS: Final = 3
GOAL_S: Final = 5.0
GOAL_MIB: Final = 400.0
_STORE_GIB: Final = 2
_NODE: Final = "node-999999"
_ENVIRONMENT: Final = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""With bytecode, as installed code has it; in a working tree the first import writes it."""
Progress = Callable[[str], None]


def run(progress: Progress) -> Result:
    result = Result("recovery", f"a coordinator starts on {JOBS:,} live jobs")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "nats") as server,
    ):
        figures = asyncio.run(_measure(server.url, Path(folder), progress))
    rows = [
        ["process start -> first placement", *_range(figures["placing_s"])],
        ["CPU seconds of that", *_range(figures["cpu_s"])],
        ["floor: the interpreter and its imports", *_range(figures["imports_s"])],
        ["floor: the same keys read, nothing done with them", *_range(figures["read_s"])],
        ["CPU seconds of that", *_range(figures["read_cpu_s"])],
    ]
    result.text += table(["s", "least", "largest"], rows)
    peak = max(figures["peak_mib"])
    result.text.append(f"peak memory {peak:.0f} MiB, {peak * 1024 / JOBS:.1f} KiB for each job")
    result.figures = figures
    result.goals = [
        Goal("time to the first placement", max(figures["placing_s"]), GOAL_S, "s"),
        Goal("peak memory", peak, GOAL_MIB, "MiB"),
    ]
    return result


def _range(values: list[float]) -> list[str]:
    return [f"{min(values):.2f}", f"{max(values):.2f}"]


async def _measure(url: str, folder: Path, progress: Progress) -> dict[str, list[float]]:
    bus: Bus
    names = ("placing_s", "cpu_s", "peak_mib", "imports_s", "read_s", "read_cpu_s")
    figures: dict[str, list[float]] = {name: [] for name in names}
    async with await connect(url, name="bench", inbox_prefix="_INBOX.bench") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
        progress(f"writing {JOBS:,} jobs")
        await _fill(bus)
        for number in range(ROUNDS):
            figures["imports_s"].append(_imports())
            read_s, read_cpu_s = await _read(bus)
            placing_s, cpu_s, peak_mib = await _start(bus, url, folder, number)
            progress(
                f"round {number + 1} of {ROUNDS}: {placing_s:.2f} s, {cpu_s:.2f} s of CPU, "
                f"{peak_mib:.0f} MiB"
            )
            figures["read_s"].append(read_s)
            figures["read_cpu_s"].append(read_cpu_s)
            figures["placing_s"].append(placing_s)
            figures["cpu_s"].append(cpu_s)
            figures["peak_mib"].append(peak_mib)
    return figures


async def _fill(bus: Bus) -> None:
    batch: list[Publication] = []
    for key, data in _documents():
        batch.append(Publication(subjects.state(key), data))
        if len(batch) == MAX_BATCH_MESSAGES:
            await bus.jetstream.publish_batch(batch, timeout_s=30.0)
            batch = []
    await bus.jetstream.publish_batch(batch, timeout_s=30.0)


def _documents() -> Iterator[tuple[str, bytes]]:
    cluster = filled_cluster(NODES)
    # Of the generation whose leader the nodes have told what they run.
    yard = {"v": 1, "id": cluster.yard, "generation": cluster.token[0]}
    yield subjects.YARD_KEY, codec.encode(yard)
    yield subjects.MIX_KEY, codec.encode(Mix(cluster.mix.counts, JOBS, JOBS + 1).to_document())
    for node in [*cluster.nodes.values(), *_free_nodes(next(iter(cluster.nodes.values())))]:
        yield subjects.node_key(node.name), codec.encode(dict(documents.node_document(node)))
    like = next(iter(cluster.jobs.values()))
    jobs = [*cluster.jobs.values(), *_without_gpus(like, list(cluster.nodes.values()))]
    for job in jobs:
        yield subjects.job_key(*job.key), documents.encode_job(job)
    for number in range(len(jobs), JOBS):
        sizes = SIZES[number // TENANTS % len(SIZES)]
        job = _variant(like, number, tenant=f"team-{number % TENANTS}", gpus=sizes)
        job = replace(job, state=JobState.QUEUED, attempts=[])
        yield subjects.job_key(*job.key), documents.encode_job(job)


def _free_nodes(like: Node) -> Iterator[Node]:
    """Known to the yard, so that a new leader asks them for a beat at once."""
    for number in range(ROUNDS):
        says = beat(f"{_NODE}{number}")
        yield replace(
            like, name=says["node"], machine_id=says["machine_id"], boot_id=says["boot_id"]
        )


def _without_gpus(like: Job, nodes: list[Node]) -> Iterator[Job]:
    number = NODES * GPUS
    for node in nodes:
        for _ in range(RUN_ON_EACH - GPUS):
            attempt = Attempt(
                number=1,
                node=node.name,
                machine_id=node.machine_id,
                boot_id=node.boot_id,
                generation=node.generation,
                gpus=[],
                assigned_at=like.submitted_at,
            )
            job = _variant(like, number, tenant=like.tenant, gpus=0)
            yield replace(job, attempts=[attempt])
            number += 1


def _variant(like: Job, number: int, *, tenant: str, gpus: int) -> Job:
    """A job with a command of its own; to have each checked as a submission would take minutes."""
    spec = dict(like.spec)
    spec["name"] = f"train-{number}"
    spec["command"] = ["python", "train.py", "--seed", str(number)]
    spec["gpus"] = {**spec["gpus"], "count": gpus}
    return replace(
        like,
        tenant=tenant,
        id=f"{number:016d}",
        submit_seq=number + 1,
        packed_spec=codec.encode(spec),
        spec_sha256=spec_digest(spec),
    )


def _imports() -> float:
    began = time.monotonic()
    imports = "import gpuyard_coordinator.__main__, gpuyard_coordinator.daemon"
    subprocess.run([sys.executable, "-c", imports], check=True, env=_ENVIRONMENT)
    return time.monotonic() - began


async def _read(bus: Bus) -> tuple[float, float]:
    """(seconds, CPU seconds) of this process."""
    began, cpu = time.monotonic(), time.process_time()
    async for _ in last_values(bus.jetstream, subjects.STATE_STREAM, subjects.state("job.>")):
        pass
    return time.monotonic() - began, time.process_time() - cpu


async def _start(bus: Bus, url: str, folder: Path, number: int) -> tuple[float, float, float]:
    """(seconds to the first placement, CPU seconds, peak MiB) of a new coordinator."""
    # A node of its own each round: what the rounds before placed stays placed.
    node = FleetNode(bus, f"{_NODE}{number}", starts=False)
    await node.start()
    beating = asyncio.create_task(node.run())
    began = time.monotonic()
    process = _spawn(url, folder)
    try:
        async with asyncio.timeout(60.0):
            while not node.seen:
                await asyncio.sleep(0.005)
        took = time.monotonic() - began
        return took, _cpu_s(process.pid), _peak_mib(process.pid)
    finally:
        beating.cancel()
        process.terminate()
        process.wait(15.0)


def _spawn(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    config = folder / "coordinator.toml"
    config.write_text(f'store_max_gib = {_STORE_GIB}\ndir = "{folder}"\n')
    command = [sys.executable, "-m", "gpuyard_coordinator", "--config", str(config), "--url", url]
    with (folder / "coordinator.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_ENVIRONMENT
        )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "VmHWM":
            return int(rest.split()[0]) / 1024
    raise RuntimeError("this kernel does not tell a process's peak memory")
