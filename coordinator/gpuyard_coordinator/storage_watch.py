"""What the bus stores and what it does not: alarms, refusals in time, and room made by itself.

The state has a reserve. Above `FULL` of its limit new jobs are refused by name, so that what is
left serves the ends of those that run; above `TRIMMED` the oldest records of ended jobs go before
their time. Submissions are purged early where their stream fills up.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from gpuyard import subjects
from gpuyard.bus import JetStream, StreamRefusal, StreamState
from gpuyard.errors import FieldFault, Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.events import Refused, Submitted
from gpuyard_coordinator.deposed import is_deposed
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.store import Store
from gpuyard_coordinator.submissions import Submission

log = structlog.get_logger()
EVERY_S: Final = 5.0
TRIMMED: Final = 0.8
FULL: Final = 0.9
TRIM_STEPS: Final = 8
"""Parts of the stream's sequences that a trim looks through, oldest first."""
_MIB: Final = 1024 * 1024


@dataclass(slots=True)
class StorageWatch:
    """The storage of one leadership; `run` it beside the leader."""

    jetstream: JetStream
    leadership: Leadership
    store: Store
    outbox: Outbox
    clock: Clock
    _state: StreamState | None = None
    _submit: StreamState | None = None

    async def run(self) -> None:
        """Until cancelled, look how full the streams are and make room."""
        while True:
            try:
                await self.look()
            except (Unavailable, StreamRefusal) as fault:
                log.info("storage not seen", reason=str(fault))
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """One round."""
        self._state = await self.jetstream.state(subjects.STATE_STREAM)
        self._submit = await self.jetstream.state(subjects.SUBMIT_STREAM)
        if self._state.share >= TRIMMED and self.leadership.is_valid(self.clock.monotonic()):
            await self._trim(self._state)

    async def is_blocked(self) -> bool:
        """Whether a commit waits for the bus's storage, so that no turn ends; not the one of a
        leader that was deposed, which ends with its leadership."""
        if self.store.blocked is None:
            return False
        return not await is_deposed(self.leadership, self.store, self.clock)

    def alarms(self) -> list[str]:
        """What somebody must know; empty while all is well."""
        alarms = []
        if self.store.blocked:
            alarms.append(f"the bus does not store commits, nothing starts: {self.store.blocked}")
        elif not self.leadership.is_valid(self.clock.monotonic()):
            alarms.append("the bus does not store the leader's lease, nodes are not answered")
        for stream, reason in sorted(self.outbox.blocked.items()):
            alarms.append(f"{stream} does not take what happened: {reason}")
        for name, state in (
            (subjects.STATE_STREAM, self._state),
            (subjects.SUBMIT_STREAM, self._submit),
        ):
            if state is not None and state.share >= TRIMMED:
                alarms.append(f"{name} {_use(state)}")
        return alarms

    def admit(self, event: Submission) -> Submission:
        """The event, or its refusal where the state must keep its reserve."""
        state = self._state
        if not isinstance(event, Submitted) or state is None or state.share < FULL:
            return event
        fault = FieldFault(
            "",
            "storage_full",
            f"the yard takes no new jobs: its state {_use(state)}; ended jobs make room, or "
            "raise store_max_gib",
        )
        return Refused(
            event.tenant,
            event.user,
            event.id,
            (fault,),
            spec={},
            sequence=event.sequence,
            ref=event.ref,
        )

    async def _trim(self, state: StreamState) -> None:
        """Let the oldest records of ended jobs go; they would have expired some day."""
        span = state.last_sequence - state.first_sequence + 1
        for step in range(1, TRIM_STEPS + 1):
            purged = await self.jetstream.purge(
                subjects.STATE_STREAM,
                below=state.first_sequence + span * step // TRIM_STEPS,
                subject=subjects.state("done.>"),
            )
            if purged:
                log.warning("oldest ended jobs forgotten to make room", count=purged)
                self._state = await self.jetstream.state(subjects.STATE_STREAM)
                if self._state.share < TRIMMED:
                    return


def _use(state: StreamState) -> str:
    used, limit = state.bytes / _MIB, state.max_bytes / _MIB
    return f"uses {used:.0f} of {limit:.0f} MiB"
