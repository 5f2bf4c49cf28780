"""The states of jobs, nodes and GPUs: one word each, the same on the wire and in the CLI."""

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
HOLDING_STATES = frozenset(
    {JobState.ASSIGNED, JobState.PREPARING, JobState.RUNNING, JobState.STOPPING}
)
"""States in which an attempt holds its grant."""


class NodeState(StrEnum):
    READY = "ready"
    UNREADY = "unready"
    SUSPECT = "suspect"
    LOST = "lost"


class Scheduling(StrEnum):
    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"


class GpuHealth(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DIRTY = "dirty"
    LOST = "lost"


class AttemptState(StrEnum):
    """What an agent says of one attempt."""

    ACCEPTED = "accepted"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class EventKind(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    QUEUED = "queued"
    VERDICT = "verdict"
    ASSIGNED = "assigned"
    PREPARING = "preparing"
    PULLING = "pulling"
    RUNNING = "running"
    USAGE = "usage"
    WARNING = "warning"
    STOPPING = "stopping"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
