"""Whether a bus fits a yard, and the streams that the yard keeps on it.

Not everything can be seen from a client: `sync_interval` and `max_file_store` are known to the
server alone, so the shipped configuration sets them and streams that do not fit are refused.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.refusals import BusUnfit, NotFound, StreamRefusal
from gpuyard.bus.streams import (
    ATTEMPTS,
    INSUFFICIENT_STORAGE,
    MIB,
    NO_PEERS_CODES,
    Drift,
    Sizes,
    ensure_streams,
    stream_configs,
)

MIN_PAYLOAD: Final = MIB
"""Documents, log records of commits and API pages are sized for the server's default."""
CLUSTER_REPLICAS: Final = 3
SMALLEST_PART: Final = 16
"""Of the default sizes; below it the state has no room for a working yard."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """What was found and done: how many servers keep each message, and what was mended."""

    replicas: int
    mended: list[Drift] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


async def fit_streams(jetstream: JetStream, *, max_gib: float | None = None) -> Fitting:
    """Check the bus and make the yard's streams on it, or mend them.

    On a cluster each stream has three replicas, and streams that were made on one server get
    them once the cluster has three. New streams have their default sizes, or the largest fraction
    down to a sixteenth that the server can store, and keep them; with `max_gib` exactly that, also
    for streams that exist. Raises `BusUnfit` with one line that says what to change.
    """
    await _check_limits(jetstream)
    wanted = CLUSTER_REPLICAS if jetstream.link.is_clustered else 1
    try:
        return Fitting(wanted, await _fit_sizes(jetstream, max_gib, wanted))
    except StreamRefusal as refusal:
        if wanted == 1 or refusal.code not in NO_PEERS_CODES:
            raise
        stored = await _stored_streams(jetstream)
        if len(stored) < len(stream_configs(Sizes())):
            raise BusUnfit(
                f"the bus is a cluster of fewer than {CLUSTER_REPLICAS} servers that store: start "
                f"the others, or run one server without a cluster block ({refusal})"
            ) from refusal
    mended = await _fit_sizes(jetstream, max_gib, 1)
    fewest = min(stored.values())
    text = f"streams have {fewest} replicas: the cluster has too few servers for {wanted}"
    return Fitting(fewest, mended, [text])


async def _check_limits(jetstream: JetStream) -> None:
    account = await jetstream.call("INFO", attempts=3)
    limits: dict[str, Any] = account.get("limits") or {}
    if jetstream.link.max_payload < MIN_PAYLOAD:
        raise BusUnfit(
            f"the server's max_payload is {jetstream.link.max_payload} bytes, and gpuyard needs "
            f"{MIN_PAYLOAD}"
        )
    streams = len(stream_configs(Sizes()))
    if 0 <= limits.get("max_streams", -1) < streams:
        raise BusUnfit(
            f"the account may have {limits['max_streams']} streams, and gpuyard needs {streams}"
        )
    needed = Sizes().total_bytes // SMALLEST_PART
    if 0 <= limits.get("max_storage", -1) < needed:
        raise BusUnfit(
            f"the account may store {limits['max_storage'] // MIB} MiB, and gpuyard needs at "
            f"least {needed // MIB} MiB"
        )


async def _fit_sizes(jetstream: JetStream, max_gib: float | None, replicas: int) -> list[Drift]:
    found = await _stored_streams(jetstream)
    if max_gib is not None:
        mended = await _fit_one_of(jetstream, [int(max_gib * 1024**3)], replicas, ())
    else:
        mended = await _fit_default(jetstream, replicas, found)
    # What this start itself made first too large is no drift.
    return [drift for drift in mended if drift.stream in found]


async def _fit_default(jetstream: JetStream, replicas: int, found: Collection[str]) -> list[Drift]:
    parts = [Sizes().total_bytes // 2**n for n in range(SMALLEST_PART.bit_length())]
    try:
        return await _fit_one_of(jetstream, parts, replicas, found)
    except BusUnfit:
        # Some were made by a start that was cut short, and leave no room for the others.
        if len(found) in (0, len(stream_configs(Sizes()))):
            raise
    return await _fit_one_of(jetstream, parts, replicas, ())


async def _fit_one_of(
    jetstream: JetStream, sizes: Sequence[int], replicas: int, kept: Collection[str]
) -> list[Drift]:
    """Make the streams within the first of these totals that the server has room for."""
    for size in sizes:
        try:
            return await ensure_streams(
                jetstream, sizes=Sizes.within(size), replicas=replicas, keep_sizes_of=kept
            )
        except StreamRefusal as refusal:
            if refusal.code != INSUFFICIENT_STORAGE:
                raise
    raise BusUnfit(
        f"the bus cannot store the {sizes[-1] // MIB} MiB that the yard needs at least: "
        "raise max_file_store in the server's jetstream block, or free its disk"
    )


async def _stored_streams(jetstream: JetStream) -> dict[str, int]:
    """The replicas of each stream of the yard that exists."""
    found: dict[str, int] = {}
    for config in stream_configs(Sizes()):
        name = config["name"]
        with suppress(NotFound):
            answer = await jetstream.call(f"STREAM.INFO.{name}", attempts=ATTEMPTS)
            found[name] = int(answer["config"]["num_replicas"])
    return found
