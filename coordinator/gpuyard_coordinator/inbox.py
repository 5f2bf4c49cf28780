"""The one queue in front of the loop: whatever arrives waits here for the next turn.

Nothing is dropped: submissions are bounded by the pull loop's window and requests by their callers,
so the queue is as long as the yard is busy. Beats wait beside it, in the `BeatIntake`.
"""

import asyncio
from collections import deque
from typing import Final

SOON_S: Final = 0.05
"""How long news that nobody waits for may lie, so that a turn takes many of them at once."""


class Inbox:
    """Events in order of arrival. `put` may be called from any callback of the same event loop."""

    def __init__(self) -> None:
        self._events: deque[object] = deque()
        self._wake = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: object) -> None:
        self._events.append(event)
        self._wake.set()

    def wake(self) -> None:
        """Let `wait` return once although nothing was put: a timer fired, or a commit ended."""
        self._wake.set()

    def wake_soon(self) -> None:
        """Let `wait` return once after at most `SOON_S`."""
        if self._soon is None and not self._wake.is_set():
            self._soon = asyncio.get_running_loop().call_later(SOON_S, self._wake.set)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return as soon as there is something to drain, after `wake`, or at the timeout."""
        if not self._events and not self._wake.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._be_quiet()

    @property
    def first(self) -> object | None:
        """The oldest event, which stays; None where there is none."""
        return self._events[0] if self._events else None

    def take(self) -> object:
        """Take the oldest event; raises IndexError where there is none."""
        return self._events.popleft()

    def drain(self, limit: int | None = None) -> list[object]:
        """Take the oldest `limit` events, or all. While any are left `wait` returns at once."""
        count = len(self._events) if limit is None else min(limit, len(self._events))
        return [self._events.popleft() for _ in range(count)]

    def clear(self) -> None:
        """Forget everything: a new leader starts from stored state, not from old news."""
        self._events.clear()
        self._be_quiet()

    def _be_quiet(self) -> None:
        self._wake.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
