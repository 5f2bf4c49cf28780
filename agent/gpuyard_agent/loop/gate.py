"""Where members of gangs wait, their containers made and not started, until all are let go.

The document says when, so it stands over restarts of either side; whoever comes later passes at
once.
"""

import asyncio
from collections.abc import Callable

from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.stepping import must_wait


class Gate:
    """The gate of one node; `changed` is called when a member begins to wait."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._waiting: dict[AttemptKey, asyncio.Event] = {}

    async def passed(self, attempt: Attempt) -> None:
        """Returns once the attempt may start; at once for one that is no member of a gang."""
        if not must_wait(attempt):
            return
        opened = self._waiting[attempt.key] = asyncio.Event()
        attempt.at_gate = True
        self._changed()
        try:
            await opened.wait()
        finally:
            attempt.at_gate = False
            del self._waiting[attempt.key]

    def look(self, attempt: Attempt) -> None:
        """Something of an attempt may have changed: it is let go where the document says so."""
        opened = self._waiting.get(attempt.key)
        if opened is not None and not must_wait(attempt):
            opened.set()
