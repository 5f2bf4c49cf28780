"""What an agent remembers of one node, and the records its journal keeps that memory by.

Rules of this file:
1. The durable part of the memory changes by records alone: `Memory.apply(record)` is the only
   writer, while the agent runs and when it reads its journal again, so both give the same.
2. Records are plain dictionaries with a kind `k`; an unknown kind is passed over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuyard.messages import Token, WantedEntry
from gpuyard_agent.core.attempt import Attempt, Intent, LogMark, Result, Started
from gpuyard_agent.core.document import Document, entry_key
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.usage import Measured

Record = dict[str, Any]


@dataclass(slots=True)
class Memory:
    """All that is remembered of one node."""

    yard: str | None = None
    token: Token | None = None
    """The highest token ever met; lower ones are refused."""
    applied: tuple[Token, int] | None = None
    adopting: bool = True
    """Nothing is stopped until the coordinator has named every live attempt."""
    trusting: bool = False
    """False until the first document since adopting began: what it names may have run before."""
    runtime: str | None = None
    """By which its attempts run; None before that was written down."""
    generation: int = 0
    facts_digest: str = ""
    docker_version: str | None = None
    gpu_injection: str | None = None
    """What the engine said of itself last: a restart must not look like a change of the node."""
    address: str | None = None
    """Under which other nodes reached this one last; the same holds for it."""
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Takes one record in; an unknown kind changes nothing."""
        change = _CHANGES.get(str(record.get("k")))
        if change is not None:
            change(self, record)

    def snapshot(self) -> Iterator[Record]:
        """Records that build this memory's durable part from nothing."""
        if self.yard is not None:
            yield {"k": "yard", "yard": self.yard}
        if self.runtime is not None:
            yield runtime_record(self.runtime)
        yield {
            "k": "generation",
            "n": self.generation,
            "digest": self.facts_digest,
            "docker": self.docker_version,
            "injection": self.gpu_injection,
            "address": self.address,
        }
        if self.token is not None:
            yield {"k": "token", "token": list(self.token)}
        if self.applied is not None:
            entries = [a.entry for a in self.attempts.values() if a.entry is not None]
            yield _document_record(self.applied, entries, ())
        yield {"k": "adopting", "on": self.adopting, "trusting": self.trusting}
        for attempt in self.attempts.values():
            yield from _attempt_records(attempt)

    @property
    def unended(self) -> int:
        """Attempts that were launched and whose end is not known: what runs may be of theirs."""
        return sum(
            attempt.launched is not None and attempt.result is None
            for attempt in self.attempts.values()
        )

    def attempt(self, key: AttemptKey) -> Attempt:
        """The attempt of that key, made where it is not known yet."""
        if key not in self.attempts:
            self.attempts[key] = Attempt(key)
        return self.attempts[key]


def document_record(memory: Memory, document: Document) -> Record:
    """The record that makes `document` the applied one: only what differs from the last."""
    before = {key: a.entry for key, a in memory.attempts.items() if a.entry is not None}
    changed = [entry for key, entry in document.entries.items() if before.get(key) != entry]
    gone = [key for key in before if key not in document.entries]
    return _document_record(document.order, changed, gone)


def key_list(key: AttemptKey) -> list[Any]:
    """A key as records hold it."""
    return [key.tenant, key.job, key.attempt]


def runtime_record(name: str) -> Record:
    return {"k": "runtime", "name": name}


def started_record(key: AttemptKey, started: Started) -> Record:
    return {
        "k": "started",
        "key": key_list(key),
        "container_id": started.container_id,
        "image_digest": started.image_digest,
        "started_at": started.started_at,
        "at": started.at,
        "boot": started.boot_id,
    }


def intent_record(key: AttemptKey, intent: Intent) -> Record:
    return {
        "k": "intent",
        "key": key_list(key),
        "reason": intent.reason,
        "signal": intent.signal,
        "grace_s": intent.grace_s,
        "at": intent.at,
        "wall": intent.wall,
        "message": intent.message,
        "killed_at": intent.killed_at,
    }


def ended_record(key: AttemptKey, result: Result) -> Record:
    return {
        "k": "ended",
        "key": key_list(key),
        "reason": result.reason,
        "exit_code": result.exit_code,
        "message": result.message,
        "ended_at": result.ended_at,
        "usage": result.usage,
    }


def logs_record(key: AttemptKey, mark: LogMark) -> Record:
    return {
        "k": "logs",
        "key": key_list(key),
        "chunks": mark.chunks,
        "stdout": mark.stdout,
        "stderr": mark.stderr,
        "published": mark.published,
        "done": mark.done,
    }


def measured_record(key: AttemptKey, measured: Measured) -> Record:
    return {
        "k": "measured",
        "key": key_list(key),
        "busy": round(measured.utilization_sum, 1),
        "count": measured.utilization_count,
        "peak": measured.memory_peak_mib,
    }


def _document_record(
    order: tuple[Token, int], changed: list[WantedEntry], gone: Sequence[AttemptKey]
) -> Record:
    return {
        "k": "document",
        "token": list(order[0]),
        "revision": order[1],
        "changed": changed,
        "gone": [key_list(key) for key in gone],
    }


def _attempt_records(attempt: Attempt) -> Iterator[Record]:
    key = key_list(attempt.key)
    if attempt.former is not None:
        yield {"k": "former", "key": key, "entry": attempt.former}
    if attempt.accepted:
        yield {"k": "accepted", "key": key, "gpus": list(attempt.gpus)}
    if attempt.launched is not None:
        yield {"k": "launching", "key": key, "boot": attempt.launched}
    if attempt.started is not None:
        yield started_record(attempt.key, attempt.started)
    if attempt.intent is not None:
        yield intent_record(attempt.key, attempt.intent)
    if attempt.result is not None:
        yield ended_record(attempt.key, attempt.result)
    if attempt.logs != LogMark():
        yield logs_record(attempt.key, attempt.logs)
    if attempt.result is None and attempt.measured != Measured():
        yield measured_record(attempt.key, attempt.measured)


def _key(record: Mapping[str, Any]) -> AttemptKey:
    tenant, job, attempt = record["key"]
    return AttemptKey(tenant, job, attempt)


def _yard(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.yard = record["yard"]


def _runtime(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.runtime = record["name"]


def _token(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.token = (record["token"][0], record["token"][1])


def _generation(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.generation, memory.facts_digest = record["n"], record["digest"]
    memory.docker_version, memory.gpu_injection = record["docker"], record["injection"]
    memory.address = record.get("address")


def _adopting(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.adopting = record["on"]
    memory.trusting = record.get("trusting", not memory.adopting)


def _document(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.applied = ((record["token"][0], record["token"][1]), record["revision"])
    for entry in record["changed"]:
        attempt = memory.attempt(entry_key(entry))
        attempt.entry, attempt.former = entry, None
    for tenant, job, number in record["gone"]:
        known = memory.attempts.get(AttemptKey(tenant, job, number))
        if known is not None:
            # The first document since adopting began may not know what came after a backup.
            known.former = known.entry if memory.adopting and not memory.trusting else None
            known.entry = None


def _former(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempt(_key(record)).former = record["entry"]


def _accepted(memory: Memory, record: Mapping[str, Any]) -> None:
    attempt = memory.attempt(_key(record))
    attempt.accepted, attempt.gpus = True, tuple(record["gpus"])


def _launching(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempt(_key(record)).launched = record["boot"]


def _unlaunched(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempt(_key(record)).launched = None


def _started(memory: Memory, record: Mapping[str, Any]) -> None:
    attempt = memory.attempt(_key(record))
    # A container that was found, not launched, by this journal's agent was started all the same.
    attempt.launched = attempt.launched or record["boot"]
    attempt.started = Started(
        container_id=record["container_id"],
        image_digest=record["image_digest"],
        started_at=record["started_at"],
        at=record["at"],
        boot_id=record["boot"],
    )


def _intent(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempt(_key(record)).intent = Intent(
        reason=record["reason"],
        signal=record["signal"],
        grace_s=record["grace_s"],
        at=record["at"],
        wall=record["wall"],
        message=record["message"],
        killed_at=record["killed_at"],
    )


def _ended(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempt(_key(record)).result = Result(
        reason=record["reason"],
        exit_code=record["exit_code"],
        message=record["message"],
        ended_at=record["ended_at"],
        usage=record["usage"],
    )


def _logs(memory: Memory, record: Mapping[str, Any]) -> None:
    attempt = memory.attempts.get(_key(record))
    if attempt is None:  # a last position written while the attempt was being forgotten
        return
    attempt.logs = LogMark(
        chunks=record["chunks"],
        stdout=record["stdout"],
        stderr=record["stderr"],
        published=record["published"],
        done=record["done"],
    )


def _measured(memory: Memory, record: Mapping[str, Any]) -> None:
    attempt = memory.attempts.get(_key(record))
    if attempt is not None:
        attempt.measured = Measured(record["busy"], record["count"], record["peak"])


def _forgotten(memory: Memory, record: Mapping[str, Any]) -> None:
    memory.attempts.pop(_key(record), None)


_CHANGES: Final = {
    "yard": _yard,
    "runtime": _runtime,
    "token": _token,
    "generation": _generation,
    "adopting": _adopting,
    "document": _document,
    "former": _former,
    "accepted": _accepted,
    "launching": _launching,
    "unlaunched": _unlaunched,
    "started": _started,
    "intent": _intent,
    "ended": _ended,
    "logs": _logs,
    "measured": _measured,
    "forgotten": _forgotten,
}
