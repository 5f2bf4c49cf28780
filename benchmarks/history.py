"""A coordinator starts on a bucket with 100,000 ended jobs beside one that has had none.

Real nats-server and coordinator. The ended jobs are records as the coordinator keeps them, with
their time to live, below the same few live jobs. Timed from the start of the process to its first
answer as the leader; the floor is the same start, in turn with it, on a server without the records.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.filled_yard import filled_cluster
from benchmarks.report import Goal, Result, table
from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_MESSAGES,
    Bus,
    Publication,
    Sizes,
    connect,
    ensure_streams,
)
from gpuyard.errors import Unavailable
from gpuyard_coordinator.core import documents
from tests.support.nats_server import NatsServer

ENDED: Final = 100_000
NODES: Final = 5
ROUNDS: Final = 5
GOAL_RATIO: Final = 1.3
_KEPT_S: Final = 30 * 86_400
_STORE_GIB: Final = 2
_MIB: Final = 1024 * 1024
Progress = Callable[[str], None]


def run(progress: Progress) -> Result:
    result = Result("history", f"a coordinator starts below {ENDED:,} ended jobs")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "young") as young,
        NatsServer(Path(folder) / "old") as old,
    ):
        figures = asyncio.run(_measure(young, old, Path(folder), progress))
    ratio = median(figures["old_s"]) / median(figures["young_s"])
    rows = [
        ["floor: no ended jobs", *_range(figures["young_s"])],
        [f"{ENDED:,} ended jobs", *_range(figures["old_s"])],
        ["nats-server's own restart with them", *_range(figures["server_s"])],
    ]
    result.text += table(["process start -> first answer, s", "least", "largest"], rows)
    (size,) = figures["bucket_mib"]
    result.text.append(f"the bucket holds {size:.0f} MiB, {size * 1024 / ENDED:.2f} KiB a job")
    result.figures = figures
    result.goals = [
        Goal("start with a history beside one without (medians)", ratio, GOAL_RATIO, "x")
    ]
    return result


def _range(values: list[float]) -> list[str]:
    return [f"{min(values):.2f}", f"{max(values):.2f}"]


async def _measure(
    young: NatsServer, old: NatsServer, folder: Path, progress: Progress
) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"young_s": [], "old_s": [], "server_s": []}
    async with await _connect(young) as below_none, await _connect(old) as below_many:
        for bus in (below_none, below_many):
            await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
            await _write(bus, _live())
        progress(f"writing {ENDED:,} records")
        await _write(below_many, _ended())
        for number in range(ROUNDS):
            figures["young_s"].append(await _start(below_none, young.url, folder))
            figures["old_s"].append(await _start(below_many, old.url, folder))
            progress(f"round {number + 1} of {ROUNDS}")
        state = await below_many.jetstream.state(subjects.STATE_STREAM)
        figures["bucket_mib"] = [state.bytes / _MIB]
    began = time.monotonic()
    old.restart()
    figures["server_s"].append(time.monotonic() - began)
    return figures


async def _connect(server: NatsServer) -> Bus:
    inbox = subjects.tenant_inbox(subjects.OPERATOR_TENANT, "bench")
    return await connect(server.url, name="bench", inbox_prefix=inbox)


async def _write(bus: Bus, publications: Iterator[Publication]) -> None:
    batch: list[Publication] = []
    for publication in publications:
        batch.append(publication)
        if len(batch) == MAX_BATCH_MESSAGES:
            await bus.jetstream.publish_batch(batch, timeout_s=30.0)
            batch = []
    if batch:
        await bus.jetstream.publish_batch(batch, timeout_s=30.0)


def _live() -> Iterator[Publication]:
    cluster = filled_cluster(NODES)
    for node in cluster.nodes.values():
        key, body = subjects.node_key(node.name), documents.node_document(node)
        yield Publication(subjects.state(key), codec.encode(dict(body)))
    for job in cluster.jobs.values():
        key, document = subjects.job_key(*job.key), documents.job_document(job)
        yield Publication(subjects.state(key), codec.encode(dict(document)))


def _ended() -> Iterator[Publication]:
    """Records of the size that ended jobs have."""
    job = next(iter(filled_cluster(1).jobs.values()))
    document = dict(documents.job_document(job)) | {"state": "succeeded", "exit_code": 0}
    for number in range(ENDED):
        id = f"ended-{number}"
        key = subjects.state(subjects.done_key(job.tenant, id))
        yield Publication(key, codec.encode(document | {"id": id}), ttl_s=_KEPT_S)


async def _start(bus: Bus, url: str, folder: Path) -> float:
    """Seconds until a new coordinator answers as the leader."""
    command = [sys.executable, "-m", "gpuyard_coordinator", "--url", url, "--dir", str(folder)]
    silent = asyncio.subprocess.DEVNULL
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, stdout=silent, stderr=silent)
    try:
        async with asyncio.timeout(60.0):
            while not await _answers(bus):
                await asyncio.sleep(0.01)
        return time.monotonic() - began
    finally:
        process.terminate()
        await process.wait()


async def _answers(bus: Bus) -> bool:
    subject = subjects.api(subjects.OPERATOR_TENANT, "bench", "version")
    try:
        await bus.tenants.request(subject, {"v": 1}, timeout_s=0.5)
    except Unavailable:
        return False
    return True
