"""The bus as a coordinator finds it when it starts: checked, mended where that can be done."""

import structlog

from gpuyard.bus import Bus, fit_streams

log = structlog.get_logger()


async def prepare_bus(bus: Bus, *, max_gib: float | None) -> int:
    """Make the streams, or mend them; returns how many servers keep each message.

    Raises `Unavailable` with one line that says what somebody must change.
    """
    fitting = await fit_streams(bus.jetstream, max_gib=max_gib)
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
