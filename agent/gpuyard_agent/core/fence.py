"""Fences: how long an attempt may outlive its node's absence (`on_partition: stop_after`).

Rules of this file:
1. A fence counts from the moment that a beat was sent which the leader answered, so it is over
   here before the leader, who counts from when it came, thinks so.
2. It is told to the keeper anew at most every `REARM_S`, and for short fences every tenth of
   them: an attempt ends up to that much before its fence, never after it.
3. The grace of the end lies inside the fence, and leaves a healthy node its beats.
"""

from dataclasses import dataclass, replace
from typing import Final

from gpuyard.messages import WantedEntry
from gpuyard.model.grace import stop_grace_s
from gpuyard.model.quantities import format_duration

REARM_S: Final = 60.0
_REARM_PART: Final = 10
_SPARED_BEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Fence:
    """By when an attempt is over unless the lease is renewed; `deadline` is on the boot clock."""

    fence_s: float
    grace_s: float
    """How long before the deadline SIGTERM is sent."""
    deadline: float

    @property
    def term_at(self) -> float:
        return self.deadline - self.grace_s

    def renewed(self, at: float) -> "Fence":
        """The fence after the lease was renewed by a beat sent at `at`; it never goes back."""
        return replace(self, deadline=max(self.deadline, at + self.fence_s))

    def is_worth(self, later: "Fence") -> bool:
        """True where `later` is so much later that the keeper should know."""
        step_s = min(REARM_S, self.fence_s / _REARM_PART)
        return later.deadline - self.deadline >= step_s


def fence_of(want: WantedEntry, renewed_at: float, *, beat_s: float) -> Fence | None:
    """The fence that an entry asks for; None where the attempt goes on without its node's lease."""
    fence_s = want.get("fence_s")
    if fence_s is None:
        return None
    spared_s = max(0.0, fence_s - _SPARED_BEATS * beat_s)
    grace_s = min(stop_grace_s(want["spec"]), fence_s / 2, spared_s)
    return Fence(fence_s, grace_s, renewed_at + fence_s)


def absence(fence: Fence, at: float) -> str:
    """Why an attempt was ended at `at`, in words for its owner."""
    away_s = at - fence.deadline + fence.fence_s
    rule = f"on_partition: stop_after {format_duration(fence.fence_s)}"
    return f"the node had no word from the yard for {away_s:.0f} s ({rule})"
