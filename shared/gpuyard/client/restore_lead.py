"""The lead that a restore takes, so that nobody else writes and nobody leads on half of it.

It takes the lease and the epoch as a coordinator does, but does not wait for the lease to be free.
From that batch on the server refuses whatever the leader before still sends, and `leader.yard` says
that a restore is under way, so that nobody leads even if this program dies. The generation goes up
in the same batch: agents that see the new one adopt what runs and stop nothing.
"""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    JetStream,
    Publication,
    Stale,
    Stored,
    Undecided,
)
from gpuyard.client.state_file import Backup
from gpuyard.errors import Unavailable

LEASE_S: Final = 60.0
"""How long others wait should this program die; the epoch keeps them from harm, not the lease."""
RENEW_S: Final = 10.0
TRIES: Final = 50
PAUSE_S: Final = 0.2
SHORTEST_TTL_S: Final = 1.0


async def take_over(
    jetstream: JetStream, backup: Backup, checksum: str, *, is_fresh: bool
) -> "Leading":
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
        return Leading(
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


class Leading:
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
