"""Beats on their way to a turn: thousands a second on a large yard, each read once it is taken.

A beat is its node's whole picture: of two that one agent sent only the newer one matters. So a
leader that is behind has at most one of each agent before it, which costs it no reading, and
whatever else arrives on its connection, an answer to its own lease above all, does not wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError, Unavailable
from gpuyard.messages import Beat
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.beat_door import BeatDoor
from gpuyard_coordinator.core import adoption
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import Arrival

MOST_WAITING: Final = 20_000
"""Beats that may wait, those of made-up agents among them; the oldest is let go for another."""
IN_TIME: Final = 0.75
"""Of an interval since the last beat: one that comes sooner than that was sent for its news."""
log = structlog.get_logger()


class BeatIntake:
    """The waiting beats, oldest first. `put` may be called from any callback of the event loop."""

    def __init__(
        self, inbox: Inbox, *, beat_s: float, has_ended: Callable[[JobKey], Awaitable[bool]]
    ) -> None:
        """`beat_s` is how often an agent beats without news; `has_ended` looks up whether a job that
        only its node may know is over."""
        self._inbox = inbox
        self._news_s = beat_s * IN_TIME
        self._has_ended = has_ended
        self._door = BeatDoor()
        self._waiting: dict[tuple[str, str], Message] = {}
        self._heard: dict[str, float] = {}
        """When each subject had its last beat, on the loop's clock."""
        self._looking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message) -> None:
        """Takes the place of the agent's beat that waits still, if one does."""
        # An agent's reply subjects differ in their last token only.
        self._waiting[message.subject, message.reply.rpartition(".")[0]] = message
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        now = asyncio.get_running_loop().time()
        last = self._heard.get(message.subject)
        self._heard[message.subject] = now
        if last is None or now - last < self._news_s:
            self._inbox.wake()
        else:
            self._inbox.wake_soon()

    def take(self) -> NodeBeat | None:
        """The oldest one, read; None for one that is refused, or that comes back through the inbox
        once it is known which of its jobs have ended."""
        message = self._waiting.pop(next(iter(self._waiting)))
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
