"""How many log chunks of each running attempt are stored, so that agents know what to send again.

The number comes from the last chunk on the attempt's own subject; it is asked for only where an
agent reports more chunks than were seen stored, at most once at a time per attempt.
"""

import asyncio
from typing import Any

from gpuyard import codec, subjects
from gpuyard.bus import JetStream
from gpuyard.errors import ProtocolError, Unavailable
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Job, Node


class LogLedger:
    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._stored: dict[AttemptRef, dict[str, int]] = {}
        """By node, since each member of a gang has an output of its own."""
        self._asking: dict[tuple[AttemptRef, str], asyncio.Task[None]] = {}

    def stored(self, node: Node) -> dict[str, int]:
        """Chunks stored per attempt of a node, keyed `<tenant>/<job>/<attempt>`; starts asking
        for those that are behind."""
        known: dict[str, int] = {}
        for key, (job, attempt) in node.attempts.items():
            count = self._stored.get(key, {}).get(node.name, 0)
            if attempt.log_chunks > count and (key, node.name) not in self._asking:
                asking = asyncio.create_task(self._ask(key, job, attempt))
                self._asking[key, node.name] = asking
            if count:
                known[f"{key[0]}/{key[1]}/{key[2]}"] = count
        return known

    def forget(self, tenant: str, job: str, attempts: int) -> None:
        """Drops what is known of a job that is over."""
        for number in range(1, attempts + 1):
            self._stored.pop((tenant, job, number), None)

    async def _ask(self, key: AttemptRef, job: Job, attempt: Attempt) -> None:
        subject = subjects.logs(job.tenant, job.id, attempt.number, attempt.node)
        try:
            stored = await self._jetstream.direct_last(subjects.LOGS_STREAM, subject)
            if stored is not None:
                chunk: dict[str, Any] = codec.decode(stored.data, headers=stored.headers)
                self._stored.setdefault(key, {})[attempt.node] = int(chunk["n"]) + 1
        except (Unavailable, ProtocolError, KeyError, TypeError, ValueError):
            # The next beat asks again.
            return
        finally:
            del self._asking[key, attempt.node]
