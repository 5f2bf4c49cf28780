"""What must hold of every history, whatever was done to the yard; pure.

Four witnesses are compared: the submitters (what was accepted), the stream of events (what the
coordinators committed, in order), the agents' beats and the jobs' own traces (what really ran).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.system.chaos.history import History, Sighting

JobKey = tuple[str, str]
WHOLE_GPU_MILLI: Final = 1000
TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
_SHOWN: Final = 20
"""Violations of one kind that a report prints."""


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    """lost, double, overlap, grant, quota, events or untrue."""
    text: str


@dataclass(slots=True)
class Report:
    faults: Counter[str]
    jobs: int
    attempts: int
    ends: Counter[str]
    violations: list[Violation] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(violation.kind == kind for violation in self.violations)

    def lines(self) -> Iterator[str]:
        faults = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        yield f"faults: {faults or 'none'}"
        ends = ", ".join(f"{n} {reason}" for reason, n in self.ends.most_common())
        yield f"jobs: {self.jobs}, attempts: {self.attempts} ({ends})"
        yield (
            f"{self.count('lost')} lost, {self.count('double')} double, "
            f"{self.count('overlap')} overlapping attempts, "
            f"{self.count('grant')} overlapping grants, {self.count('quota')} over quota, "
            f"{self.count('events')} events missing or out of order, "
            f"{self.count('untrue')} untrue ends"
        )
        shown: Counter[str] = Counter()
        for violation in self.violations:
            shown[violation.kind] += 1
            if shown[violation.kind] <= _SHOWN:
                yield f"  {violation.kind}: {violation.text}"


def check(history: History) -> Report:
    documents = {_key(final.document): final.document for final in history.documents}
    attempts = [a for document in documents.values() for a in document["attempts"]]
    return Report(
        faults=Counter(fault.kind for fault in history.injected),
        jobs=len(history.accepted),
        attempts=len(attempts),
        ends=Counter(str(attempt["reason"]) for attempt in attempts),
        violations=[
            *_lost(history, documents),
            *_events_out_of_order(history, documents),
            *_held_twice(history, documents),
            *_collisions(history),
            *_overlapping_sightings(history),
            *_run_twice(history, documents),
        ],
    )


def _key(body: Mapping[str, Any]) -> JobKey:
    return body["tenant"], body.get("job") or body["id"]


def _lost(history: History, documents: Mapping[JobKey, Mapping[str, Any]]) -> Iterator[Violation]:
    """Every accepted job is there, and over."""
    for accepted in history.accepted:
        document = documents.get((accepted.tenant, accepted.job))
        if document is None:
            yield Violation("lost", f"{accepted.tenant}/{accepted.job} was accepted and is gone")
        elif document["state"] not in TERMINAL:
            yield Violation("lost", f"{accepted.tenant}/{accepted.job} stays {document['state']}")


def _events_by_job(history: History) -> dict[JobKey, list[dict[str, Any]]]:
    found: dict[JobKey, list[dict[str, Any]]] = defaultdict(list)
    for event in history.events:
        found[_key(event.body)].append(event.body)
    return found


def _events_out_of_order(
    history: History, documents: Mapping[JobKey, Mapping[str, Any]]
) -> Iterator[Violation]:
    """Each job's events are numbered 1, 2, 3 … in the stream's order, and its one end is last."""
    events = _events_by_job(history)
    for key, document in documents.items():
        name, mine = "/".join(key), events.get(key, [])
        numbers = [event["seq"] for event in mine]
        if numbers != list(range(1, document["events"] + 1)):
            yield Violation("events", f"{name}: {document['events']} events, the stream {numbers}")
        ends = [event["kind"] for event in mine if event["kind"] in TERMINAL]
        is_over = document["state"] in TERMINAL
        if ends != ([document["state"]] if is_over else []):
            yield Violation("events", f"{name}: {document['state']}, its events say {ends}")
        elif is_over and mine[-1]["kind"] not in TERMINAL:
            yield Violation("events", f"{name}: {mine[-1]['kind']} comes after its end")


def _held_twice(
    history: History, documents: Mapping[JobKey, Mapping[str, Any]]
) -> Iterator[Violation]:
    """In the order of commits no job has two attempts, no GPU more than it has, no tenant more
    than its limit."""
    holding: dict[JobKey, int] = {}
    milli: Counter[str] = Counter()
    used: Counter[str] = Counter()

    def book(key: JobKey, attempt: int, sign: int) -> Iterable[tuple[str, int]]:
        grants = [
            (gpu["uuid"], gpu["milli"])
            for gpu in _attempt(documents.get(key, {}), attempt).get("gpus", ())
        ]
        for uuid, amount in grants:
            milli[uuid] += sign * amount
            used[key[0]] += sign * amount
        return grants

    for event in (record.body for record in history.events):
        key, attempt = _key(event), event["attempt"]
        name = f"{'/'.join(key)} attempt {attempt}"
        if event["kind"] == "assigned":
            if key in holding:
                yield Violation("overlap", f"{name} assigned while attempt {holding[key]} holds")
            holding[key] = attempt
            for uuid, _ in book(key, attempt, 1):
                if milli[uuid] > WHOLE_GPU_MILLI:
                    yield Violation("grant", f"{uuid} has {milli[uuid]} milli with {name}")
            limit = history.limits.gpus.get(key[0])
            if limit is not None and used[key[0]] > limit * WHOLE_GPU_MILLI:
                yield Violation("quota", f"{key[0]} holds {used[key[0]]} milli with {name}")
        elif (event["kind"] == "requeued" or event["kind"] in TERMINAL) and key in holding:
            book(key, holding.pop(key), -1)


def _attempt(document: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    attempts: list[Mapping[str, Any]] = document.get("attempts", [])
    return next((a for a in attempts if a["attempt"] == number), {})


def _collisions(history: History) -> Iterator[Violation]:
    """The kernel's word: a lock of a job or a GPU that another attempt's processes held."""
    for trace in history.traces:
        if trace.word == "collision":
            kind = "overlap" if trace.what == "job" else "grant"
            yield Violation(
                kind, f"{trace.tenant}/{trace.job} attempt {trace.attempt} met {trace.what} in use"
            )


def _overlapping_sightings(history: History) -> Iterator[Violation]:
    """An attempt that a beat shows alive after a later one of its job was alive."""
    by_job: dict[JobKey, list[Sighting]] = defaultdict(list)
    for sighting in history.sightings:
        by_job[sighting.tenant, sighting.job].append(sighting)
    for key, sightings in by_job.items():
        ordered = sorted(sightings, key=lambda sighting: (sighting.attempt, sighting.node))
        for one, next_one in itertools.pairwise(ordered):
            where = f"attempt {one.attempt} on {one.node} until {one.last_at}"
            after = f"attempt {next_one.attempt} on {next_one.node} from {next_one.first_at}"
            if one.attempt == next_one.attempt or one.last_at > next_one.first_at:
                yield Violation("overlap", f"{'/'.join(key)}: {where}, {after}")


def _run_twice(
    history: History, documents: Mapping[JobKey, Mapping[str, Any]]
) -> Iterator[Violation]:
    """No attempt starts twice, and what ran to its end is recorded as that and not run again."""
    starts = Counter((t.tenant, t.job, t.attempt) for t in history.traces if t.word == "start")
    ends = Counter((t.tenant, t.job) for t in history.traces if t.word == "end")
    for (tenant, job, attempt), count in starts.items():
        if count > 1:
            yield Violation("double", f"{tenant}/{job} attempt {attempt} started {count} times")
    for key, count in ends.items():
        if count > 1:
            yield Violation("double", f"{'/'.join(key)} ran to its end {count} times")
        if (state := _state(documents, key)) not in (None, "succeeded"):
            yield Violation("untrue", f"{'/'.join(key)} ran to its end and is {state}")
    for key in {(tenant, job) for tenant, job, _ in starts} - set(ends):
        if _state(documents, key) == "succeeded":
            yield Violation("untrue", f"{'/'.join(key)} succeeded and never came to its end")


def _state(documents: Mapping[JobKey, Mapping[str, Any]], key: JobKey) -> str | None:
    return documents.get(key, {}).get("state")
