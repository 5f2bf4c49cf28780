"""A coordinator starts on a bucket with 100,000 live jobs: until it places, and what memory it takes.

Real nats-server and coordinator. The jobs were written by the coordinator's own core: 4,000 run on
500 nodes that are silent, the others wait. One free node beats, so the first placement is the wanted
document that it gets. Timed from the start of the process; memory is the process's peak until then.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.filled_yard import filled_cluster, submitted
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
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Now
from tests.support.nats_server import NatsServer

JOBS: Final = 100_000
NODES: Final = 500
ROUNDS: Final = 3
GOAL_S: Final = 5.0
GOAL_MIB: Final = 400.0
_STORE_GIB: Final = 2
_NODE: Final = "node-999999"
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
        ["floor: the interpreter and its imports", *_range(figures["imports_s"])],
        ["floor: the same keys read, nothing done with them", *_range(figures["read_s"])],
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
    figures: dict[str, list[float]] = {"placing_s": [], "peak_mib": [], "imports_s": []}
    figures["read_s"] = []
    async with await connect(url, name="bench", inbox_prefix="_INBOX.bench") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
        progress(f"writing {JOBS:,} jobs")
        await _fill(bus)
        for number in range(ROUNDS):
            figures["imports_s"].append(_imports())
            figures["read_s"].append(await _read(bus))
            placing_s, peak_mib = await _start(bus, url, folder, number)
            progress(f"round {number + 1} of {ROUNDS}: {placing_s:.2f} s, {peak_mib:.0f} MiB")
            figures["placing_s"].append(placing_s)
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
    now = Now(100.0, "2026-01-01T00:00:00.000Z")
    for number in range(len(cluster.jobs), JOBS):
        apply(cluster, submitted(number), now, Effects())
    yield from _stored(cluster)


def _stored(cluster: Cluster) -> Iterator[tuple[str, bytes]]:
    for node in cluster.nodes.values():
        yield subjects.node_key(node.name), codec.encode(dict(documents.node_document(node)))
    for job in cluster.jobs.values():
        yield subjects.job_key(*job.key), documents.encode_job(job)


def _imports() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import gpuyard_coordinator.__main__"], check=True)
    return time.monotonic() - began


async def _read(bus: Bus) -> float:
    began = time.monotonic()
    async for _ in last_values(bus.jetstream, subjects.STATE_STREAM, subjects.state("job.>")):
        pass
    return time.monotonic() - began


async def _start(bus: Bus, url: str, folder: Path, number: int) -> tuple[float, float]:
    """(seconds to the first placement, peak MiB) of a new coordinator."""
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
        return took, _peak_mib(process.pid)
    finally:
        beating.cancel()
        process.terminate()
        process.wait(15.0)


def _spawn(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    config = folder / "coordinator.toml"
    config.write_text(f"store_max_gib = {_STORE_GIB}\n")
    command = [sys.executable, "-m", "gpuyard_coordinator", "--config", str(config), "--url", url]
    with (folder / "coordinator.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "VmHWM":
            return int(rest.split()[0]) / 1024
    raise RuntimeError("this kernel does not tell a process's peak memory")
