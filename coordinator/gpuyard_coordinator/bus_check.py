"""The bus as a coordinator finds it when it starts: checked, mended where that can be done."""

import asyncio
import random
import time
from typing import Final

import structlog

from gpuyard.bus import Bus, BusUnfit, Fitting, StreamRefusal, fit_streams

log = structlog.get_logger()
PATIENCE_S: Final = 10.0
"""How long a bus may be unfit: servers of a cluster that start together find each other, and
coordinators that start together stand in each other's way while the streams are made."""
_PAUSE_S: Final = (0.3, 1.0)
"""Drawn anew each time, so that those who met once do not meet again."""


async def prepare_bus(bus: Bus, *, max_gib: float | None) -> int:
    """Make the streams, or mend them; returns how many servers keep each message.

    Raises `Unavailable` with one line that says what somebody must change.
    """
    fitting = await _fitted(bus, max_gib)
    for drift in fitting.mended:
        log.warning(
            "stream mended",
            stream=drift.stream,
            setting=drift.setting,
            found=drift.found,
            needed=drift.needed,
        )
    for text in fitting.warnings:
        log.warning("bus is not as it could be", reason=text)
    log.info("bus is fit", version=bus.server_version, replicas=fitting.replicas)
    return fitting.replicas


async def _fitted(bus: Bus, max_gib: float | None) -> Fitting:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await fit_streams(bus.jetstream, max_gib=max_gib)
        except (BusUnfit, StreamRefusal) as fault:
            if time.monotonic() > deadline:
                raise
            log.warning("bus is not fit yet", reason=str(fault))
        await asyncio.sleep(random.uniform(*_PAUSE_S))
