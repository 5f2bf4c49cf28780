"""The state's bucket as tests look at it: who leads, what is stored, and answers that get lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.bus import Bus, PubAck, Publication, read_last_values
from gpuyard.messages import Token
from gpuyard_coordinator.store.records import read_commit_record
from gpuyard_coordinator.store.replay import replay


async def lead(bus: Bus) -> Token:
    """A new leadership, by what makes one: the epoch's sequence."""
    ack = await bus.jetstream.publish(Publication(subjects.state(subjects.EPOCH_KEY), b"x"))
    return (1, ack.sequence)


async def stored_keys(bus: Bus) -> dict[str, bytes]:
    """Every key that the bucket has, log records included, without the leader's own."""
    found = await read_last_values(bus.jetstream, subjects.STATE_STREAM, [subjects.STATE_ALL])
    skip = len(subjects.state(""))
    keys = {stored.subject[skip:]: stored.data for stored in found}
    return {key: data for key, data in keys.items() if not key.startswith("leader.")}


async def wal_keys(bus: Bus) -> list[str]:
    return sorted(key for key in await stored_keys(bus) if key.startswith("wal."))


async def committed(bus: Bus) -> dict[str, bytes]:
    """What the keys say once every log record that no checkpoint has moved is replayed, in the
    order of their numbers."""
    keys = await stored_keys(bus)
    names = [key for key in keys if key.startswith("wal.")]
    logs = {subjects.parse_wal(name): keys.pop(name) for name in names}
    covered = await _covered(bus)
    for number, data in sorted(logs.items()):
        if number <= covered:
            continue
        for write in codec.decode(data)["writes"]:
            keys.pop(write["key"], None)
            if write["data"] is not None:
                keys[write["key"]] = write["data"]
    return keys


async def _covered(bus: Bus) -> tuple[int, int]:
    record = await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.COMMIT_KEY))
    epoch, number = codec.decode(record.data)["covered"] if record else (0, 0)
    return epoch, number


async def as_read(bus: Bus) -> dict[str, bytes]:
    """As `committed`, but by what the coordinator itself replays with."""
    jetstream = bus.jetstream
    record = await jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.COMMIT_KEY))
    logs = await read_last_values(jetstream, subjects.STATE_STREAM, [subjects.state("wal.>")])
    keys = {key: d for key, d in (await stored_keys(bus)).items() if not key.startswith("wal.")}
    for write in replay(logs, read_commit_record(record)).writes():
        keys.pop(write.key, None)
        if write.data is not None:
            keys[write.key] = write.data
    return keys


class Network:
    """What reaches the server from a connection, and which answers get back. It counts only what
    commits: log records and batches."""

    def __init__(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost_answers: list[Exception] = []
        """The next ones are stored and answered by these."""
        self.lost_messages: list[Exception] = []
        """The next ones are not stored and answered by these."""
        self.records: list[Publication] = []
        self.batches: list[Sequence[Publication]] = []
        self._publish = bus.jetstream.publish
        self._publish_batch = bus.jetstream.publish_batch
        monkeypatch.setattr(bus.jetstream, "publish", self._one)
        monkeypatch.setattr(bus.jetstream, "publish_batch", self._many)

    async def repeat(self, what: Publication | Sequence[Publication]) -> PubAck:
        """Deliver a copy of what was sent before."""
        if isinstance(what, Publication):
            return await self._publish(what)
        return await self._publish_batch(what)

    async def _one(self, publication: Publication, **options: Any) -> PubAck:
        if not publication.subject.startswith(subjects.state("wal.")):
            return await self._publish(publication, **options)
        self.records.append(publication)
        self._lose_message()
        return self._lose_answer(await self._publish(publication, **options))

    async def _many(self, publications: Sequence[Publication], **options: Any) -> PubAck:
        self.batches.append(publications)
        self._lose_message()
        return self._lose_answer(await self._publish_batch(publications, **options))

    def _lose_message(self) -> None:
        if self.lost_messages:
            raise self.lost_messages.pop(0)

    def _lose_answer(self, ack: PubAck) -> PubAck:
        if self.lost_answers:
            raise self.lost_answers.pop(0)
        return ack
