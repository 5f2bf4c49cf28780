"""The streams of the yard as they shall be, and making them so."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from gpuyard import subjects
from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.refusals import BusUnfit, NotFound, StreamRefusal

MIB: Final = 1024 * 1024
_SECOND_NS: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _SECOND_NS
SUBMISSIONS_PER_SUBJECT: Final = 200_000
"""Cap on what one tenant's user may have stored and not yet purged; above it publishing fails."""
INSUFFICIENT_STORAGE: Final = 10047
"""What all streams may hold together is above what the server may store."""
NO_PEERS_CODES: Final = frozenset({10005, 10074})
"""Too few servers for that many replicas."""
NO_ROOM_CODES: Final = NO_PEERS_CODES | {INSUFFICIENT_STORAGE}
ATTEMPTS: Final = 5
"""A cluster that has just started elects a leader for each stream, which takes seconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest size of each stream; the sum is what the server must be able to store.

    The state has a reserve of its own, so that logs can never starve it.
    """

    state_bytes: int = 1024 * MIB
    submit_bytes: int = 512 * MIB
    events_bytes: int = 512 * MIB
    logs_bytes: int = 2048 * MIB
    audit_bytes: int = 256 * MIB
    usage_bytes: int = 256 * MIB

    @property
    def total_bytes(self) -> int:
        return (
            self.state_bytes
            + self.submit_bytes
            + self.events_bytes
            + self.logs_bytes
            + self.audit_bytes
            + self.usage_bytes
        )

    @classmethod
    def within(cls, total_bytes: int) -> "Sizes":
        """Sizes in the default proportions whose sum stays below `total_bytes`."""
        whole = cls()
        share = min(1.0, total_bytes / whole.total_bytes)
        return cls(
            state_bytes=int(whole.state_bytes * share),
            submit_bytes=int(whole.submit_bytes * share),
            events_bytes=int(whole.events_bytes * share),
            logs_bytes=int(whole.logs_bytes * share),
            audit_bytes=int(whole.audit_bytes * share),
            usage_bytes=int(whole.usage_bytes * share),
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """A setting of a stream that was not what the yard needs."""

    stream: str
    setting: str
    found: object
    needed: object

    def __str__(self) -> str:
        return f"{self.stream}: {self.setting} was {self.found}, is {self.needed}"


async def ensure_streams(
    jetstream: JetStream,
    *,
    sizes: Sizes | None = None,
    replicas: int = 1,
    keep_sizes_of: Collection[str] = (),
) -> list[Drift]:
    """Create what is missing and bring what exists to this configuration; stored data stays.

    Returns what was mended. A stream with more replicas keeps them, and those named in
    `keep_sizes_of` their sizes as well. Raises `BusUnfit` for what the server does not change in
    place, and the server's `StreamRefusal` where it has no room.
    """
    mended: list[Drift] = []
    for config in stream_configs(sizes or Sizes(), replicas=replicas):
        keeps_size = config["name"] in keep_sizes_of
        mended += await _ensure(jetstream, config, keeps_size=keeps_size)
    return mended


def stream_configs(sizes: Sizes, *, replicas: int = 1) -> list[dict[str, Any]]:
    """The configuration of every stream, state first."""
    return [
        _state(sizes, replicas),
        _submit(sizes, replicas),
        _record(subjects.EVENTS_STREAM, subjects.EVENTS_ALL, sizes.events_bytes, replicas)
        | {"max_age": 30 * _DAY_NS},
        _record(subjects.LOGS_STREAM, subjects.LOGS_ALL, sizes.logs_bytes, replicas)
        | {"max_age": 7 * _DAY_NS},
        _record(subjects.AUDIT_STREAM, subjects.AUDIT_ALL, sizes.audit_bytes, replicas),
        _record(subjects.USAGE_STREAM, subjects.USAGE_ALL, sizes.usage_bytes, replicas),
    ]


async def _ensure(jetstream: JetStream, config: dict[str, Any], *, keeps_size: bool) -> list[Drift]:
    name = config["name"]
    try:
        stored = (await jetstream.call(f"STREAM.INFO.{name}", attempts=ATTEMPTS))["config"]
    except NotFound:
        # Creating with an equal configuration succeeds, so two coordinators may race here.
        await jetstream.call(f"STREAM.CREATE.{name}", config, timeout_s=5.0, attempts=ATTEMPTS)
        return []
    config = config | {"num_replicas": max(config["num_replicas"], stored["num_replicas"])}
    if keeps_size and stored["max_bytes"] > 0:
        config["max_bytes"] = stored["max_bytes"]
    drifts = [
        Drift(name, key, found, value)
        for key, value in config.items()
        if (found := stored.get(key, _absent(value))) != value
    ]
    if drifts:
        await _mend(jetstream, stored | config, drifts)
    return drifts


async def _mend(jetstream: JetStream, config: dict[str, Any], drifts: list[Drift]) -> None:
    name = config["name"]
    try:
        await jetstream.call(f"STREAM.UPDATE.{name}", config, timeout_s=5.0, attempts=ATTEMPTS)
    except StreamRefusal as refusal:
        if refusal.code in NO_ROOM_CODES:
            raise
        found = ", ".join(f"{d.setting} {d.found} (needed: {d.needed})" for d in drifts)
        raise BusUnfit(
            f"stream {name} has {found}, and the server does not change that: {refusal}; "
            "back up, remove the stream, and restore"
        ) from refusal


def _absent(value: object) -> object:
    """What a key that the server leaves out stands for, by the type of what is wanted."""
    return type(value)()


def _state(sizes: Sizes, replicas: int) -> dict[str, Any]:
    # No limit markers: they would make an expired lease look like a stored one.
    return _common(subjects.STATE_STREAM, subjects.STATE_ALL, sizes.state_bytes, replicas) | {
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        "duplicate_window": 120 * _SECOND_NS,
    }


def _submit(sizes: Sizes, replicas: int) -> dict[str, Any]:
    # Limits retention without an age: an accepted job must not vanish while nobody leads. The
    # window is as short as it can be, because message ids are unique over all tenants.
    return _common(subjects.SUBMIT_STREAM, subjects.SUBMIT_ALL, sizes.submit_bytes, replicas) | {
        "max_msgs_per_subject": SUBMISSIONS_PER_SUBJECT,
        "discard": "new",
        "discard_new_per_subject": True,
        "duplicate_window": _SECOND_NS // 10,
    }


def _record(name: str, subject: str, max_bytes: int, replicas: int) -> dict[str, Any]:
    """A stream of what happened: it drops its oldest when it is full."""
    return _common(name, subject, max_bytes, replicas) | {
        "discard": "old",
        "allow_atomic": True,
        "duplicate_window": 120 * _SECOND_NS,
    }


def _common(name: str, subject: str, max_bytes: int, replicas: int) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "max_bytes": max_bytes,
        "num_replicas": replicas,
        "allow_direct": True,
    }
