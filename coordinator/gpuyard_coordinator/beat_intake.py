"""The leader's beats: taken from their queue, read, and looked up where a node tells of jobs that
only it may know."""

import asyncio
from collections.abc import Awaitable, Callable

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
from gpuyard_coordinator.loop import Arrival

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
        self._looking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def take(self) -> NodeBeat | None:
        """The oldest one; None where it is refused, or comes back through the inbox once it is
        known which of its jobs have ended."""
        message = self._queue.take()
        try:
            beat = self._door.read(message)
        except RemoteProtocolError as error:
            log.warning("beat refused", subject=message.subject, reason=str(error)[:300])
            return None
        keys = adoption.unknown_jobs(beat) if beat["attempts"] else None
        if not keys:
            return NodeBeat(beat, message)
        looking = asyncio.create_task(self._look_up(beat, message, sorted(keys)))
        self._looking.add(looking)
        looking.add_done_callback(self._looking.discard)
        return None

    def close(self) -> None:
        """Looks nothing up any more."""
        for looking in self._looking:
            looking.cancel()

    async def _look_up(self, beat: Beat, message: Message, keys: list[JobKey]) -> None:
        try:
            found = await asyncio.gather(*map(self._has_ended, keys))
        except Unavailable:
            return  # the node's next beat asks again
        ended = frozenset(key for key, is_over in zip(keys, found, strict=True) if is_over)
        self._inbox.put(Arrival(NodeBeat(beat, message, ended)))
