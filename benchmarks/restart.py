"""kill -9 of the coordinator with 50 jobs running and 50 waiting: until it places again.

Real nats-server, coordinator and agent; the agent simulates one node of 50 GPUs and starts nothing.
A job that ends while nobody leads frees a GPU, so the next one is placed as soon as somebody does.
Timed from the start of the new process to the push of a wanted set with a new attempt.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Goal, Result, p50_p99, table
from benchmarks.yard import Yard, wait_for_state
from gpuyard import subjects
from gpuyard.bus import Bus, Message, connect

GPUS: Final = 50
ROUNDS: Final = 5
GOAL_S: Final = 3.0
_SHORT_S: Final = 1.0
_FLEET: Final = (
    "nodes: [{name: bench, count: 1, cpus: 64, memory_mib: 65536,"
    f" gpus: [{{name: TEST, count: {GPUS}, memory_mib: 1024}}]}}]\n"
)
Progress = Callable[[str], None]


def run(progress: Progress) -> Result:
    result = Result("restart", f"kill -9 of the coordinator, {GPUS} jobs run and {GPUS} wait")
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        fleet = Path(folder) / "fleet.yaml"
        fleet.write_text(_FLEET)
        settings = {"GPUYARD_RUNTIME": "simulated", "GPUYARD_SIMULATE": str(fleet)}
        with Yard(Path(folder), agent=settings) as yard:
            times = [_round(yard, number, progress) for number in range(ROUNDS)]
    floors = [_imports() for _ in range(ROUNDS)]
    rows = {
        "process start -> next placement": p50_p99(times),
        "floor: the interpreter and its imports": p50_p99(floors),
    }
    cells = [[name, f"{p50:.2f}", f"{p99:.2f}"] for name, (p50, p99) in rows.items()]
    result.text += table(["s", "p50", "largest"], cells)
    result.figures = {"restart_s": {name: list(pair) for name, pair in rows.items()}}
    result.goals = [Goal("largest time to the next placement", max(times), GOAL_S, "s")]
    return result


def _round(yard: Yard, number: int, progress: Progress) -> float:
    """Seconds from the start of a new coordinator to its first placement."""
    with yard.client() as client:
        ids = [f"r{number}-{n}" for n in range(2 * GPUS)]
        for n, id in enumerate(ids):
            seconds = _SHORT_S if n == GPUS - 1 else 3600
            client.submit(_job(id, seconds))
        wait_for_state(client, ids[GPUS - 2], "running")
        yard.kill_coordinator()
        time.sleep(_SHORT_S + 0.5)
        took = asyncio.run(_until_placed(yard, ids[GPUS]))
        progress(f"round {number + 1} of {ROUNDS}: {took:.2f} s")
        for id in ids:
            client.cancel(id)
        for id in ids:
            client.wait(id, timeout_s=60)
    return took


def _job(id: str, seconds: float) -> dict[str, Any]:
    return {
        "id": id,
        "image": "none",
        "gpus": 1,
        "stop_grace": "1s",
        "labels": {"sim.duration": f"{seconds:g}s"},
    }


async def _until_placed(yard: Yard, id: str) -> float:
    placed = asyncio.Event()

    def receive(message: Message) -> None:
        if any(entry["job"] == id for entry in message.body()["entries"]):
            placed.set()

    bus: Bus
    async with await connect(yard.url, name="bench", inbox_prefix="_INBOX.bench") as bus:
        await bus.agents.subscribe(subjects.wanted(yard.node), receive)
        began = time.monotonic()
        yard.start_coordinator()
        async with asyncio.timeout(30.0):
            await placed.wait()
        return time.monotonic() - began


def _imports() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import gpuyard_coordinator.daemon"], check=True)
    return time.monotonic() - began
