"""What a reply or a document changes in the memory, as records to write before it is true.

Rules of this file:
1. A token below the highest ever met is refused; a higher one is remembered first.
2. Another yard's documents change nothing here.
3. A new generation of the yard (it was restored from a backup), like a missing journal, starts
   adopting: everything is reported and nothing is stopped until the coordinator has named every
   live attempt, and every one that a document of before named, with its end where it has one.
   What the first document of that time names and this host does not have may have run to its end
   before: it is ended as lost, never started.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from gpuyard.messages import Token
from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.attempt import Attempt, Result
from gpuyard_agent.core.containers import Seen, Status
from gpuyard_agent.core.document import Document, parse_token
from gpuyard_agent.core.memory import Memory, Record, document_record, ended_record, key_list
from gpuyard_agent.core.stepping import ABSENCES
from gpuyard_agent.core.steps import Here
from gpuyard_agent.core.times import rfc3339


class Refused(StrEnum):
    """Why a reply or a document changed nothing."""

    LOWER_TOKEN = "its token is lower than one met before"
    OTHER_YARD = "it comes from another yard"
    OLDER = "it is not newer than the applied one"


def token_records(memory: Memory, token: Token) -> list[Record] | Refused:
    """The records of meeting `token`; empty where it is the one known."""
    known = memory.token
    if known is not None and token < known:
        return Refused.LOWER_TOKEN
    if token == known:
        return []
    records: list[Record] = [{"k": "token", "token": list(token)}]
    if known is not None and token[0] != known[0]:
        records.append({"k": "adopting", "on": True, "trusting": False})
    return records


def document_records(memory: Memory, document: Document, here: Here) -> list[Record] | Refused:
    """The records that make `document` the applied one."""
    if document.yard != memory.yard:
        return Refused.OTHER_YARD
    met = token_records(memory, document.token)
    if isinstance(met, Refused):
        return met
    if memory.applied is not None and document.order <= memory.applied:
        return Refused.OLDER
    is_trusting = memory.trusting and not any(record["k"] == "adopting" for record in met)
    records = [*met, document_record(memory, document)]
    if not is_trusting:
        for attempt in _suspects(memory, document, here):
            records += _lost(attempt, here)
    is_adopting = (memory.adopting or not is_trusting) and any(
        _must_be_named(attempt, is_first=not is_trusting)
        for key, attempt in memory.attempts.items()
        if key not in document.entries
    )
    if is_adopting != memory.adopting or not is_trusting:
        records.append({"k": "adopting", "on": is_adopting, "trusting": True})
    return records


def adoption_records(memory: Memory) -> list[Record]:
    """The end of adopting, where the last attempt that no document named has ended by itself."""
    if not (memory.adopting and memory.trusting):
        return []
    unnamed = (attempt for attempt in memory.attempts.values() if attempt.entry is None)
    if any(_must_be_named(attempt) for attempt in unnamed):
        return []
    return [{"k": "adopting", "on": False, "trusting": True}]


def confirm(attempts: Iterable[Attempt]) -> None:
    """A reply told that the applied document, which names none of these, is the current one."""
    for attempt in attempts:
        attempt.confirmations += 1


def is_current(memory: Memory, reply: Mapping[str, Any]) -> bool:
    """True where a reply says that nothing newer than the applied document exists."""
    applied = memory.applied
    return (
        reply.get("wanted") is None
        and applied is not None
        and applied[0] == parse_token(reply.get("token"))
    )


def take_listing(
    memory: Memory, found: Sequence[Seen], *, absent: Iterable[Attempt]
) -> list[Attempt]:
    """Takes in what the runtime shows; the attempts that this changed.

    `absent` are those that were there before the listing began and are not in it.
    """
    changed = []
    for seen in found:
        attempt = memory.attempt(seen.key)
        if attempt.container != seen or attempt.absences:
            changed.append(attempt)
        attempt.absences = 0
        if attempt.exit is not None and seen.status is Status.RUNNING:
            continue  # an older view: the end was told while the listing was under way
        attempt.container = seen
        if seen.status is Status.EXITED and attempt.exit is None:
            attempt.exit = seen.exit
    for attempt in absent:
        attempt.absences += 1
        if attempt.absences >= ABSENCES:
            attempt.container = None
        changed.append(attempt)
    return changed


def _suspects(memory: Memory, document: Document, here: Here) -> Iterator[Attempt]:
    """Named by the document, unknown to this host, and of this boot: they may have run before."""
    for key, entry in document.entries.items():
        known = memory.attempts.get(key)
        is_new = known is None or (not known.accepted and known.container is None)
        if is_new and (entry["machine_id"], entry["boot_id"]) == (here.machine_id, here.boot_id):
            yield known or Attempt(key, entry=entry)


def _lost(attempt: Attempt, here: Here) -> list[Record]:
    message = "this node lost its memory, and the container is not here"
    result = Result(EndReason.RUNTIME_LOST, None, message, rfc3339(here.wall))
    accepted = {"k": "accepted", "key": key_list(attempt.key), "gpus": []}
    return [accepted, ended_record(attempt.key, result)]


def _must_be_named(attempt: Attempt, *, is_first: bool = False) -> bool:
    """True for an attempt that adopting lasts for while no document names it. `is_first`: what a
    document says of it now is of before adopting began."""
    lives = attempt.container is not None and attempt.result is None
    is_given = attempt.former is not None or (is_first and attempt.entry is not None)
    return lives or (attempt.accepted and is_given)
