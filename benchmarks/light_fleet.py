"""Thousands of simulated agents in one process, as light as the protocol lets them be.

`python -m benchmarks.light_fleet URL NODES`. Each node beats on time and at once on news, with the
body of an agent with 8 GPUs, and has a reply subject of its own for each beat. Its GPUs are
measured for each beat on time, as an agent measures them, so that no two of these are alike. Its
jobs take no time: one that a wanted document names is reported as running, and as ended once the
answer to that beat has come, so that every transition of it is committed. When its entry has left
the wanted document, its end is.

It counts both: a job is placed when a node is first told of it, and over when its node was told of
a set without it. Only a job called `ENDLESS` runs on. Whoever asks on `STATUS` hears how many, and
when the last of each was (on the clock of `time.monotonic`).
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.filled_yard import beat
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message, connect
from gpuyard.errors import Unavailable

EVERY_S: Final = 2.0
STATUS: Final = "bench.fleet"
ENDLESS: Final = "endless"
_SLICE_S: Final = 0.02
_TEMPERATURE: Final = b"\xadtemperature_c"
"""That key in msgpack; the degrees follow in one byte."""
_CHANGING: Final = ("seq", "applied", "attempts")
_RUNNING: Final = {
    "state": "running",
    "container_id": "container",
    "image_digest": None,
    "started_at": "2026-01-01T00:00:00.000Z",
    "ended_at": None,
    "reason": None,
    "exit_code": None,
    "message": None,
    "pull": None,
    "usage": None,
    "log_chunks": 0,
    "unexpected": False,
}
_ENDED: Final = _RUNNING | {
    "state": "ended",
    "ended_at": "2026-01-01T00:00:00.000Z",
    "reason": "exited",
    "exit_code": 0,
}
Key = tuple[str, str, int]


class Fleet:
    """All nodes, and what they have seen of jobs."""

    def __init__(self, bus: Bus, nodes: int) -> None:
        self._bus = bus
        self._nodes = {name: _Node(name) for name in (f"node-{n}" for n in range(nodes))}
        self._usual = b""
        """The last answer that brought no document."""
        self._news: dict[str, _Node] = {}
        """Nodes that beat at once, in the order in which they heard something."""
        self._has_news = asyncio.Event()
        self._counts = {"placed": 0, "ended": 0, "beats": 0}
        self._last = {"placed_at": 0.0, "ended_at": 0.0}

    async def run(self) -> None:
        """Beat for ever."""
        await self._bus.agents.subscribe(subjects.wanted("*"), self._take_push)
        await self._bus.agents.subscribe(f"{subjects.AGENTS_INBOX}.*.*", self._take_reply)
        await self._bus.app.serve(STATUS, self._tell)
        await asyncio.gather(self._beat_on_time(), self._beat_on_news())

    async def _beat_on_time(self) -> None:
        nodes, began, number = list(self._nodes.values()), time.monotonic(), 0
        while True:
            due = int((time.monotonic() - began) / EVERY_S * len(nodes))
            while number < due:
                node = nodes[number % len(nodes)]
                node.measure()
                await self._send(node)
                number += 1
            await asyncio.sleep(_SLICE_S)

    async def _beat_on_news(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._news:
                await self._send(self._news.pop(next(iter(self._news))))

    async def _send(self, node: "_Node") -> None:
        self._news.pop(node.name, None)
        body = node.body()
        try:
            await self._bus.agents.publish(node.subject, body, reply=f"{node.inbox}.{node.seq}")
        except Unavailable:
            return
        self._counts["beats"] += 1

    def _take_push(self, message: Message) -> None:
        self._take(self._nodes[message.subject.rpartition(".")[2]], message.body())

    def _take_reply(self, message: Message) -> None:
        if not message.data:
            return  # the bus: nobody takes beats at the moment
        _, _, name, seq = message.subject.split(".")
        node = self._nodes[name]
        if message.data != self._usual:
            document = message.body().get("wanted")
            if document is not None:
                self._take(node, document)
            else:
                self._usual = message.data
        if node.end(int(seq)):
            self._tell_news(node)

    def _take(self, node: "_Node", document: Mapping[str, Any]) -> None:
        placed, ended = node.take(document)
        now = time.monotonic()
        if placed:
            self._counts["placed"] += placed
            self._last["placed_at"] = now
        if ended:
            self._counts["ended"] += ended
            self._last["ended_at"] = now
        self._tell_news(node)

    def _tell_news(self, node: "_Node") -> None:
        self._news[node.name] = node
        self._has_news.set()

    async def _tell(self, message: Message) -> None:
        body = {"v": 1, **self._counts, **self._last}
        await self._bus.app.respond(message, body, caller_prefix="_INBOX.t._.bench")


class _Node:
    """One agent. What of its beat never changes is packed once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.subject = subjects.beat(name)
        self.inbox = subjects.agent_inbox(name)
        self.seq = 0
        self._applied: dict[str, Any] | None = None
        self._running: dict[Key, int] = {}
        """The first beat that says so, of each attempt that is not over."""
        self._over: set[Key] = set()
        static = {k: v for k, v in beat(name).items() if k not in _CHANGING}
        self._static = bytearray(codec.encode(static))
        self._entries = len(static)
        self._warmth = self._static.index(_TEMPERATURE) + len(_TEMPERATURE)

    def measure(self) -> None:
        """One GPU is warmer, or cooler, than it was."""
        self._static[self._warmth] = 40 + self.seq % 32

    def body(self) -> bytes:
        self.seq += 1
        reports = [_report(key, _RUNNING) for key in self._running]
        reports += [_report(key, _ENDED) for key in self._over]
        changing = {"seq": self.seq, "applied": self._applied, "attempts": reports}
        # Two packed maps as one: the header with both sizes, then the entries of both.
        entries = self._entries + len(changing)
        header = b"\xde" + entries.to_bytes(2, "big")
        static = bytes(self._static[_header_bytes(self._entries) :])
        return header + static + codec.encode(changing)[1:]

    def take(self, document: Mapping[str, Any]) -> tuple[int, int]:
        """How many jobs of it are new here, and of how many the end is committed."""
        applied = {"token": document["token"], "revision": document["revision"]}
        if self._applied is not None and _order(self._applied) >= _order(applied):
            return 0, 0
        self._applied = applied
        wanted = {(e["tenant"], e["job"], e["attempt"]) for e in document["entries"]}
        ended = self._over - wanted
        self._over &= wanted
        placed = wanted - self._running.keys() - self._over
        for key in placed:
            self._running[key] = self.seq + 1
        return len(placed), len(ended)

    def end(self, answered: int) -> bool:
        """Jobs that the yard knows to run are over; False where there are none."""
        over = [
            key for key, since in self._running.items() if since <= answered and key[1] != ENDLESS
        ]
        for key in over:
            del self._running[key]
        self._over.update(over)
        return bool(over)


def _order(applied: Mapping[str, Any]) -> tuple[list[int], int]:
    return applied["token"], applied["revision"]


def _report(key: Key, state: Mapping[str, Any]) -> dict[str, Any]:
    return {"tenant": key[0], "job": key[1], "attempt": key[2], **state}


def _header_bytes(entries: int) -> int:
    return 1 if entries < 16 else 3


async def _main(url: str, nodes: int) -> None:
    async with await connect(url, name="bench-fleet", inbox_prefix="_INBOX.fleet") as bus:
        await Fleet(bus, nodes).run()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
