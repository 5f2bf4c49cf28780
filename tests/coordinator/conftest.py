"""A bus with the yard's streams, for what speaks to it without a daemon."""

from collections.abc import AsyncIterator

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Sizes, connect, ensure_streams
from tests.support.nats_server import NatsServer


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """As a coordinator has it: its own inbox, and streams that fit a disk of 2 GiB."""
    inbox = subjects.COORDINATOR_INBOX
    async with await connect(nats_server.url, name="test", inbox_prefix=inbox) as bus:
        await ensure_streams(bus.jetstream, sizes=Sizes.within(2 * 1024**3))
        yield bus
