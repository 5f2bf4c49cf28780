"""Putting a backup back onto a bus, also onto one whose yard runs.

A restore leads while it writes: it takes the lease and the epoch as a coordinator does, but does
not wait for the lease to be free. From that batch on the server refuses whatever the leader before
still sends, and `leader.yard` says that a restore is under way, so that nobody leads on half of
it, even if this program dies. The generation goes up in the same batch: agents that see the new
one adopt what runs and stop nothing.

What the bus has of jobs, nodes and shares stays, because it is newer than the backup: an attempt is
never rolled back, and what a tenant held since is not forgotten. What the backup has of tenants and
the mix replaces what is there. Nothing is removed. A restore that broke off is ended by the same
restore, started again.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gpuyard import bucket_rules, codec, subjects
from gpuyard.bus import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    Bus,
    JetStream,
    Publication,
    Stale,
    Stored,
    StreamRefusal,
    Undecided,
)
from gpuyard.client.backup import State, read_state, rfc3339
from gpuyard.client.state_file import Backup, Document
from gpuyard.errors import Conflict, GpuyardError, Unavailable
from gpuyard.messages import AuditRecord, OutRecord
from gpuyard.model.quantities import counted

LEASE_S: Final = 60.0
"""How long others wait should this program die; the epoch keeps them from harm, not the lease."""
RENEW_S: Final = 10.0
OUTS_PER_LEADER: Final = 2**32
"""Out records are numbered from the leader's epoch times this."""
TRIES: Final = 50
PAUSE_S: Final = 0.2
SHORTEST_TTL_S: Final = 1.0
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
    leading = await _take_over(bus.jetstream, backup, checksum, is_fresh=is_fresh)
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


def _out_record(
    backup: Backup, user: str, leading: "_Leading", keys: Collection[str]
) -> Publication:
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
    number = max([leading.epoch * OUTS_PER_LEADER, *(n + 1 for n in taken)])
    return Publication(subjects.state(subjects.out_key(number)), codec.encode(dict(record)))


async def _take_over(
    jetstream: JetStream, backup: Backup, checksum: str, *, is_fresh: bool
) -> "_Leading":
    """Depose whoever leads and mark the yard; one batch, tried until nobody wrote in between."""
    term = secrets.token_hex(8)
    record = codec.encode({"v": 1, "term": term, "holder": _holder()})
    for _ in range(TRIES):
        yard = await _last(jetstream, subjects.YARD_KEY)
        lease = await _last(jetstream, subjects.LEASE_KEY)
        epoch = await _last(jetstream, subjects.EPOCH_KEY)
        generation = _next_generation(backup, yard)
        document = {
            "v": 1,
            "id": backup.yard,
            "generation": generation,
            "restoring": checksum,
            "fresh": is_fresh,
        }
        # The epoch first: on an empty bus that is number 1, which no leader of the bus that was
        # lost can have, since the lease comes before it there. One that does not know yet is kept
        # out.
        batch = [
            _conditional(subjects.EPOCH_KEY, record, epoch),
            _conditional(subjects.YARD_KEY, codec.encode(document), yard),
            _conditional(subjects.LEASE_KEY, record, lease)._replace(ttl_s=LEASE_S),
        ]
        try:
            ack = await jetstream.publish_batch(batch)
        except (Stale, Undecided):
            continue  # the leader renewed its lease meanwhile, or our own answer was lost
        except Unavailable:
            await asyncio.sleep(PAUSE_S)
            continue
        return _Leading(
            jetstream,
            yard=backup.yard,
            generation=generation,
            epoch=ack.sequence - len(batch) + 1,
            record=record,
            deposed=lease is not None and not lease.is_marker and lease.data != record,
        )
    raise Unavailable("the lead could not be taken: the bus does not store, or many try at once")


def _next_generation(backup: Backup, yard: Stored | None) -> int:
    known = int(codec.decode(yard.data).get("generation", 0)) if yard is not None else 0
    return max(int(time.time() * 1000), max(known, backup.generation) + 1)


def _conditional(key: str, data: bytes, before: Stored | None) -> Publication:
    """A write of `key` that nobody else may have written since `before`."""
    return Publication(subjects.state(key), data, expected=before.sequence if before else 0)


def _holder() -> dict[str, Any]:
    """Who holds the lease, for its readers; a machine id that is none keeps a coordinator of this
    host from taking a restore that died for a dead self of its own."""
    return {
        "name": f"restore on {socket.gethostname()}",
        "machine_id": "",
        "boot_id": "",
        "pid": os.getpid(),
    }


async def _last(jetstream: JetStream, key: str) -> Stored | None:
    return await jetstream.last(subjects.STATE_STREAM, subjects.state(key))


class _Leading:
    """The lead of one restore: every batch carries its epoch, so that it writes while it leads."""

    def __init__(
        self,
        jetstream: JetStream,
        *,
        yard: str,
        generation: int,
        epoch: int,
        record: bytes,
        deposed: bool,
    ) -> None:
        self.generation = generation
        self.epoch = epoch
        self.deposed = deposed
        self._jetstream = jetstream
        self._yard = yard
        self._record = record
        self._renew_at = time.monotonic() + RENEW_S

    async def write(self, messages: Sequence[Publication]) -> None:
        """Store all; a batch whose answer was lost is sent again, which changes nothing."""
        for batch in _batches(messages):
            if time.monotonic() >= self._renew_at:
                await self._renew()
            await self._store(batch)

    async def finish(self, note: Publication) -> None:
        """The yard is whole: the next leader may come, and does at once."""
        yard = codec.encode({"v": 1, "id": self._yard, "generation": self.generation})
        batch = [
            note,
            Publication(subjects.state(subjects.YARD_KEY), yard),
            Publication(
                subjects.state(subjects.LEASE_KEY), b"", marker="PURGE", ttl_s=SHORTEST_TTL_S
            ),
        ]
        try:
            await self._store(batch)
        except Stale:
            # Stored before its answer was lost, and a coordinator leads already: or deposed.
            stored = await _last(self._jetstream, subjects.YARD_KEY)
            if stored is None or stored.data != yard:
                raise

    async def _renew(self) -> None:
        lease = Publication(subjects.state(subjects.LEASE_KEY), self._record, ttl_s=LEASE_S)
        await self._store([lease])
        self._renew_at = time.monotonic() + RENEW_S

    async def _store(self, batch: Sequence[Publication]) -> None:
        epoch_subject = subjects.state(subjects.EPOCH_KEY)
        first = batch[0]._replace(expected=self.epoch, expected_on=epoch_subject)
        for tries_left in reversed(range(TRIES)):
            try:
                await self._jetstream.publish_batch([first, *batch[1:]])
                return
            except (Undecided, Unavailable):
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE_S)


def _batches(messages: Sequence[Publication]) -> Iterator[list[Publication]]:
    batch: list[Publication] = []
    size = 0
    for message in messages:
        size += message.size
        if batch and (len(batch) == MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], message.size
        batch.append(message)
    if batch:
        yield batch
