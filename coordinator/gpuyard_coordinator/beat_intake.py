"""The leader's beats: taken from their queue, read, and looked up where a node tells of jobs that
only it may know."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError, Unavailable
from gpuyard.messages import Beat
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.beat_door import BeatDoor
from gpuyard_coordinator.beat_queue import BeatQueue
from gpuyard_coordinator.core import adoption
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.inbox import Inbox

MOST_READY: Final = 200
"""Those of two turns: what is read no newer beat of its agent takes the place of."""
_AT_ONCE: Final = 8
"""Less than a millisecond of reading."""
log = structlog.get_logger()


class BeatIntake:
    """What the loop takes its beats from."""

    def __init__(
        self, inbox: Inbox, queue: BeatQueue, *, has_ended: Callable[[JobKey], Awaitable[bool]]
    ) -> None:
        """`has_ended` looks a job up among those that are kept as ended; it may raise
        Unavailable."""
        self._inbox = inbox
        self._queue = queue
        self._has_ended = has_ended
        self._door = BeatDoor()
        self._looking: dict[str, asyncio.Task[None]] = {}
        """By subject: a node's next beat waits until the one that is looked up has come back."""
        self._held: dict[str, Message] = {}
        self._ready: deque[NodeBeat] = deque()
        """Read, or looked up, and not taken yet."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._queue)

    @property
    def arrived(self) -> int:
        return self._queue.arrived

    def take(self) -> NodeBeat | None:
        """The oldest one; None where it is refused, or is looked up first: then a later call gives
        it, before any other of its node."""
        return self._ready.popleft() if self._ready else self._read()

    def read_ahead(self) -> bool:
        """Reads a few for later calls of `take`; False where none waits, or enough are ready."""
        for _ in range(_AT_ONCE):
            if not len(self._queue) or len(self._ready) >= MOST_READY:
                return False
            if (event := self._read()) is not None:
                self._ready.append(event)
        return True

    def _read(self) -> NodeBeat | None:
        message = self._queue.take()
        if message.subject in self._looking:
            self._held[message.subject] = message
            return None
        try:
            beat = self._door.read(message)
        except RemoteProtocolError as error:
            log.warning("beat refused", subject=message.subject, reason=str(error)[:300])
            return None
        keys = adoption.unknown_jobs(beat) if beat["attempts"] else None
        if not keys:
            return NodeBeat(beat, message)
        looking = asyncio.create_task(self._look_up(beat, message, sorted(keys)))
        self._looking[message.subject] = looking
        looking.add_done_callback(lambda _: self._go_on(message.subject))
        return None

    def close(self) -> None:
        """Looks nothing up any more."""
        for looking in self._looking.values():
            looking.cancel()

    def _go_on(self, subject: str) -> None:
        del self._looking[subject]
        if (held := self._held.pop(subject, None)) is not None:
            self._queue.put_back(held)

    async def _look_up(self, beat: Beat, message: Message, keys: list[JobKey]) -> None:
        try:
            found = await asyncio.gather(*map(self._has_ended, keys))
        except Unavailable:
            return  # the node's next beat asks again
        ended = frozenset(key for key, is_over in zip(keys, found, strict=True) if is_over)
        self._ready.append(NodeBeat(beat, message, ended))
        self._inbox.wake()
