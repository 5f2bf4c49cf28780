"""Whether `wanted.<node>` is stored or derived from `job.*`: what each choice costs.

Stored: every placement, stop and end writes one more key per node in the leader's commit; timed as
the latency of a submission's fenced commit with and without that key, in turn, and of the
checkpoint that moves it to its keys, on a real nats-server with `sync_interval: always`. A commit
above 512 KiB goes to its keys at once and leaves nothing to move. Derived: a new leader rebuilds
all documents from the jobs it reads anyway; timed for 10,000 jobs on 1,250 nodes, beside what
reading stored documents would take.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.filled_yard import GPUS, filled_cluster
from benchmarks.report import Result, milliseconds, p50_p99, table
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication, Sizes, connect, ensure_streams, read_last_values
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.store import Store, Write, delete, put
from tests.support.nats_server import NatsServer
from tests.support.rebuilt import rebuilt

ROUNDS: Final = 300
NODES: Final = 1250
BURST: Final = 100
"""Placements of one turn, each on a node of its own."""
BURST_ROUNDS: Final = 60
_STORE_BYTES: Final = 3 * 1024**3
Latencies = dict[str, list[tuple[float, float]]]
"""Per variant, each variant in turn: seconds of commits and of their checkpoints."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds of a new leader's steps, and what it read."""

    read_jobs: float
    recover: float
    derive: float
    read_wanted: float
    wanted_bytes: int


def run(progress: Progress) -> Result:
    return asyncio.run(_run(progress))


async def _run(progress: Progress) -> Result:
    progress(f"fills a yard with {NODES * GPUS} jobs on {NODES} nodes")
    cluster = filled_cluster(NODES)
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder)) as server,
    ):
        prefix = subjects.COORDINATOR_INBOX
        async with await connect(server.url, name="bench", inbox_prefix=prefix) as bus:
            await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_BYTES))
            store = Store(bus.jetstream, token=(1, await _epoch(bus)))
            latencies = await _latencies(store, cluster, progress)
            restart = await _restart(bus, store, cluster, progress)
    return _report(latencies, restart)


async def _epoch(bus: Bus) -> int:
    """The fence that every batch expects: as a leader of its own would have written it."""
    key = subjects.state(subjects.EPOCH_KEY)
    return (await bus.jetstream.publish(Publication(key, b"bench"))).sequence


def _rotated(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


async def _latencies(store: Store, cluster: Cluster, progress: Progress) -> Latencies:
    found: Latencies = {}
    for number in range(ROUNDS):
        variants = _variants(cluster, number)
        if number < BURST_ROUNDS:
            variants |= _bursts(cluster, number)
        # Each in every place of the order, since a commit's time depends on the one before it.
        for name in _rotated(list(variants), number):
            found.setdefault(name, []).append(await _timed(store, variants[name]))
        if (number + 1) % 100 == 0:
            progress(f"{number + 1} of {ROUNDS} rounds of commits")
    return found


def _variants(cluster: Cluster, number: int) -> dict[str, list[Write]]:
    base = _submission(cluster, number)
    entries = documents.wanted_document(cluster, _node(cluster, number))["entries"]
    found = {"1 placement, derived": base}
    for count in (1, 8, 64):
        document = _wanted(cluster, number, (entries * 8)[:count])
        found[f"1 placement, stored, {count} on the node"] = [*base, document]
    return found


def _bursts(cluster: Cluster, number: int) -> dict[str, list[Write]]:
    several = [_submission(cluster, number * BURST + i) for i in range(BURST)]
    base = [writes[0] for writes in several]
    events = [message for writes in several for message in _messages(writes[1])]
    base.append(put(subjects.out_key(10**6 + number), {"v": 1, "messages": events}))
    wanted = [_wanted(cluster, number * BURST + i, None) for i in range(BURST)]
    return {
        f"{BURST} placements, derived": base,
        f"{BURST} placements, stored, 8 on each node": [*base, *wanted],
    }


def _submission(cluster: Cluster, number: int) -> list[Write]:
    """What the leader writes for a job that is accepted and assigned in one turn."""
    job = list(cluster.jobs.values())[number % len(cluster.jobs)]
    node = job.attempts[-1].node
    event = {
        "v": 1,
        "seq": 1,
        "at": job.submitted_at,
        "tenant": job.tenant,
        "job": job.id,
        "attempt": 1,
        "kind": "assigned",
        "state": "assigned",
        "node": node,
        "reason": None,
        "message": None,
        "actor": job.user,
        "data": {"gpus": [gpu["uuid"] for gpu in job.attempts[-1].gpus]},
    }
    messages = [
        {"subject": subjects.event(job.tenant, job.id, kind, n), "body": event}
        for n, kind in enumerate(("accepted", "assigned"), 1)
    ]
    return [
        put(subjects.job_key(*job.key), dict(documents.job_document(job))),
        put(subjects.out_key(10_000 + number), {"v": 1, "messages": messages}),
        delete(subjects.out_key(9_999 + number)),
    ]


def _messages(write: Write) -> list[Any]:
    return list(codec.decode(write.data or b"")["messages"])


def _node(cluster: Cluster, number: int) -> Any:
    return cluster.nodes[f"node-{number % len(cluster.nodes)}"]


def _wanted(cluster: Cluster, number: int, entries: list[Any] | None) -> Write:
    node = _node(cluster, number)
    document: dict[str, Any] = dict(documents.wanted_document(cluster, node))
    if entries is not None:
        document["entries"] = entries
    return put(f"wanted.{node.name}", document)


async def _timed(store: Store, writes: Sequence[Write]) -> tuple[float, float]:
    """Seconds of the commit, and of the checkpoint after it."""
    began = time.perf_counter()
    await store.commit(writes)
    committed = time.perf_counter()
    await _checkpoint(store)
    return committed - began, time.perf_counter() - committed


async def _checkpoint(store: Store) -> None:
    while not await store.checkpoint():
        pass


async def _restart(bus: Bus, store: Store, cluster: Cluster, progress: Progress) -> Restart:
    progress("stores all of it and takes over")
    await _store_all(store, cluster)
    await _checkpoint(store)
    began = time.perf_counter()
    jobs, nodes = await _read(bus, "job.>"), await _read(bus, "node.>")
    read = time.perf_counter()
    fresh = rebuilt(yard="bench0", token=(1, 2), jobs=jobs, nodes=nodes, now=Clock().now())
    recovered = time.perf_counter()
    derived = [codec.encode(documents.wanted_document(fresh, n)) for n in fresh.nodes.values()]
    done = time.perf_counter()
    if len(fresh.jobs) != NODES * GPUS:
        raise RuntimeError(f"{len(fresh.jobs)} jobs came back, and {NODES * GPUS} were stored")
    decoded = [codec.decode(data) for data in await _read(bus, "wanted.>")]
    after = time.perf_counter()
    if sum(len(document["entries"]) for document in decoded) < len(fresh.jobs):
        raise RuntimeError("the stored wanted documents lack jobs")
    return Restart(
        read_jobs=read - began,
        recover=recovered - read,
        derive=done - recovered,
        read_wanted=after - done,
        wanted_bytes=sum(map(len, derived)),
    )


async def _read(bus: Bus, keys: str) -> list[bytes]:
    wildcard = subjects.state(keys)
    found = await read_last_values(bus.jetstream, subjects.STATE_STREAM, [wildcard])
    return [stored.data for stored in found]


async def _store_all(store: Store, cluster: Cluster) -> None:
    """Every job, node and wanted document, in batches; keys of the first part are overwritten."""
    writes = [
        put(subjects.job_key(*job.key), dict(documents.job_document(job)))
        for job in cluster.jobs.values()
    ]
    for node in cluster.nodes.values():
        writes.append(put(subjects.node_key(node.name), dict(documents.node_document(node))))
        wanted = documents.wanted_document(cluster, node)
        writes.append(put(f"wanted.{node.name}", dict(wanted)))
    for start in range(0, len(writes), 300):
        await store.commit(writes[start : start + 300])


def _report(latencies: Latencies, restart: Restart) -> Result:
    result = Result("wanted_store", "wanted.<node> stored in the batch, or derived from job.*")
    found = {name: p50_p99([pair[0] for pair in pairs]) for name, pairs in latencies.items()}
    moved = {name: p50_p99([pair[1] for pair in pairs]) for name, pairs in latencies.items()}
    rows = []
    for name, (p50, p99) in found.items():
        base = f"{name.split(',')[0]}, derived"
        cells = [milliseconds(p50), milliseconds(p99), f"{p50 / found[base][0]:.2f}"]
        cells += [milliseconds(moved[name][0]), f"{moved[name][0] / moved[base][0]:.2f}"]
        rows.append((name, *cells))
    head = ("ms; floor: derived", "commit p50", "p99", "ratio", "checkpoint p50", "ratio")
    result.text += table(head, rows)
    steps = [
        ("reading and decoding jobs and nodes (both ways)", f"{restart.read_jobs:.3f}"),
        ("rebuilding the state from them (both ways)", f"{restart.recover:.3f}"),
        ("derived: making all wanted documents", f"{restart.derive:.3f}"),
        ("stored: reading and decoding them", f"{restart.read_wanted:.3f}"),
    ]
    take_over = (f"take-over, {NODES * GPUS} jobs, {NODES} nodes", "s")
    result.text += ["", *table(take_over, steps)]
    both_ways = restart.read_jobs + restart.recover
    result.text.append(
        f"all wanted documents have {restart.wanted_bytes / 2**20:.1f} MiB; deriving them takes "
        f"{restart.derive / restart.read_wanted:.2f} of the time of reading them stored, "
        f"{100 * restart.derive / both_ways:.0f} % of the rest of the take-over"
    )
    result.figures = {
        "commit_ms": _figures(found),
        "checkpoint_ms": _figures(moved),
        "take_over_s": {
            "read_jobs": round(restart.read_jobs, 4),
            "recover": round(restart.recover, 4),
            "derive_wanted": round(restart.derive, 4),
            "read_stored_wanted": round(restart.read_wanted, 4),
        },
        "wanted_bytes": restart.wanted_bytes,
        "rounds": ROUNDS,
    }
    return result


def _figures(rows: dict[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"p50": round(p50 * 1000, 3), "p99": round(p99 * 1000, 3)}
        for name, (p50, p99) in rows.items()
    }
