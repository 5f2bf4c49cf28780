"""What is recorded of a run: one JSON object a line, `record` names its kind.

Times of `Injected`, `Accepted` and `Trace` are seconds of the machine's boot clock, which no fault
touches; those of a `Sighting` are what agents wrote into their beats, RFC 3339 UTC.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault as it was done; `target` is None where it needs none."""

    at: float
    kind: str
    target: str | None
    for_s: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job that a submitter was told the yard has."""

    at: float
    tenant: str
    job: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A message of the stream of events, in the stream's order."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sighting:
    """From when to when a node's beats showed an attempt alive."""

    tenant: str
    job: str
    attempt: int
    node: str
    first_at: str
    last_at: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A line that a job's own command wrote: `start`, `end`, or `collision` where the kernel had
    the lock of its job or GPU (`what`) held by another attempt's processes."""

    at: float
    word: str
    tenant: str
    job: str
    attempt: int
    node: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class FinalDocument:
    """A job as stored when the run was over."""

    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the tenants' documents allowed; never changed during a run."""

    gpus: dict[str, int]


Record = Injected | Accepted | JobEvent | Sighting | Trace | FinalDocument | Limits
_KINDS: Final = {
    kind.__name__: kind
    for kind in (Injected, Accepted, JobEvent, Sighting, Trace, FinalDocument, Limits)
}


@dataclass(slots=True)
class History:
    """All records of a run, by kind, each in the order in which it was made."""

    injected: list[Injected] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    documents: list[FinalDocument] = field(default_factory=list)
    limits: Limits = field(default_factory=lambda: Limits({}))

    def records(self) -> Iterator[Record]:
        yield self.limits
        yield from self.injected
        yield from self.accepted
        yield from self.events
        yield from self.sightings
        yield from self.traces
        yield from self.documents

    def add(self, record: Record) -> None:
        match record:
            case Limits():
                self.limits = record
            case Injected():
                self.injected.append(record)
            case Accepted():
                self.accepted.append(record)
            case JobEvent():
                self.events.append(record)
            case Sighting():
                self.sightings.append(record)
            case Trace():
                self.traces.append(record)
            case FinalDocument():
                self.documents.append(record)

    def write(self, file: Path) -> None:
        with file.open("w") as out:
            for record in self.records():
                line = {"record": type(record).__name__, **dataclasses.asdict(record)}
                out.write(json.dumps(line, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, file: Path) -> "History":
        history = cls()
        with file.open() as lines:
            for line in lines:
                fields = json.loads(line)
                history.add(_KINDS[fields.pop("record")](**fields))
        return history
