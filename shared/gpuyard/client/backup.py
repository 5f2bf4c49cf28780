"""Reading a yard's whole state from its bus, while it runs.

Needs a connection that may use JetStream, which is an operator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpuyard import __version__, bucket_rules, codec, subjects
from gpuyard.bus import Bus, Cut, NotFound, Stored, read_cut
from gpuyard.client.state_file import Backup, Document
from gpuyard.errors import RemoteProtocolError, UnknownThing

_SKIP: Final = len(subjects.state(""))
_TTL: Final = "Nats-TTL"
_LEADER: Final = "leader."
_LOG: Final = "wal."
_JOB: Final = "job."


@dataclass(frozen=True, slots=True)
class State:
    """What the bucket says, with the commits applied that are not at their keys yet."""

    sequence: int
    yard: str | None
    """None where no coordinator has ever run on this bus."""
    generation: int = 0
    restoring: str | None = None
    """The checksum of the backup whose restore has begun and not ended."""
    is_fresh: bool = True
    """No coordinator of this yard has ever led on this bus, or only before that restore began."""
    documents: dict[str, Document] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    """What the keys have without the log records, and those."""
    commit: Mapping[str, Any] = field(default_factory=dict)
    """The last commit record of a coordinator; empty where there is none."""

    @property
    def live_jobs(self) -> int:
        return sum(key.startswith("job.") for key in self.documents)


async def take_backup(bus: Bus) -> Backup:
    """The yard's state at one moment, between two commits.

    Raises UnknownThing where the bus has no yard, and RemoteProtocolError where a document of the
    yard itself cannot be read.
    """
    state = await read_state(bus)
    if state.yard is None or state.restoring is not None:
        what = "has no yard" if state.yard is None else "has a yard whose restore did not end"
        raise UnknownThing(f"{bus.url} {what}: there is nothing to back up", code="unknown_yard")
    return Backup(
        yard=state.yard,
        generation=state.generation,
        sequence=state.sequence,
        taken_at=rfc3339(datetime.now(UTC)),
        made_by=f"gpuyard {__version__}",
        documents=state.documents,
    )


async def read_state(bus: Bus) -> State:
    """The state as it is; complete up to the call where nobody else may write."""
    try:
        cut = await read_cut(bus.jetstream, subjects.STATE_STREAM, subjects.STATE_ALL)
    except NotFound:
        return State(sequence=0, yard=None)
    return _state_of(cut)


def rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _state_of(cut: Cut) -> State:
    stored = {message.subject[_SKIP:]: message for message in cut.messages}
    documents = {
        key: Document(message.data, _expiry(message))
        for key, message in stored.items()
        if not key.startswith((_LEADER, _LOG))
    }
    record = stored.get(subjects.COMMIT_KEY)
    commit = codec.decode(record.data) if record is not None else {}
    for message in _logs(stored, record):
        _apply(documents, message)
    for key in [key for key in documents if key.startswith(_JOB)]:
        end = documents.get(f"done.{key.removeprefix(_JOB)}")
        if end is not None and bucket_rules.is_end(end.data):
            del documents[key]
    yard = codec.decode(stored[subjects.YARD_KEY].data) if subjects.YARD_KEY in stored else {}
    return State(
        sequence=cut.sequence,
        yard=yard.get("id"),
        generation=int(yard.get("generation", 0)),
        restoring=yard.get("restoring"),
        is_fresh=not yard or bool(yard.get("fresh")),
        documents=documents,
        stored={k: m.data for k, m in stored.items() if not k.startswith(_LEADER)},
        commit=commit,
    )


def _logs(stored: Mapping[str, Stored], record: Stored | None) -> list[Stored]:
    """The log records to apply, in order: all but those that are at their keys already, of which
    the last commit record of the coordinator tells."""
    epoch, number = codec.decode(record.data)["covered"] if record is not None else (0, 0)
    sequence = record.sequence if record is not None else 0
    numbered = [
        (subjects.parse_wal(key), message)
        for key, message in stored.items()
        if key.startswith(_LOG)
    ]
    numbered.sort(key=lambda entry: entry[0])
    return [
        message
        for at, message in numbered
        if not bucket_rules.is_covered(at, (epoch, number), sequence)
    ]


def _apply(documents: dict[str, Document], message: Stored) -> None:
    """What one commit wrote, as `gpuyard_coordinator.store` lays it down."""
    try:
        writes: list[dict[str, Any]] = codec.decode(message.data)["writes"]
        for write in writes:
            documents.pop(write["key"], None)
            if write["data"] is not None:
                expiry = _later(message, write["ttl_s"])
                documents[write["key"]] = Document(write["data"], expiry)
    except (KeyError, TypeError) as fault:
        raise RemoteProtocolError(f"{message.subject} is no list of writes") from fault


def _expiry(message: Stored) -> str | None:
    text = message.headers.get(_TTL)
    if text is None:
        return None
    return _later(message, int(text.removesuffix("ms")) / 1000)


def _later(message: Stored, seconds: float | None) -> str | None:
    if seconds is None or message.at is None:
        return None
    return rfc3339(message.at + timedelta(seconds=seconds))
