"""The steps of an attempt that there are, and what they depend on beside the attempt itself."""

from dataclasses import dataclass

from gpuyard_agent.core.attempt import NEVER, Intent, Result
from gpuyard_agent.core.fence import Fence
from gpuyard_agent.core.policy import PERMISSIVE, NodePolicy


@dataclass(frozen=True, slots=True)
class Here:
    """What a step depends on beside the attempt itself."""

    machine_id: str
    boot_id: str
    wall: float
    """Seconds since 1970 at `now`, for texts only."""
    generation: int = 1
    gpus: frozenset[str] = frozenset()
    listed: bool = True
    """The runtime has told what exists since this agent started."""
    adopting: bool = False
    stopping: bool = False
    """The yard is going down: what runs is stopped, nothing is started."""
    policy: NodePolicy = PERMISSIVE
    renewed_at: float = NEVER
    """When the last beat was sent that the leader answered; on the boot clock."""
    lease_until: float = NEVER
    beat_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Accept:
    """Write down that the attempt is ours to run."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Let the keeper hold the fence; without a keeper the attempt goes on unfenced."""

    fence: Fence


@dataclass(frozen=True, slots=True)
class Inquire:
    """Read whether the keeper has begun to end it; its intent is then ours."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the image present."""


@dataclass(frozen=True, slots=True)
class AbandonPrepare:
    """Cancel the preparation, or the wait for a gang's other members, in flight."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Create and start, or adopt what exists under the same name."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Write the intent down, then send `signal`."""

    signal: str
    intent: Intent


@dataclass(frozen=True, slots=True)
class End:
    """Write the result down; it is reported from now on."""

    result: Result


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the container."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is left of it."""


Step = Accept | Arm | Inquire | Prepare | AbandonPrepare | Launch | Signal | End | Remove | Forget
