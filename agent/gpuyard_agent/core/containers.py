"""What a runtime shows of a container: the facts that the core decides on."""

from dataclasses import dataclass
from enum import StrEnum

from gpuyard_agent.core.launch import AttemptKey


class Status(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended, as far as the runtime can tell; the agent's core judges it."""

    code: int | None
    """None where nobody saw the code."""
    ended_at: str
    out_of_memory: bool = False
    """The engine counted a memory kill in this container."""
    engine_restarted: bool = False
    """The engine went away while it ran."""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One container of this yard and node, as the runtime shows it now."""

    key: AttemptKey
    status: Status
    container_id: str | None
    image_digest: str | None
    started_at: str | None
    spec_sha256: str
    exit: Exit | None
    pids: tuple[int, ...] = ()
    """Host pids that belong to it where the runtime knows them without asking (process)."""
    note: str | None = None
    """What its owner should know of it while it runs, in words."""
