"""Putting a backup back onto a bus, also onto one whose yard runs.

A restore leads while it writes (`restore_lead`), so that nobody else changes what it looks at.

What the bus has of jobs, nodes and shares stays, because it is newer than the backup: an attempt is
never rolled back, and what a tenant held since is not forgotten. What the backup has of tenants and
the mix replaces what is there. Nothing is removed. A restore that broke off is ended by the same
restore, started again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpuyard import bucket_rules, codec, subjects
from gpuyard.bus import Bus, Publication, StreamRefusal
from gpuyard.client.backup import State, read_state, rfc3339
from gpuyard.client.restore_lead import SHORTEST_TTL_S, Leading, take_over
from gpuyard.client.state_file import Backup, Document
from gpuyard.errors import Conflict, GpuyardError, Unavailable
from gpuyard.messages import AuditRecord, OutRecord
from gpuyard.model.quantities import counted

_KEPT: Final = ("job.", "done.", "node.", "out.", "share.")
"""What the bus has of these is newer than any backup."""


class Interrupted(GpuyardError):
    """The restore did not end; nobody leads the yard until the same restore has ended."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    yard: str
    generation: int
    documents: int
    """Put back from the backup."""
    kept: int
    """Of the backup's documents: the bus had its own."""
    deposed: bool
    """A coordinator led when it began."""


async def restore(
    bus: Bus, backup: Backup, *, checksum: str, user: str, replaces: bool = False
) -> Restored:
    """Put `backup` onto the bus, whose streams exist, and let the coordinators lead again.

    Raises Conflict, with nothing changed, where the bus has another yard with unfinished jobs, or
    this yard with unfinished jobs and not `replaces`; Interrupted where it broke off in between.
    """
    found = await read_state(bus)
    _check(found, backup, checksum, replaces=replaces)
    is_fresh = found.is_fresh or found.yard != backup.yard
    leading = await take_over(bus.jetstream, backup, checksum, is_fresh=is_fresh)
    try:
        # Complete: nobody else can write any more.
        state = await read_state(bus)
        chosen = _chosen(backup, state, is_fresh=is_fresh)
        await leading.write(_publications(state, chosen))
        await leading.finish(_out_record(backup, user, leading, state.documents.keys() | chosen))
    except (Unavailable, StreamRefusal) as fault:
        raise Interrupted(f"the restore broke off; start it again to end it: {fault}") from fault
    return Restored(
        yard=backup.yard,
        generation=leading.generation,
        documents=len(chosen),
        kept=len(backup.documents) - len(chosen),
        deposed=leading.deposed,
    )


def _check(found: State, backup: Backup, checksum: str, *, replaces: bool) -> None:
    if not found.live_jobs or found.restoring == checksum:
        return
    jobs = counted(found.live_jobs, "unfinished jobs")
    if found.yard != backup.yard:
        raise Conflict(
            f"the bus has yard {found.yard} with {jobs}, and the backup is of yard {backup.yard}",
            hint="restore onto an empty bus",
        )
    if not replaces:
        raise Conflict(
            f"yard {found.yard} has {jobs}",
            hint="--replace puts the backup's tenants in place of its own and brings back jobs "
            "that it does not know; what it knows of jobs stays",
        )


def _chosen(backup: Backup, state: State, *, is_fresh: bool) -> dict[str, Document]:
    """The documents of the backup that the bucket shall have."""
    now = rfc3339(datetime.now(UTC))

    def is_chosen(key: str, document: Document) -> bool:
        if document.expires_at is not None and document.expires_at <= now:
            return False
        if key.startswith("out.") and not is_fresh:
            return False  # the coordinators that went on have published it
        if key.startswith("job.") and f"done.{key.removeprefix('job.')}" in state.documents:
            return False  # it has ended since
        return not (key.startswith(_KEPT) and key in state.documents)

    return {key: d for key, d in backup.documents.items() if is_chosen(key, d)}


def _publications(state: State, chosen: dict[str, Document]) -> list[Publication]:
    """What makes the bucket's keys so, log records of the coordinator before applied."""
    documents = state.documents | chosen
    now = datetime.now(UTC)
    messages = [
        Publication(subjects.state(key), document.data, ttl_s=_ttl_s(document, now))
        for key, document in documents.items()
        if state.stored.get(key) != document.data
    ]
    # In this order: what breaks off in between is done again, from what is there then.
    logs = [subjects.parse_wal(key) for key in state.stored if key.startswith("wal.")]
    if logs:
        record = {"v": 1, "id": b"", "taken_over": b"", **state.commit, "covered": max(logs)}
        messages.append(Publication(subjects.state(subjects.COMMIT_KEY), codec.encode(record)))
    messages += [
        Publication(subjects.state(key), b"", marker="DEL", ttl_s=bucket_rules.marker_ttl_s(key))
        for key in state.stored
        if key not in documents
    ]
    return messages


def _ttl_s(document: Document, now: datetime) -> float | None:
    if document.expires_at is None:
        return None
    left = datetime.fromisoformat(document.expires_at) - now
    return max(SHORTEST_TTL_S, left.total_seconds())


def _out_record(backup: Backup, user: str, leading: Leading, keys: Collection[str]) -> Publication:
    """The audit record, published by the next leader as what commits leave is."""
    body: AuditRecord = {
        "v": 1,
        "actor": user,
        "before": None,
        "after": {
            "yard": backup.yard,
            "generation": leading.generation,
            "taken_at": backup.taken_at,
            "sequence": backup.sequence,
            "documents": len(backup.documents),
        },
        "user": user,
        "namespace": subjects.OPERATOR_TENANT,
        "gpu_request": None,
        "actual_usage": None,
        "timestamp": rfc3339(datetime.now(UTC)),
        "action": "restore",
    }
    subject = subjects.audit(subjects.OPERATOR_TENANT, "restore")
    record: OutRecord = {"v": 1, "messages": [{"subject": subject, "body": dict(body)}]}
    taken = [int(key.removeprefix("out.")) for key in keys if key.startswith("out.")]
    number = max([leading.epoch * bucket_rules.OUTS_PER_LEADER, *(n + 1 for n in taken)])
    return Publication(subjects.state(subjects.out_key(number)), codec.encode(dict(record)))
