"""Nodes for measurements: bodies of real agents with 8 GPUs, and as little work as can be.

A node takes every wanted document at its word: what it is told to run it reports as running at
once.
"""

import asyncio
from collections.abc import Container
from typing import Any, Final

from benchmarks.filled_yard import beat
from gpuyard import codec, subjects
from gpuyard.bus import Bus, Message
from gpuyard.errors import Unavailable

EVERY_S: Final = 2.0


class FleetNode:
    """One simulated agent; `seen` has (tenant, job, attempt) of all that it was told to run."""

    def __init__(self, bus: Bus, name: str, *, starts: bool = True) -> None:
        self.name = name
        self.seen: dict[tuple[str, str, int], float] = {}
        """When it was first told to run an attempt, on the loop's clock."""
        self.tokens: dict[tuple[str, str, int], tuple[int, int]] = {}
        """The token of the leader that told it so."""
        self.news = asyncio.Event()
        """Set at every wanted document."""
        self._bus = bus
        self._starts = starts
        self._beat: dict[str, Any] = dict(beat(name)) | {"applied": None}
        self._reply = f"{subjects.agent_inbox(name)}.r"

    @property
    def token(self) -> tuple[int, int]:
        """Of the newest document that it has."""
        applied = self._beat["applied"]
        return (0, 0) if applied is None else (applied["token"][0], applied["token"][1])

    async def start(self) -> None:
        await self._bus.agents.subscribe(subjects.wanted(self.name), self._take_push)
        await self._bus.agents.subscribe(self._reply, self._take_reply)

    async def send(self) -> None:
        self._beat["seq"] += 1
        body = codec.encode(self._beat)
        try:
            await self._bus.agents.publish(subjects.beat(self.name), body, reply=self._reply)
        except Unavailable:
            return

    async def run(self) -> None:
        """Beat on time and at once on news, until cancelled."""
        while True:
            self.news.clear()
            await self.send()
            try:
                async with asyncio.timeout(EVERY_S):
                    await self.news.wait()
            except TimeoutError:
                continue

    def end(self, attempts: Container[tuple[str, str, int]]) -> None:
        """These are over, as the next beat says."""
        over = {"state": "ended", "reason": "exited", "exit_code": 0, "ended_at": self._beat["ts"]}
        for report in self._beat["attempts"]:
            key = (report["tenant"], report["job"], report["attempt"])
            if report["state"] != "ended" and key in attempts:
                report |= over
                self.news.set()

    def _take_reply(self, message: Message) -> None:
        if not message.data:
            return  # the bus: nobody takes beats at the moment
        if (document := message.body().get("wanted")) is not None:
            self._take(document)

    def _take_push(self, message: Message) -> None:
        self._take(message.body())

    def _take(self, document: dict[str, Any]) -> None:
        applied = {"token": document["token"], "revision": document["revision"]}
        known = self._beat["applied"]
        if known and (known["token"], known["revision"]) > (applied["token"], applied["revision"]):
            return
        self._beat["applied"] = applied
        reported = {(r["tenant"], r["job"], r["attempt"]): r for r in self._beat["attempts"]}
        wanted = [(e["tenant"], e["job"], e["attempt"]) for e in document["entries"]]
        for key in wanted:
            if key not in self.seen:
                self.seen[key] = asyncio.get_running_loop().time()
                self.tokens[key] = self.token
        if self._starts:
            self._beat["attempts"] = [reported.get(key) or self._report(key) for key in wanted]
        self.news.set()

    def _report(self, key: tuple[str, str, int]) -> dict[str, Any]:
        tenant, job, attempt = key
        return {
            "tenant": tenant,
            "job": job,
            "attempt": attempt,
            "state": "running",
            "container_id": f"container-of-{job}",
            "image_digest": None,
            "started_at": self._beat["ts"],
            "ended_at": None,
            "reason": None,
            "exit_code": None,
            "message": None,
            "pull": None,
            "usage": None,
            "log_chunks": 0,
            "unexpected": False,
        }
