"""What an agent remembers of one attempt.

What is durable is kept by the records of `memory`; what a restart may forget (what the engine
showed last, what is in flight) is marked volatile. Times called `at` are seconds on the boot clock
and mean nothing in another boot.
"""

from dataclasses import dataclass, field
from typing import Final

from gpuyard.messages import AttemptUsage, GrantedGpu, PullProgress, WantedEntry
from gpuyard_agent.core.containers import Exit, Seen
from gpuyard_agent.core.fence import Fence
from gpuyard_agent.core.launch import AttemptKey
from gpuyard_agent.core.usage import Measured

NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class Started:
    """A container that was seen to have been started."""

    container_id: str | None
    image_digest: str | None
    started_at: str
    at: float
    boot_id: str


@dataclass(frozen=True, slots=True)
class Intent:
    """Our will to end an attempt, written down before the first signal is sent."""

    reason: str
    signal: str
    grace_s: float
    at: float
    wall: str
    """The wall-clock time of `at`, to compare with the engine's own time of an exit."""
    message: str | None = None
    killed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended, as reported until the coordinator has committed it."""

    reason: str
    exit_code: int | None
    message: str | None
    ended_at: str
    usage: AttemptUsage | None = None


@dataclass(frozen=True, slots=True)
class LogMark:
    """Published so far: chunks, and the bytes of each stream that they and their cuts cover."""

    chunks: int = 0
    stdout: int = 0
    stderr: int = 0
    published: int = 0
    """Bytes that went out; the job's log limit counts these."""
    done: bool = False
    """The end marker went out."""


@dataclass(slots=True)
class Attempt:
    """One attempt on this node, from the moment that it was accepted or seen."""

    key: AttemptKey
    # Durable.
    entry: WantedEntry | None = None
    """What the applied document says of it; None where no document names it (any more)."""
    former: WantedEntry | None = None
    """What the last document before adopting began said of it, until a document names it again."""
    accepted: bool = False
    launched: str | None = None
    """The boot in which a start was begun; set before the engine is asked, so never in doubt."""
    started: Started | None = None
    intent: Intent | None = None
    result: Result | None = None
    logs: LogMark = field(default_factory=LogMark)
    gpus: tuple[GrantedGpu, ...] = ()
    measured: Measured = field(default_factory=Measured)
    """What its GPUs were seen to do; written down now and then, so a restart loses little."""
    # Volatile.
    container: Seen | None = None
    exit: Exit | None = None
    confirmed_at: float = NEVER
    """When this process last learned that the container exists."""
    absences: int = 0
    """Listings in a row, all begun after the start was confirmed, that lacked the container."""
    busy: str | None = None
    """The kind of the step in flight."""
    image_missing: bool = False
    prepared: bool = False
    image_vanished: bool = False
    """It was made present and was gone at the create; that is mended once."""
    at_gate: bool = False
    """A member of a gang whose container is made, and that waits for the others in mid-launch."""
    pull: PullProgress | None = None
    retry_at: float = NEVER
    failing_since: float | None = None
    failure: str | None = None
    logs_settled: bool = True
    """False while an end waits for its last log chunk, for a bounded time."""
    confirmations: int = 0
    """Replies in a row that left it out of the document although our beat reported it."""
    rank: int = 0
    """How far its reported state has come; it never goes back."""
    fence: Fence | None = None
    """By when it is over without its node's lease; the keeper's file outlives a restart."""
    is_held: bool = False
    """The keeper has the fence on its disk, and finds the processes where there are any."""
    is_inquired: bool = False
    """The keeper's file was read since the fence was over."""
