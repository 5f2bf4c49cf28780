"""Beats as they arrived, thousands a second on a large yard, until somebody reads them.

A beat is its node's whole picture: of two that one agent sent only the newer one matters. So who is
behind has at most one of each agent before it, and what else arrives on the same connection, an
answer about the leader's lease above all, does not wait for the reading of any.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from gpuyard.bus import Message
from gpuyard_coordinator.inbox import Inbox

MOST_WAITING: Final = 20_000
"""Beats that may wait, those of made-up agents among them; the oldest is let go for another."""
IN_TIME: Final = 0.75
"""Of an interval since the last beat: one that comes sooner than that was sent for its news,
and is read at once."""


class BeatQueue:
    """The waiting beats, oldest first. `put` may be called from any callback of the event loop."""

    def __init__(self, inbox: Inbox, *, beat_s: float) -> None:
        """`inbox` is woken by them; `beat_s` is how often an agent beats without news."""
        self.arrived = 0
        """How many ever came."""
        self._inbox = inbox
        self._news_s = beat_s * IN_TIME
        # A plain map looks for its oldest entry past all that were taken from its front.
        self._waiting: OrderedDict[tuple[str, str], Message] = OrderedDict()
        self._heard: dict[str, float] = {}
        """When each subject had its last beat, on the loop's clock."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message) -> None:
        """Takes the place of the agent's beat that waits still, if one does."""
        self.arrived += 1
        now = asyncio.get_running_loop().time()
        last = self._heard.get(message.subject)
        self._heard[message.subject] = now
        self._waiting[_agent(message)] = message
        if len(self._waiting) > MOST_WAITING:
            self.take()
        if last is None or now - last < self._news_s:
            self._inbox.wake()
        else:
            self._inbox.wake_soon()

    def put_back(self, message: Message) -> None:
        """One that could not be read yet; a newer one of its agent that waits keeps its place."""
        self._waiting.setdefault(_agent(message), message)
        self._inbox.wake()

    def take(self) -> Message:
        """The oldest one; KeyError where none waits."""
        return self._waiting.popitem(last=False)[1]


def _agent(message: Message) -> tuple[str, str]:
    """Whose it is: an agent's reply subjects differ in their last token only."""
    return message.subject, message.reply.rpartition(".")[0]
