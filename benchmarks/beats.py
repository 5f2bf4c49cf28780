"""10,000 nodes beat every 2 s: what that costs the leader, in processor time and memory.

Real nats-server and coordinator. The beats are the bodies of agents with 8 GPUs each, whose facts
stay and whose number grows; they come from a process of their own, evenly spread, each with a reply
subject of its own. Measured once every node is known, over `MEASURED_S`. Floor: a Python program
that is subscribed to the same beats and does nothing with them.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.filled_yard import beat
from benchmarks.report import Goal, Result, table
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, Sizes, connect, ensure_streams
from gpuyard.errors import Unavailable
from tests.support.nats_server import NatsServer

NODES: Final = 10_000
EVERY_S: Final = 2.0
MEASURED_S: Final = 20.0
KNOWN_S: Final = 180.0
"""Until every node must be known; they all join at once."""
GOAL_PERCENT: Final = 50.0
GOAL_MIB: Final = 300.0
_STORE_GIB: Final = 2
_SLICE_S: Final = 0.02
_FAR: Final = 2**31
"""A revision above any: the nodes have nothing to run, and say that they know it."""
Progress = Callable[[str], None]


def run(progress: Progress) -> Result:
    result = Result("beats", f"{NODES:,} nodes beat every {EVERY_S:g} s")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "nats") as server,
    ):
        figures = asyncio.run(_measure(server.url, Path(folder), progress))
    rows = [
        ["leader", f"{figures['leader_percent']:.0f}", f"{figures['leader_rss_mib']:.0f}"],
        ["floor", f"{figures['floor_percent']:.0f}", f"{figures['floor_rss_mib']:.0f}"],
    ]
    result.text += table(["", "% of a core", "RSS MiB"], rows)
    rate, answered = figures["beats_per_s"], figures["answers_per_s"]
    result.text.append(f"{rate:.0f} beats/s sent, {answered:.0f} answered")
    result.text.append(f"{figures['leader_percent'] * 1e4 / rate:.0f} us of the leader for each")
    result.figures = figures
    result.goals = [
        Goal("the leader's share of a core", figures["leader_percent"], GOAL_PERCENT, "%"),
        Goal("the leader's memory", figures["leader_rss_mib"], GOAL_MIB, "MiB"),
    ]
    return result


async def _measure(url: str, folder: Path, progress: Progress) -> dict[str, float]:
    bus: Bus
    async with await connect(url, name="bench", inbox_prefix="_INBOX.t._.bench") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
        leader, idle, load = _spawn(url, folder)
        try:
            await _until_known(bus, progress)
            progress(f"measuring for {MEASURED_S:g} s")
            return await _window(bus, leader.pid, idle.pid)
        finally:
            for process in (load, idle, leader):
                process.terminate()
                process.wait(30.0)


def _spawn(url: str, folder: Path) -> list["subprocess.Popen[bytes]"]:
    """The coordinator, the floor, and the fleet."""
    config = folder / "coordinator.toml"
    config.write_text(f"store_max_gib = {_STORE_GIB}\n")
    commands = [
        ["-m", "gpuyard_coordinator", "--config", str(config), "--url", url],
        ["-m", "benchmarks.beats", "listen", url],
        ["-m", "benchmarks.beats", "send", url],
    ]
    with (folder / "processes.log").open("ab") as log:
        return [
            subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            for command in commands
        ]


async def _until_known(bus: Bus, progress: Progress) -> None:
    subject = subjects.api(subjects.OPERATOR_TENANT, "bench", "status")
    async with asyncio.timeout(KNOWN_S):
        while True:
            await asyncio.sleep(3.0)
            try:
                answer = await bus.tenants.request(subject, {"v": 1}, timeout_s=10.0)
            except Unavailable:
                continue  # nobody leads yet
            nodes: dict[str, int] = answer.body().get("nodes") or {}
            progress(f"{nodes.get('ready', 0)} of {NODES} nodes are ready")
            if nodes.get("ready") == NODES:
                return


async def _window(bus: Bus, leader: int, idle: int) -> dict[str, float]:
    beats = answers = 0

    def count_beat(_: Message) -> None:
        nonlocal beats
        beats += 1

    def count_answer(_: Message) -> None:
        nonlocal answers
        answers += 1

    sent = await bus.agents.subscribe("gpuyard.beat.node-*", count_beat)
    answered = await bus.agents.subscribe(f"{subjects.AGENTS_INBOX}.*.r", count_answer)
    began, before = time.monotonic(), (machine.cpu_s([leader]), machine.cpu_s([idle]))
    await asyncio.sleep(MEASURED_S)
    took = time.monotonic() - began
    await sent.close()
    await answered.close()
    return {
        "leader_percent": 100 * (machine.cpu_s([leader]) - before[0]) / took,
        "floor_percent": 100 * (machine.cpu_s([idle]) - before[1]) / took,
        "leader_rss_mib": machine.memory([leader]).rss_mib,
        "floor_rss_mib": machine.memory([idle]).rss_mib,
        "beats_per_s": beats / took,
        "answers_per_s": answers / took,
    }


async def _listen(url: str) -> None:
    """The floor: receive every beat."""
    async with await connect(url, name="bench-floor", inbox_prefix="_INBOX.floor") as bus:
        await bus.agents.subscribe(subjects.BEAT_ALL, lambda message: None)
        await asyncio.Event().wait()


async def _send(url: str) -> None:
    """The fleet: every node's beat each `EVERY_S`, in slices of an even length."""
    async with await connect(url, name="bench-fleet", inbox_prefix="_INBOX.a") as bus:
        heads = [_head(f"node-{number}", None) for number in range(NODES)]
        token: list[int] = []

        def learn(message: Message) -> None:
            if not token and message.data:
                token.extend(message.body()["token"])

        learning = await bus.agents.subscribe(f"{subjects.AGENTS_INBOX}.*.r", learn)
        seq, number, began, known = 1, 0, time.monotonic(), False
        while True:
            if token and not known:
                known = True
                await learning.close()
                heads = [_head(f"node-{number}", token) for number in range(NODES)]
                began, seq, number = time.monotonic(), seq + 1, 0
            due = int((time.monotonic() - began) / EVERY_S * NODES)
            while number < due:
                which = number % NODES
                body = heads[which] + b"\xce" + (seq + number // NODES).to_bytes(4, "big")
                name = f"node-{which}"
                reply = f"{subjects.agent_inbox(name)}.r"
                await bus.agents.publish(subjects.beat(name), body, reply=reply)
                number += 1
            await asyncio.sleep(_SLICE_S)


def _head(name: str, token: list[int] | None) -> bytes:
    """A beat's body up to its number, which comes last."""
    body: dict[str, Any] = dict(beat(name))
    del body["seq"]
    body["applied"] = None if token is None else {"token": token, "revision": _FAR}
    return codec.encode_joined(body, "seq", b"")


if __name__ == "__main__":
    asyncio.run({"listen": _listen, "send": _send}[sys.argv[1]](sys.argv[2]))
