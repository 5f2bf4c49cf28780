"""A coordinator that stands by gets over a connection that breaks at any moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Message, connect
from gpuyard.errors import Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.leader import this_process
from gpuyard_coordinator.presence import Presence
from gpuyard_coordinator.standby import Standby


@pytest.fixture
def presence(bus: Bus) -> Presence:
    holder = this_process(name="coordinator-1", machine_id="m1", boot_id="b1")
    return Presence(bus, holder, Clock())


@asynccontextmanager
async def going(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def down_once(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same but for its first call, which finds no connection."""
    calls = 0

    async def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("not connected")
        return await real(*arguments, **options)

    return call


async def test_a_coordinator_is_listed_although_the_bus_was_away_at_first(
    bus: Bus, presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def hear(message: Message) -> None:
        if not heard.done():
            heard.set_result(message)

    await bus.agents.subscribe(subjects.PRESENCE, hear)
    monkeypatch.setattr(bus.app, "subscribe", down_once(bus.app.subscribe))
    async with going(presence.run()):
        message = await asyncio.wait_for(heard, 10)
    assert message.body()["host"] == "coordinator-1"


async def test_a_standby_answers_reads_although_the_bus_was_away_as_it_began_to(
    bus: Bus, presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus.tenants, "serve", down_once(bus.tenants.serve))
    standby = Standby(bus, Settings(), Clock(), presence, lambda: None)
    await standby.start()
    caller = subjects.tenant_inbox("t", "mia")
    try:
        async with await connect(bus.url, name="caller", inbox_prefix=caller) as other:
            answer = await other.tenants.request(
                subjects.api("t", "mia", "nodes"), {"v": 1}, attempts=10
            )
    finally:
        await standby.close()
    assert answer.body()["items"] == []
