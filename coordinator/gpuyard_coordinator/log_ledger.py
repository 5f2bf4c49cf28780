"""How many log chunks of each running attempt are stored without a gap, so that agents know what
to send again.

Rules of this file:
1. Chunks are published without an answer, so that any of them may be lost, also one before others
   that are stored. A chunk counts when every number before it has been seen; those behind a hole
   do not, and come again with what fills it.
2. An attempt's own subject is read on from where it was read last, and only where its agent
   reports more chunks than were counted; never twice at a time.
3. An attempt that a leader before this one began is not read from its start: the number of stored
   messages tells whether one is missing.
4. What the stream dropped for its age or its limit is not missing.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuyard import codec, subjects
from gpuyard.bus import JetStream, Page, Stored, StreamRefusal
from gpuyard.errors import ProtocolError, Unavailable
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Job, Node

FEW_CHUNKS: Final = 256
"""Up to here an attempt's chunks are read from the first, which takes one page."""
MAX_READING: Final = 16
"""Pages of at most 4 MiB that are read at a time."""


@dataclass(slots=True)
class _Place:
    """How far an attempt's subject was read, and what follows without a gap up to there."""

    sequence: int = 1
    count: int = 0

    def take(self, page: Page) -> None:
        for stored in page.messages:
            if _number(stored) == self.count:
                self.count += 1
            self.sequence = stored.sequence + 1


class LogLedger:
    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._places: defaultdict[AttemptRef, dict[str, _Place]] = defaultdict(dict)
        """By node, since each member of a gang has an output of its own."""
        self._asking: defaultdict[AttemptRef, dict[str, asyncio.Task[None]]] = defaultdict(dict)
        self._gate = asyncio.Semaphore(MAX_READING)

    def stored(self, node: Node) -> dict[str, int]:
        """Chunks stored without a gap per attempt of a node, keyed `<tenant>/<job>/<attempt>`, as
        far as they were looked at; starts asking for those that are behind."""
        known: dict[str, int] = {}
        for key, (job, attempt) in node.attempts.items():
            place = self._places[key].get(node.name)
            count = place.count if place is not None else 0
            if attempt.log_chunks > count and node.name not in self._asking[key]:
                self._asking[key][node.name] = asyncio.create_task(self._ask(key, job, attempt))
            if place is not None:
                known[f"{key[0]}/{key[1]}/{key[2]}"] = count
        return known

    def forget(self, tenant: str, job: str, attempts: int) -> None:
        """Drops what is known of a job that is over."""
        for number in range(1, attempts + 1):
            key = (tenant, job, number)
            self._places.pop(key, None)
            for asking in self._asking.pop(key, {}).values():
                asking.cancel()

    async def _ask(self, key: AttemptRef, job: Job, attempt: Attempt) -> None:
        subject = subjects.logs(job.tenant, job.id, attempt.number, attempt.node)
        asking = self._asking[key]
        try:
            async with self._gate:
                place = self._places[key].get(attempt.node) or await self._begin(subject, attempt)
                await self._read_on(subject, place)
            self._places[key][attempt.node] = place
        except (Unavailable, StreamRefusal, ProtocolError, KeyError, TypeError, ValueError):
            # The next beat asks again.
            return
        finally:
            asking.pop(attempt.node, None)

    async def _read_on(self, subject: str, place: _Place) -> None:
        is_at_end = False
        while not is_at_end:
            page = await self._jetstream.read_page(
                subjects.LOGS_STREAM,
                subject=subject,
                from_sequence=place.sequence,
                limit=FEW_CHUNKS,
            )
            place.take(page)
            is_at_end = page.next_sequence is None

    async def _begin(self, subject: str, attempt: Attempt) -> _Place:
        """Where to read an attempt from that was not looked at yet."""
        stream = subjects.LOGS_STREAM
        page = await self._jetstream.read_page(stream, subject=subject, limit=1)
        first = _number(page.messages[0]) if page.messages else None
        if first is None:
            return _Place()
        if first > 0 and not await self._has_dropped_since(attempt.assigned_at):
            return _Place()
        if attempt.log_chunks - first > FEW_CHUNKS:
            count, until = await self._jetstream.count(stream, subject)
            last = await self._jetstream.direct_last_until(stream, subject, until)
            number = _number(last) if last is not None else None
            if number is not None and number - first + 1 == count:
                return _Place(sequence=until + 1, count=number + 1)
        return _Place(count=first)

    async def _has_dropped_since(self, at: str) -> bool:
        """Whether the stream begins after that time, so that it may have dropped what came then."""
        oldest = await self._jetstream.first_from(subjects.LOGS_STREAM, 1)
        return oldest is None or oldest.at is None or oldest.at > datetime.fromisoformat(at)


def _number(stored: Stored) -> int | None:
    """A chunk's number; None for what is no chunk."""
    number = codec.peek(stored.data, "n", headers=stored.headers)
    return number if type(number) is int and number >= 0 else None
