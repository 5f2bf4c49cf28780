"""What is written to a stream: a message with its conditions, and what is read back."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from gpuyard.bus.message import NO_HEADERS

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_ON: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_IN_STREAM: Final = "Nats-Expected-Last-Sequence"
TTL: Final = "Nats-TTL"
MESSAGE_ID: Final = "Nats-Msg-Id"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"


class Publication(NamedTuple):
    """One message for a stream. It is stored only if everything it expects holds."""

    subject: str
    data: bytes
    expected: int | None = None
    """The last sequence that `expected_on`, else the message's own subject, must have; 0: none."""
    expected_on: str | None = None
    expected_in_stream: int | None = None
    """The last sequence that the whole stream must have."""
    ttl_s: float | None = None
    """Vanishes after this; the server takes no less than 1 s."""
    message_id: str | None = None
    marker: Literal["DEL", "PURGE"] | None = None
    """Makes it a delete marker of a bucket; PURGE also removes the key's history."""
    headers: Mapping[str, str] = NO_HEADERS

    @property
    def conditions(self) -> tuple[object, ...]:
        """All but subject and data: equal ones have equal headers."""
        return self[2:]

    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers)
        if self.expected is not None:
            headers[EXPECTED] = str(self.expected)
        if self.expected_on is not None:
            headers[EXPECTED_ON] = self.expected_on
        if self.expected_in_stream is not None:
            headers[EXPECTED_IN_STREAM] = str(self.expected_in_stream)
        if self.ttl_s is not None:
            headers[TTL] = f"{round(self.ttl_s * 1000)}ms"
        if self.message_id is not None:
            headers[MESSAGE_ID] = self.message_id
        if self.marker is not None:
            headers[KV_OPERATION] = self.marker
            if self.marker == "PURGE":
                headers[ROLLUP] = "sub"
        return headers

    @property
    def size(self) -> int:
        """Bytes on the wire, about: what a batch's limit is counted in."""
        return len(self.data) + len(self.subject) + 160


@dataclass(frozen=True, slots=True)
class PubAck:
    """The server stored the message (of a batch: the last one) under `sequence`."""

    stream: str
    sequence: int
    duplicate: bool


class Stored(NamedTuple):
    """A message as a stream keeps it."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    at: datetime | None

    @property
    def is_marker(self) -> bool:
        """True where it says that the key is gone."""
        return KV_OPERATION in self.headers or MARKER_REASON in self.headers


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in order of sequence; `next_sequence` is where to go on, None at the end."""

    messages: list[Stored]
    next_sequence: int | None


@dataclass(frozen=True, slots=True)
class StreamState:
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    max_bytes: int
    """What it may hold at most."""

    @property
    def share(self) -> float:
        """How much of its limit is used, from 0 to 1."""
        return self.bytes / self.max_bytes if self.max_bytes > 0 else 0.0


def parse_time(text: str) -> datetime | None:
    """The server's time, which has up to nine digits after the point."""
    try:
        head, _, rest = text.rstrip("Z").partition(".")
        return datetime.fromisoformat(f"{head}.{(rest + '000000')[:6]}").replace(tzinfo=UTC)
    except ValueError:
        return None
