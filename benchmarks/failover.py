"""The leader dies, or is asked to stop, while jobs arrive: until the standby places the next one.

Real nats-server and two coordinators; eight simulated nodes of 8 GPUs start nothing and say at once
that a job runs, and that it ended as soon as it did. Jobs are published all the time, whoever
leads. Timed from the signal to the first wanted document with the new leader's token and a new
attempt.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet import FleetNode
from benchmarks.report import Goal, Result, table
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Publication, Sizes, connect, ensure_streams
from gpuyard.errors import Unavailable
from tests.support.nats_server import NatsServer

NODES: Final = 8
ROUNDS: Final = 5
GOAL_KILLED_S: Final = 3.0
JOBS_PER_S: Final = 20.0
SETTLED_S: Final = 1.0
"""Between two rounds, so that each finds a ready standby in any phase of its looking."""
_STORE_GIB: Final = 2
Progress = Callable[[str], None]


def run(progress: Progress) -> Result:
    result = Result("failover", f"a leader ends with a standby beside it, {JOBS_PER_S:g} jobs/s")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "nats") as server,
    ):
        bench = _Bench(server.url, Path(folder), progress)
        try:
            figures = asyncio.run(bench.measure())
        finally:
            bench.close()
    rows = [[name, f"{min(values):.2f}", f"{max(values):.2f}"] for name, values in figures.items()]
    result.text += table(["s, to the next placement", "least", "largest"], rows)
    result.text.append("floor of kill -9: a lease of 2 s, renewed every 0.4 s, ends by itself")
    result.figures = {"failover_s": figures}
    result.goals = [Goal("kill -9", max(figures["kill -9"]), GOAL_KILLED_S, "s")]
    return result


class _Bench:
    """Two coordinators at any time, and a fleet that ends whatever it was told to run."""

    def __init__(self, url: str, folder: Path, progress: Progress) -> None:
        self._url = url
        self._folder = folder
        self._progress = progress
        self._processes: list[subprocess.Popen[bytes]] = []
        self._nodes: list[FleetNode] = []
        self._number = 0

    async def measure(self) -> dict[str, list[float]]:
        bus: Bus
        text = f'store_max_gib = {_STORE_GIB}\ndir = "{self._folder}"\n'
        (self._folder / "coordinator.toml").write_text(text)
        async with await connect(self._url, name="bench", inbox_prefix="_INBOX.t._.bench") as bus:
            await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
            for number in range(NODES):
                node = FleetNode(bus, f"node-{number}")
                await node.start()
                self._nodes.append(node)
            works = [node.run() for node in self._nodes]
            tasks = [asyncio.ensure_future(work) for work in (*works, self._enqueue(bus))]
            self._start()
            try:
                return {
                    "kill -9": await self._rounds(bus, signal.SIGKILL),
                    "SIGTERM": await self._rounds(bus, signal.SIGTERM),
                }
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    async def _rounds(self, bus: Bus, number: signal.Signals) -> list[float]:
        times = []
        for turn in range(ROUNDS):
            self._start()
            leader = await self._settled(bus)
            await self._placed_after(asyncio.get_running_loop().time())
            await asyncio.sleep(SETTLED_S)
            began = asyncio.get_running_loop().time()
            leader.send_signal(number)
            times.append(await self._placed_by_another(began))
            self._progress(f"{number.name} {turn + 1} of {ROUNDS}: {times[-1]:.2f} s")
            leader.wait(15.0)
            self._processes.remove(leader)
        return times

    def _start(self) -> None:
        config = str(self._folder / "coordinator.toml")
        command = [sys.executable, "-m", "gpuyard_coordinator", "--config", config]
        with (self._folder / "coordinator.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--url", self._url], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._processes.append(process)

    async def _settled(self, bus: Bus) -> "subprocess.Popen[bytes]":
        """The leader's process, once a standby is ready."""
        subject = subjects.api(subjects.OPERATOR_TENANT, "bench", "status")
        while True:
            try:
                answer = await bus.tenants.request(subject, {"v": 1}, timeout_s=1.0)
                status: dict[str, Any] = answer.body()
            except Unavailable:
                status = {}
            pid = (status.get("leader") or {}).get("pid")
            leader = next((each for each in self._processes if each.pid == pid), None)
            if leader is not None and any(s["ready"] for s in status["standbys"]):
                return leader
            await asyncio.sleep(0.1)

    async def _placed_after(self, began: float) -> float:
        """Seconds from `began` to the first attempt that a node was told of later."""
        async with asyncio.timeout(30.0):
            while True:
                times = [at for node in self._nodes for at in node.seen.values() if at > began]
                if times:
                    return min(times) - began
                await asyncio.sleep(0.005)

    async def _placed_by_another(self, began: float) -> float:
        """The same, but under a token above that of the leader that was told to end."""
        before = max(node.token for node in self._nodes)
        async with asyncio.timeout(30.0):
            while not (times := self._times_above(before)):
                await asyncio.sleep(0.005)
        return min(times) - began

    def _times_above(self, token: tuple[int, int]) -> list[float]:
        return [
            at
            for node in self._nodes
            for key, at in node.seen.items()
            if node.tokens.get(key, (0, 0)) > token
        ]

    async def _enqueue(self, bus: Bus) -> None:
        """Jobs at an even rate, stored by the bus; the fleet ends those that it was told of."""
        while True:
            self._number += 1
            body = codec.encode({"id": f"load-{self._number}", "image": "none", "gpus": 1})
            try:
                publication = Publication(subjects.submit("default"), body)
                await bus.jetstream.publish(publication)
            except Unavailable:
                self._number -= 1
            for node in self._nodes:
                node.end(node.seen)
            await asyncio.sleep(1 / JOBS_PER_S)
