"""10,000 nodes beat every 2 s: what that costs the leader, in processor time and memory.

Real nats-server and coordinator. The beats are the bodies of agents with 8 GPUs each, whose facts
stay, while each GPU's power, the time and the beat's number are others each time; they come from a
process of their own, evenly spread, each with a reply subject of its own. Measured once every node
is known, over `MEASURED_S`. Floor: a Python program that is subscribed to the same beats and does
nothing with them.

`python -m benchmarks.beats run NODES` is the same with fewer nodes, for a machine that cannot run
fleet, server and leader beside each other at the full rate: a beat costs the leader the same.
"""

import asyncio
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
_COUNT: Final = "bench.beats"
_SLICE_S: Final = 0.02
_FAR: Final = 2**31
"""A revision above any: the nodes have nothing to run, and say that they know it."""
_DOUBLE: Final = struct.Struct(">d")
_POWER_W: Final = 1e-300
"""Stands for the power of each GPU in a body whose bytes are to be found."""
Progress = Callable[[str], None]


def run(progress: Progress, nodes: int = NODES) -> Result:
    result = Result("beats", f"{nodes:,} nodes beat every {EVERY_S:g} s")
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder,
        NatsServer(Path(folder) / "nats") as server,
    ):
        figures = asyncio.run(_measure(server.url, Path(folder), nodes, progress))
    rate, answered = figures["beats_per_s"], figures["answers_per_s"]
    rows = [
        [
            who,
            f"{figures[f'{who}_percent']:.0f}",
            f"{figures[f'{who}_percent'] * 1e4 / rate:.0f}",
            f"{figures[f'{who}_rss_mib']:.0f}",
        ]
        for who in ("leader", "floor")
    ]
    result.text += table(["", "% of a core", "us a beat", "RSS MiB"], rows)
    result.text.append(f"{rate:.0f} beats/s sent, {answered:.0f} answered")
    result.figures = figures
    result.goals = [
        Goal("the leader's share of a core", figures["leader_percent"], GOAL_PERCENT, "%"),
        Goal("the leader's memory", figures["leader_rss_mib"], GOAL_MIB, "MiB"),
    ]
    return result


async def _measure(url: str, folder: Path, nodes: int, progress: Progress) -> dict[str, float]:
    bus: Bus
    async with await connect(url, name="bench", inbox_prefix="_INBOX.t._.bench") as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(_STORE_GIB * 1024**3))
        leader, idle, load = _spawn(url, folder, nodes)
        try:
            await _until_known(bus, nodes, progress)
            progress(f"measuring for {MEASURED_S:g} s")
            return await _window(bus, leader.pid, idle.pid)
        finally:
            for process in (load, idle, leader):
                process.terminate()
                process.wait(30.0)


def _spawn(url: str, folder: Path, nodes: int) -> list["subprocess.Popen[bytes]"]:
    """The coordinator, the floor, and the fleet."""
    config = folder / "coordinator.toml"
    config.write_text(f'store_max_gib = {_STORE_GIB}\ndir = "{folder}"\n')
    commands = [
        ["-m", "gpuyard_coordinator", "--config", str(config), "--url", url],
        ["-m", "benchmarks.beats", "listen", url],
        ["-m", "benchmarks.beats", "send", url, str(nodes)],
    ]
    with (folder / "processes.log").open("ab") as log:
        return [
            subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            for command in commands
        ]


async def _until_known(bus: Bus, expected: int, progress: Progress) -> None:
    subject = subjects.api(subjects.OPERATOR_TENANT, "bench", "status")
    async with asyncio.timeout(KNOWN_S):
        while True:
            await asyncio.sleep(3.0)
            try:
                answer = await bus.tenants.request(subject, {"v": 1}, timeout_s=10.0)
            except Unavailable:
                continue  # nobody leads yet
            nodes: dict[str, int] = answer.body().get("nodes") or {}
            progress(f"{nodes.get('ready', 0)} of {expected} nodes are ready")
            if nodes.get("ready") == expected:
                return


async def _window(bus: Bus, leader: int, idle: int) -> dict[str, float]:
    answers = 0

    def count_answer(_: Message) -> None:
        nonlocal answers
        answers += 1

    beats = await _heard(bus)
    answered = await bus.agents.subscribe(f"{subjects.AGENTS_INBOX}.*.r", count_answer)
    began, before = time.monotonic(), (machine.cpu_s([leader]), machine.cpu_s([idle]))
    await asyncio.sleep(MEASURED_S)
    took = time.monotonic() - began
    beats = await _heard(bus) - beats
    await answered.close()
    return {
        "leader_percent": 100 * (machine.cpu_s([leader]) - before[0]) / took,
        "floor_percent": 100 * (machine.cpu_s([idle]) - before[1]) / took,
        "leader_rss_mib": machine.memory([leader]).rss_mib,
        "floor_rss_mib": machine.memory([idle]).rss_mib,
        "beats_per_s": beats / took,
        "answers_per_s": answers / took,
    }


async def _heard(bus: Bus) -> int:
    """How many beats the floor has received."""
    answer = await bus.app.request(_COUNT, {"v": 1}, timeout_s=10.0)
    return int(answer.body()["beats"])


async def _listen(url: str) -> None:
    """The floor: receive every beat."""
    beats = 0

    def count(_: Message) -> None:
        nonlocal beats
        beats += 1

    async def tell(message: Message) -> None:
        await bus.app.respond(message, {"v": 1, "beats": beats}, caller_prefix="_INBOX.t._.bench")

    async with await connect(url, name="bench-floor", inbox_prefix="_INBOX.floor") as bus:
        await bus.agents.subscribe(subjects.BEAT_ALL, count)
        await bus.app.serve(_COUNT, tell)
        await asyncio.Event().wait()


async def _send(url: str, nodes: int) -> None:
    """The fleet: every node's beat each `EVERY_S`, in slices of an even length."""
    async with await connect(url, name="bench-fleet", inbox_prefix="_INBOX.a") as bus:
        fleet = [_Sender(f"node-{number}", None) for number in range(nodes)]
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
                fleet = [_Sender(f"node-{number}", token) for number in range(nodes)]
                began, seq, number = time.monotonic(), seq + 1, 0
            due = int((time.monotonic() - began) / EVERY_S * nodes)
            while number < due:
                sender = fleet[number % nodes]
                body = sender.body(seq + number // nodes)
                await bus.agents.publish(sender.subject, body, reply=sender.reply)
                number += 1
            await asyncio.sleep(_SLICE_S)


class _Sender:
    """One node's beats. The body is encoded once; what changes is written into its bytes."""

    def __init__(self, name: str, token: list[int] | None) -> None:
        self.subject = subjects.beat(name)
        self.reply = f"{subjects.agent_inbox(name)}.r"
        body: dict[str, Any] = dict(beat(name))
        self._ts = str(body["ts"])
        del body["seq"]
        body["applied"] = None if token is None else {"token": token, "revision": _FAR}
        for sample in body["samples"]:
            sample["power_w"] = _POWER_W
        # The number comes last, in the long form, so that its place is known.
        self._bytes = bytearray(codec.encode({**body, "seq": _FAR}))
        self._powers = list(_places(self._bytes, _DOUBLE.pack(_POWER_W)))
        (self._seconds,) = _places(self._bytes, self._ts.encode())

    def body(self, seq: int) -> bytes:
        for place in self._powers:
            _DOUBLE.pack_into(self._bytes, place, 60.0 + random.random())
        self._bytes[self._seconds + 17 : self._seconds + 19] = b"%02d" % (seq % 60)
        self._bytes[-4:] = seq.to_bytes(4, "big")
        return bytes(self._bytes)


def _places(data: bytes | bytearray, part: bytes) -> Iterator[int]:
    place = data.find(part)
    while place >= 0:
        yield place
        place = data.find(part, place + len(part))


def _main(what: str, *arguments: str) -> None:
    if what == "run":
        print(run(lambda line: print(line, file=sys.stderr), int(arguments[0])))
    elif what == "send":
        asyncio.run(_send(arguments[0], int(arguments[1])))
    else:
        asyncio.run(_listen(arguments[0]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
