"""Whatever ends a coordinator's following or its take-over, it begins again and leads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Service
from gpuyard.errors import Unavailable
from gpuyard_coordinator import leading, settings
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.daemon import Daemon
from gpuyard_coordinator.follower import Follower
from gpuyard_coordinator.leader import Leadership, Timing, this_process
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.racing import unless
from gpuyard_coordinator.standby import serve_leader


@pytest.fixture
def daemon(bus: Bus, tmp_path: Path) -> Daemon:
    clock = Clock()
    leadership = Leadership(
        bus.jetstream,
        holder=this_process(name="coordinator-1", machine_id="m1", boot_id="b1"),
        timing=Timing.for_replicas(1),
        clock=clock.monotonic,
        wall_ms=clock.wall_ms,
    )
    loaded = settings.load(file=None, environment={}, flags={"url": bus.url, "dir": str(tmp_path)})
    return Daemon(bus, leadership, loaded, clock)


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[None]:
    task = asyncio.create_task(daemon.run())
    try:
        yield
    finally:
        daemon.stopping.set()
        await task


async def leads(bus: Bus) -> None:
    """Returns once a leader answers."""
    async with asyncio.timeout(20):
        while True:
            try:
                await bus.app.request(subjects.LEADER, {"v": 1})
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_fault_in_what_a_standby_does_is_no_silent_end(
    bus: Bus, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, runs = Follower.run, 0

    async def fails_once(follower: Follower) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("a fault of ours")
        await run(follower)

    monkeypatch.setattr(Follower, "run", fails_once)
    async with running(daemon):
        await leads(bus)
    assert runs == 2


async def test_who_is_deposed_while_taking_over_goes_back_and_follows(
    bus: Bus, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, is_stuck = Outbox.drain, asyncio.Event()

    async def hangs_once(outbox: Outbox, outs: Any) -> None:
        if not is_stuck.is_set():
            is_stuck.set()
            await asyncio.Event().wait()  # as where a stream is full
        await drain(outbox, outs)

    monkeypatch.setattr(Outbox, "drain", hangs_once)
    async with running(daemon):
        await asyncio.wait_for(is_stuck.wait(), 20)
        await daemon.leadership.resign()
        await leads(bus)


async def test_the_first_of_two_works_counts() -> None:
    ended: list[str] = []

    async def lasts(seconds: float, name: str) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        return name

    async def fails() -> None:
        raise RuntimeError("other")

    assert await unless(lasts(9, "other"), lasts(0, "work")) == "work"
    assert await unless(lasts(0, "other"), lasts(9, "work")) is None
    with pytest.raises(RuntimeError, match="other"):
        await unless(fails(), lasts(9, "work"))
    assert sorted(ended) == ["other", "other", "work", "work", "work"]


async def test_a_leadership_that_fails_as_it_begins_leaves_nothing_behind(
    bus: Bus, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[Outbox]()

    async def fails_once(bus: Bus) -> Service:
        if not closed:
            raise Unavailable("not connected")
        return await serve_leader(bus)

    close = Outbox.close

    async def noted(outbox: Outbox) -> None:
        closed.append(outbox)
        await close(outbox)

    monkeypatch.setattr(Outbox, "close", noted)
    monkeypatch.setattr(leading, "serve_leader", fails_once)
    async with running(daemon):
        await leads(bus)
        # Of the first leadership none is left: one of the second, and no standby's.
        assert [each.subject for each in bus._link.subscriptions].count(subjects.BEAT_ALL) == 1
