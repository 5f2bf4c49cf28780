"""What passes on the bus while a job is dispatched, with the moment at which it passed.

A subscriber beside the yard's own gets a copy of every message that the server routes, stored or
not, so phases are timed on one clock and without a hook in any daemon. Its copies cost the server a
little, so figures that count are measured without it.
"""

import asyncio
import time
from typing import Final

from benchmarks.dispatch_floor import WrittenKey
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message

PHASES: Final = ("pulled", "commit", "push", "create")
"""In order: the submission is on its way to the coordinator; the last message of its commit is on
its way to the server; the wanted document; the create call."""
_OVER_S: Final = 20.0
_FINAL: Final = ("succeeded", "failed", "cancelled")


class Watch:
    """The moments of one job at a time, as `time.perf_counter()`; `begin` starts the next one."""

    def __init__(self, bus: Bus, node: str) -> None:
        self._bus = bus
        self.node = node
        self.job = ""
        self.at: dict[str, float] = {}
        self.written: list[WrittenKey] = []
        """The messages of the commit that assigned the job."""
        self.wanted_bytes = 0
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Listens to what tells a job's end and start, and to the push; cheap enough to stay."""
        await self._bus.agents.subscribe(subjects.wanted(self.node), self._on_wanted)
        await self._bus.agents.subscribe(subjects.beat(self.node), self._on_beat)
        await self._bus.tenants.subscribe(subjects.events_of("default"), self._on_event)

    async def trace(self) -> None:
        """Listens from now on to all that the coordinator is sent and writes, too."""
        await self._bus.app.subscribe(f"{subjects.COORDINATOR_INBOX}.>", self._on_pulled)
        await self._bus.app.subscribe(subjects.STATE_ALL, self._on_state)

    def begin(self) -> None:
        """The next job that is created or heard of is the one; the last one is over."""
        self.job, self.at, self.written = "", {}, []
        self._over.clear()

    def note(self, phase: str, at: float | None = None) -> None:
        """The first time counts."""
        self.at.setdefault(phase, time.perf_counter() if at is None else at)

    async def over(self) -> None:
        """Returns when the job's last event was published."""
        try:
            async with asyncio.timeout(_OVER_S):
                await self._over.wait()
        except TimeoutError as fault:
            seen = ", ".join(self.at) or "nothing"
            raise RuntimeError(
                f"job {self.job or '(none)'} is not over after {_OVER_S:g} s; seen: {seen}"
            ) from fault

    def on_create(self, labels: dict[str, str], at: float) -> None:
        self.job = self.job or labels["gpuyard.job"]
        self.note("create", at)

    def _on_pulled(self, message: Message) -> None:
        if message.subject.startswith("gpuyard.submit."):
            self.note("pulled")

    def _on_state(self, message: Message) -> None:
        key = message.subject.removeprefix(subjects.state(""))
        if "push" in self.at or key == subjects.LEASE_KEY or "pulled" not in self.at:
            return
        self.at["commit"] = time.perf_counter()
        is_marker = "KV-Operation" in message.headers
        self.written.append(WrittenKey(key, len(message.data), is_marker))

    def _on_wanted(self, message: Message) -> None:
        if "push" not in self.at:
            self.note("push")
            self.wanted_bytes = len(message.data)

    def _on_beat(self, message: Message) -> None:
        at = time.perf_counter()
        if "running" in self.at or "create" not in self.at:
            return
        for report in codec.decode(message.data)["attempts"]:
            if report["job"] == self.job and report["state"] in ("running", "ended"):
                self.note("running", at)

    def _on_event(self, message: Message) -> None:
        _, _, _, job, kind, _ = message.subject.split(".")
        if "create" in self.at and job == self.job and kind in _FINAL:
            if kind != "succeeded":
                raise RuntimeError(f"job {job}: {message.body()}")
            self._over.set()
