"""A leader is stopped with SIGSTOP under load, for longer than its lease, and goes on.

It has work in hand then: jobs that were delivered to it while it could not run, and whatever it was
about to commit. The bus must refuse all of it, and nobody may be answered from what it remembers.
"""

import asyncio
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from gpuyard import Client
from gpuyard.bus import connect
from tests.support.running_yard import RunningYard, eventually
from tests.support.state_bucket import as_read
from tests.system.drills.coordinators import Coordinators

FLEET = "nodes: [{name: 'n-{i}', count: 4, gpus: [{name: TEST, count: 8, memory_mib: 1024}]}]\n"
GPUS = 32
EVERY_S = 0.03
REST_S = 1.5
"""Longer than commits wait for their checkpoint."""


@dataclass(slots=True)
class Figures:
    frozen_s: float = 0.0
    next_leader_s: float = 0.0
    """Until another said that it leads."""
    jobs: int = 0
    refused_writes: int = 0
    seconds_to_step_down: float = 0.0


@dataclass(slots=True)
class Load:
    """Jobs one after the other that stay, until it is stopped; the first fault of a submit."""

    client: Client
    jobs: list[str] = field(default_factory=list)
    fault: Exception | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        labels = {"sim.duration": "1h"}
        while not self._stopping.wait(EVERY_S):
            id = f"job-{len(self.jobs)}"
            try:
                self.client.submit({"id": id, "image": "none", "gpus": 1, "labels": labels})
            except Exception as fault:  # noqa: BLE001  # raised by `stop`, on the test's thread
                self.fault = fault
                return
            self.jobs.append(id)


def leader_frozen(yard: RunningYard, coordinators: Coordinators, seconds: float) -> Figures:
    """The drill; `yard` has no agent yet."""
    fleet = yard.directory / "fleet.yaml"
    fleet.write_text(FLEET)
    yard.agent("fleet", runtime="simulated", simulate=str(fleet))
    client = yard.ready(4)
    zombie = coordinators.settled(client, 2)
    load = Load(yard.client())
    load.start()
    try:
        eventually(lambda: len(load.jobs) >= 10, what="load")
        zombie.signal(signal.SIGSTOP)
        began = time.monotonic()
        second = coordinators.settled(client, 1)
        figures = Figures(next_leader_s=time.monotonic() - began)
        assert second is not zombie
        token = client.status()["leader"]["token"]
        # Every answer comes at once although the frozen one is still subscribed.
        while time.monotonic() - began < seconds:
            asked = time.monotonic()
            assert client.status()["leader"]["token"] == token
            assert time.monotonic() - asked < 2.0, "a request waits for the frozen coordinator"
            time.sleep(0.1)
    finally:
        load.stop()
    figures.jobs = len(load.jobs)
    figures.frozen_s = time.monotonic() - began
    running = min(GPUS, figures.jobs)
    eventually(lambda: [job.state for job in client.jobs()].count("running") == running)
    before = _at_rest(yard)
    assert {f"job.default.{id}" for id in load.jobs} <= before.keys()

    zombie.signal(signal.SIGCONT)
    began = time.monotonic()
    standby = coordinators.eventually(
        lambda: _standby(client, zombie.pid, token), what="the frozen one as a standby"
    )
    assert standby is not None
    figures.refused_writes = standby["refused_writes"]
    figures.seconds_to_step_down = time.monotonic() - began
    assert coordinators.settled(client, 2) is second
    assert _at_rest(yard) == before
    return figures


def _standby(client: Client, pid: int, token: list[int]) -> dict[str, Any] | None:
    """What is shown of that coordinator once it follows again, which may be by no write refused."""
    status = client.status()
    assert status["leader"]["token"] == token, "a deposed leader answers"
    ready = (each for each in status["standbys"] if each["ready"])
    return next((each for each in ready if each["pid"] == pid), None)


def _at_rest(yard: RunningYard) -> dict[str, bytes]:
    """What is committed, once that does not change."""

    async def read() -> dict[str, bytes]:
        async with await connect(yard.server.url, name="drill", inbox_prefix="_INBOX.x") as bus:
            found = await as_read(bus)
            while True:
                await asyncio.sleep(REST_S)
                if found == (found := await as_read(bus)):
                    return found

    return asyncio.run(read())
