"""From the publish on `gpuyard.submit.default` to the create call on the agent, one idle node.

Real nats-server with `sync_interval: always`, real coordinator, real agent with its docker runtime;
the engine behind the agent is the one thing stood in for, since it has to tell when it is asked
(`recording_engine`). One job at a time, and between two of them one round of the floor. Both ends
are timed on this process's clock: the publish just before the bytes are handed to the connection,
the create call when its first byte has arrived.
"""

import asyncio
import json
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.dispatch_floor import Floor, FloorTimes, WrittenKey
from benchmarks.dispatch_tap import PHASES, Watch
from benchmarks.recording_engine import RecordingEngine
from benchmarks.report import Goal, Result, milliseconds, p50_p99, table
from benchmarks.yard import Yard
from gpuyard import subjects
from gpuyard.bus import Bus, Publication, connect

JOBS: Final = 300
LEARN: Final = 20
NAMED: Final = 100
TRACED: Final = 100
P50_GOAL_MS: Final = 5.0
P99_GOAL_MS: Final = 20.0
_IDLE_S: Final = 0.03
"""Least pause between two rounds, so that nothing of the one is still going on in the other."""
_CREATE: Final = "publish -> create call"
_FLOOR: Final = "floor: stored, pulled, one fenced commit, pushed"
Progress = Callable[[str], None]
Moments = dict[str, float]


def run(progress: Progress) -> Result:
    return asyncio.run(_run(progress))


async def _run(progress: Progress) -> Result:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        watch: list[Watch] = []
        engine = RecordingEngine(
            Path(folder) / "engine.sock", lambda labels, at: watch[0].on_create(labels, at)
        )
        await engine.start()
        settings = {
            "GPUYARD_RUNTIME": "docker",
            "GPUYARD_DOCKER_HOST": engine.url,
            "GPUYARD_GPU_INJECTION": "toolkit",
            "GPUYARD_SIMULATE": "1",
        }
        yard = Yard(Path(folder), agent=settings)
        # Off the event loop: the engine has to answer while the yard comes up.
        await asyncio.to_thread(yard.__enter__)
        try:
            bus = await connect(yard.url, name="bench", inbox_prefix="_INBOX.bench")
            async with bus:
                watch.append(Watch(bus, yard.node))
                await watch[0].start()
                return await _measure(yard.url, bus, watch[0], progress)
        finally:
            await asyncio.to_thread(yard.close)
            await engine.close()


async def _measure(url: str, bus: Bus, watch: Watch, progress: Progress) -> Result:
    written, wanted_bytes = await _learn(url, watch, bus)
    progress(f"a commit has {len(written)} messages, {sum(w.size for w in written)} bytes")
    floor_times: list[FloorTimes] = []
    plain: list[Moments] = []
    async with Floor(url, written=written, wanted_bytes=wanted_bytes) as floor:
        for number in range(JOBS):
            floor_times.append(await floor.once(_body()))
            await _pause()
            plain.append(await _dispatch(bus, watch, _body()))
            if (number + 1) % 100 == 0:
                progress(f"{number + 1} of {JOBS} jobs")
    named = [await _dispatch(bus, watch, _body(with_id=True)) for _ in range(NAMED)]
    await watch.trace()
    traced = [await _dispatch(bus, watch, _body()) for _ in range(TRACED)]
    return _report(written, wanted_bytes, floor_times, plain, named, traced)


async def _learn(url: str, watch: Watch, bus: Bus) -> tuple[list[WrittenKey], int]:
    """What the coordinator usually writes for a submission, and the push's size."""
    async with await connect(url, name="bench-learn", inbox_prefix="_INBOX.bench") as other:
        tap = Watch(other, watch.node)
        await tap.start()
        await tap.trace()
        seen: list[tuple[list[WrittenKey], int]] = []
        for _ in range(LEARN):
            tap.begin()
            await _dispatch(bus, watch, _body())
            seen.append((tap.written, tap.wanted_bytes))
    usual = Counter(len(written) for written, _ in seen).most_common(1)[0][0]
    return next(found for found in reversed(seen) if len(found[0]) == usual)


def _body(*, with_id: bool = False) -> bytes:
    """As small as a job can be, in JSON; one with an id of its own is looked up among those that
    are over, which costs the coordinator a round trip."""
    spec: dict[str, object] = {"image": "busybox", "command": ["true"], "gpus": 1}
    return json.dumps(spec | ({"id": secrets.token_hex(8)} if with_id else {})).encode()


async def _dispatch(bus: Bus, watch: Watch, body: bytes) -> Moments:
    """Moments of one job in seconds after its publish; returns when all of it is over."""
    watch.begin()
    began = time.perf_counter()
    await bus.jetstream.publish(Publication(subjects.submit("default"), body))
    watch.note("acknowledged")
    await watch.over()
    await _pause()
    return {phase: at - began for phase, at in watch.at.items()}


async def _pause() -> None:
    """Of no fixed length, so that rounds do not keep step with the daemons' timers."""
    await asyncio.sleep(_IDLE_S + random.uniform(0, 0.02))


def _report(
    written: Sequence[WrittenKey],
    wanted_bytes: int,
    floor: Sequence[FloorTimes],
    plain: Sequence[Moments],
    named: Sequence[Moments],
    traced: Sequence[Moments],
) -> Result:
    result = Result("dispatch", f"publish to create call on an idle node, {len(plain)} jobs")
    rows = _rows(floor, plain, named)
    create, base = rows[_CREATE], rows[_FLOOR]
    size = sum(key.size for key in written)
    result.text += _lines("ms", rows)
    result.text.append(
        f"ours / floor: p50 {create[0] / base[0]:.2f}, p99 {create[1] / base[1]:.2f}; "
        f"a commit has {len(written)} messages, {size} bytes, a push {wanted_bytes} bytes"
    )
    phases = _phases(traced)
    parts = {name: p50_p99([getattr(t, name) for t in floor]) for name in FloorTimes._fields}
    result.text += ["", *_lines(f"where it goes, ms ({len(traced)} more jobs, traced)", phases)]
    result.text += ["", *_lines("of the floor, ms", parts), ""]
    result.figures = {
        "dispatch_ms": _figures(rows),
        "ratio_p50": round(create[0] / base[0], 3),
        "phases_ms": _figures(phases),
        "floor_parts_ms": _figures(parts),
        "commit_messages": len(written),
        "commit_bytes": size,
    }
    result.goals = [
        Goal("p50 of publish -> create call", create[0] * 1000, P50_GOAL_MS, "ms"),
        Goal("p99 of publish -> create call", create[1] * 1000, P99_GOAL_MS, "ms"),
    ]
    return result


def _rows(
    floor: Sequence[FloorTimes], plain: Sequence[Moments], named: Sequence[Moments]
) -> dict[str, tuple[float, float]]:
    return {
        _CREATE: p50_p99([at["create"] for at in plain]),
        _FLOOR: p50_p99([times.total for times in floor]),
        f"{_CREATE}, {len(named)} jobs with an id": p50_p99([at["create"] for at in named]),
        "publish -> PubAck": p50_p99([at["acknowledged"] for at in plain]),
        "publish -> wanted set pushed": p50_p99([at["push"] for at in plain]),
        "publish -> beat that says running": p50_p99([at["running"] for at in plain]),
    }


def _phases(traced: Sequence[Moments]) -> dict[str, tuple[float, float]]:
    names = (
        "publish -> stored and sent to the coordinator",
        "-> its commit is sent (read, applied, planned)",
        "-> push (commit fenced, stored, acknowledged)",
        "-> create call (agent: journal, launch)",
    )
    found: dict[str, tuple[float, float]] = {}
    for name, phase, before in zip(names, PHASES, (None, *PHASES), strict=False):
        spans = [at[phase] - (at[before] if before else 0.0) for at in traced]
        found[name] = p50_p99(spans)
    found["publish -> create call, traced"] = p50_p99([at["create"] for at in traced])
    return found


def _lines(title: str, rows: dict[str, tuple[float, float]]) -> list[str]:
    cells = [(name, milliseconds(p50), milliseconds(p99)) for name, (p50, p99) in rows.items()]
    return table((title, "p50", "p99"), cells)


def _figures(rows: dict[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"p50": round(p50 * 1000, 3), "p99": round(p99 * 1000, 3)}
        for name, (p50, p99) in rows.items()
    }
