"""What grows is cut back: submissions that were taken long ago leave their stream."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from gpuyard import subjects
from gpuyard.bus import JetStream, PullLoop, StreamRefusal
from gpuyard.errors import Unavailable
from gpuyard_coordinator.clock import Clock

log = structlog.get_logger()
EVERY_S: Final = 15.0
KEPT: Final = timedelta(hours=24)
CROWDED: Final = 0.5
"""Above this share of the stream's limit what was taken goes at once, however young."""


async def purge_old_submissions(jetstream: JetStream, intake: PullLoop, clock: Clock) -> None:
    """Until cancelled, drops submissions that are acknowledged and, unless their stream fills up,
    older than a day."""
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            before = datetime.fromtimestamp(clock.wall(), UTC) - KEPT
            below = intake.floor + 1
            if (await jetstream.state(subjects.SUBMIT_STREAM)).share < CROWDED:
                below = await first_younger(jetstream, before, most=below)
            if below > 1:
                count = await jetstream.purge(subjects.SUBMIT_STREAM, below=below)
                log.debug("old submissions purged", count=count)
        except (Unavailable, StreamRefusal) as error:
            log.info("purge put off", reason=str(error))


async def first_younger(jetstream: JetStream, moment: datetime, *, most: int) -> int:
    """The lowest sequence up to `most` whose message was stored after `moment`; a binary search."""
    state = await jetstream.state(subjects.SUBMIT_STREAM)
    low, high = state.first_sequence, most
    while low < high:
        middle = (low + high) // 2
        stored = await jetstream.first_from(subjects.SUBMIT_STREAM, middle)
        if stored is None or stored.at is None or stored.at > moment or stored.sequence >= high:
            high = middle
        else:
            low = stored.sequence + 1
    return low
