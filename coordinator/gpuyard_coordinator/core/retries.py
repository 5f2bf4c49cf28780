"""Whether another attempt follows one that is over: why, when, and which nodes it keeps off."""

import hashlib
from typing import Any, Final, NamedTuple

from gpuyard.messages import POLICY_REFUSED, RUNTIME_REFUSED, STALE_INVENTORY
from gpuyard.model.job import DEFAULT_BACKOFF_S, LONGEST_BACKOFF_S
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.reasons import REASONS, EndReason, Owner, Retry
from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.shapes import Shape, without_nodes
from gpuyard_coordinator.core.state import Attempt, Job

FREE_RETRIES: Final = 3
"""Other nodes tried for a job whose container never started through no fault of its own."""
ALWAYS_AGAIN: Final = frozenset({EndReason.PREEMPTED, EndReason.NODE_DRAINED})
NOT_THE_JOBS: Final = frozenset({Owner.PLATFORM, Owner.HARDWARE})
LONGEST_WAIT_S: Final = 86_400.0
"""The longest backoff that a spec may ask for."""
_JITTER: Final = 0.25
"""Jobs that failed together come back spread over this part of their delay."""


class Again(NamedTuple):
    """Another attempt is allowed: `why`, in words for the job's history."""

    why: str
    delay_s: float = 0.0
    is_free: bool = False
    """The attempt cost the job nothing."""
    avoid: frozenset[str] | None = None
    """Nodes that the job keeps off from now on; None: as before."""


def again(cluster: Cluster, job: Job, attempt: Attempt) -> Again | None:
    """What follows an attempt that is over; None ends the job."""
    reason = EndReason(attempt.reason or EndReason.RUNTIME_ERROR)
    if reason is EndReason.EXITED and attempt.exit_code == 0:
        return None
    if is_stale(attempt):
        return Again("the node's inventory had changed; not charged")
    if reason in ALWAYS_AGAIN:
        return Again(f"{reason}: {REASONS[reason].text}")
    if attempt.started_at is None:
        return _elsewhere(cluster, job, attempt, reason)
    return _retry(cluster, job, attempt, reason)


def is_stale(attempt: Attempt) -> bool:
    """True for an end that an outdated inventory led to: it says nothing of job or node."""
    told = attempt.message or ""
    is_refused = attempt.reason == EndReason.RUNTIME_ERROR and attempt.started_at is None
    return is_refused and told.startswith(STALE_INVENTORY)


def _elsewhere(cluster: Cluster, job: Job, attempt: Attempt, reason: EndReason) -> Again | None:
    """For an attempt that never started: free, at once, on a node that has not failed it."""
    row = REASONS[reason]
    is_theirs = row.owner in NOT_THE_JOBS and row.retry is Retry.ELSEWHERE
    told = attempt.message or ""
    refusing = _refusing(told) if reason is EndReason.INVALID else None
    if not (is_theirs or refusing) or job.not_charged >= FREE_RETRIES:
        return None
    avoid = job.shape.excluded | {attempt.node}
    if not _could_run(cluster, job.shape, avoid):
        return None
    if refusing:
        why = (
            f"the {refusing} of {attempt.node} refuses it, that of another node may not; "
            "not charged"
        )
    else:
        why = f"{reason} before the container started, no fault of the job; not charged"
    return Again(why, is_free=True, avoid=avoid)


def _refusing(told: str) -> str | None:
    """What of its node refused a start, where that of another may not."""
    if told.startswith(POLICY_REFUSED):
        return "policy"
    return "runtime" if told.startswith(RUNTIME_REFUSED) else None


def _retry(cluster: Cluster, job: Job, attempt: Attempt, reason: EndReason) -> Again | None:
    """The job's own `retries`, for attempts that ran."""
    retries = job.spec.get("retries") or {}
    ran = [a for a in job.attempts if a.started_at is not None and a.reason not in ALWAYS_AGAIN]
    used = len(ran) - 1
    row = REASONS[reason]
    if row.retry is Retry.NEVER or used >= int(retries.get("max", 0)):
        return None
    names = {str(reason), str(row.owner)}
    if reason is EndReason.EXITED:
        names.add(f"exit:{attempt.exit_code}")
    if not names & set(retries.get("when") or ()):
        return None
    return Again(
        f"retry {used + 1} of {retries['max']} after {reason}",
        delay_s=backoff_s(job, retries, used),
        avoid=_avoid(cluster, job, attempt) if row.owner in NOT_THE_JOBS else None,
    )


def backoff_s(job: Job, retries: dict[str, Any], used: int) -> float:
    """The wait before the next retry of a job that has had `used`: doubled each time, and the same
    whoever works it out."""
    text = retries.get("backoff")
    first = DEFAULT_BACKOFF_S if text is None else parse_duration_s(text)
    whole = min(first * 2.0**used, max(first, LONGEST_BACKOFF_S))
    digest = hashlib.sha256(f"{job.tenant}/{job.id}/{used}".encode()).digest()
    return whole * (1 - _JITTER * digest[0] / 256)


def _avoid(cluster: Cluster, job: Job, attempt: Attempt) -> frozenset[str]:
    """Every node that failed the job, or the last one, or none: as far as others are left."""
    for avoid in (job.shape.excluded | {attempt.node}, frozenset({attempt.node})):
        if _could_run(cluster, job.shape, avoid):
            return avoid
    return frozenset()


def has_other_nodes(cluster: Cluster, shape: Shape) -> bool:
    """True if a job that keeps off some nodes has others left that are not lost."""
    return not shape.excluded or _could_run(cluster, shape, shape.excluded)


def _could_run(cluster: Cluster, shape: Shape, avoid: frozenset[str]) -> bool:
    return filters.could_ever_run(cluster, without_nodes(shape, avoid), even_lost=False)
