"""How a job moves: the table of its states, the end of an attempt, and what may follow it.

Rules kept here: a job moves only along `TRANSITIONS`; a grant is held from assignment to the
proven end of the attempt; a new attempt exists only when the one before is over.
"""

from dataclasses import replace
from typing import Any, Final

from gpuyard.errors import GpuyardError
from gpuyard.messages import StopOrder
from gpuyard.model.reasons import REASONS, EndReason, Owner, Retry
from gpuyard.model.states import AttemptState, EventKind, JobState
from gpuyard_coordinator.core import documents, filters, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Attempt, Job, Node, Now, Shape

S = JobState
_ENDS: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    S.QUEUED: frozenset({S.ASSIGNED, S.FAILED, S.CANCELLED}),
    S.ASSIGNED: frozenset({S.PREPARING, S.RUNNING, S.STOPPING, S.QUEUED}) | _ENDS,
    S.PREPARING: frozenset({S.RUNNING, S.STOPPING, S.QUEUED}) | _ENDS,
    S.RUNNING: frozenset({S.STOPPING, S.QUEUED}) | _ENDS,
    S.STOPPING: frozenset({S.QUEUED}) | _ENDS,
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
FREE_RETRIES: Final = 3
"""Other nodes tried for a job whose container never started through no fault of its own."""
_ALWAYS_AGAIN: Final = frozenset({EndReason.PREEMPTED, EndReason.NODE_DRAINED})
_CANCELLED_BY: Final = frozenset({EndReason.CANCELLED, EndReason.YARD_STOPPED})
_NOT_THE_JOBS: Final = frozenset({Owner.PLATFORM, Owner.HARDWARE})


class InvalidTransition(GpuyardError):
    """A step that the table does not list; carries the job's story. A defect, never input."""

    def __init__(self, job: Job, to: JobState) -> None:
        story = [(a.number, a.node, str(a.state), a.reason) for a in job.attempts]
        super().__init__(f"{job.tenant}/{job.id}: {job.state} -> {to}; attempts {story}")


def move(job: Job, to: JobState) -> None:
    if to not in TRANSITIONS[job.state]:
        raise InvalidTransition(job, to)
    job.state = to


def assign(
    cluster: Cluster, job: Job, node: Node, uuids: tuple[str, ...], *, now: Now, effects: Effects
) -> None:
    """Starts the next attempt of a queued job on a node; the grant is booked at once."""
    granted = [
        size for uuid in uuids if (size := ledger.grant(node.gpus[uuid], job.shape)) is not None
    ]
    attempt = Attempt(
        number=len(job.attempts) + 1,
        node=node.name,
        machine_id=node.machine_id,
        boot_id=node.boot_id,
        generation=node.generation,
        gpus=granted,
        assigned_at=now.at,
    )
    cluster.queue.discard(job)
    move(job, S.ASSIGNED)
    job.attempts.append(attempt)
    ledger.hold(cluster, node, job, attempt)
    attempt.introduced = (cluster.token, node.revision)
    effects.wanted.add(node.name)
    effects.emit(job, EventKind.ASSIGNED, now, data={"gpus": list(uuids)})


def request_stop(
    cluster: Cluster,
    job: Job,
    *,
    reason: EndReason,
    actor: str | None,
    message: str | None,
    now: Now,
    effects: Effects,
) -> None:
    """Asks the node of a held attempt to end it; asking again changes nothing.

    A cancel goes over an order that would let another attempt follow.
    """
    attempt = job.last
    if attempt is None or job_was_cancelled(attempt):
        return
    if attempt.stop is not None and reason not in _CANCELLED_BY:
        return
    grace_s = documents.grace_s(job.spec)
    attempt.stop = StopOrder(reason=str(reason), signal="SIGTERM", grace_s=grace_s)
    attempt.stop_requested_at = attempt.stop_requested_at or now.at
    if job.state is not S.STOPPING:  # the node may be stopping it already, for its own reason
        move(job, S.STOPPING)
    ledger.wanted_changed(cluster.nodes[attempt.node])
    effects.wanted.add(attempt.node)
    effects.emit(
        job, EventKind.STOPPING, now, message=message, actor=actor, data={"reason": str(reason)}
    )


def end_attempt(
    cluster: Cluster,
    job: Job,
    attempt: Attempt,
    *,
    reason: EndReason,
    exit_code: int | None,
    message: str | None,
    now: Now,
    effects: Effects,
    ended_at: str | None = None,
    is_stale: bool = False,
) -> None:
    """An attempt that is proven over: frees its grant, then ends the job or queues it again.

    `is_stale` marks a refusal of an outdated inventory: tried again at no charge.
    """
    attempt.state, attempt.reason = AttemptState.ENDED, reason
    attempt.exit_code, attempt.message = exit_code, message
    attempt.ended_at = ended_at or now.at
    node = cluster.nodes[attempt.node]
    ledger.release(cluster, node, job, attempt)
    effects.wanted.add(node.name)
    why = _why_again(cluster, job, attempt, is_stale)
    if attempt.stop is not None and job_was_cancelled(attempt):
        if why is not None or REASONS[reason].owner in _NOT_THE_JOBS:
            # Only the cancel keeps another attempt from following: the attempt keeps its own end.
            reason = EndReason(attempt.stop["reason"])
    elif why is not None:
        attempt.next_allowed_because = why
        if why.endswith(documents.NO_FAULT_OF_THE_JOB):
            job.not_charged += 1
            job.shape = without_node(job.shape, attempt.node)
        _requeue(cluster, job, why, now=now, effects=effects)
        return
    end_job(
        cluster, job, reason=reason, exit_code=exit_code, message=message, now=now, effects=effects
    )


def end_job(
    cluster: Cluster,
    job: Job,
    *,
    reason: EndReason,
    exit_code: int | None,
    message: str | None,
    now: Now,
    effects: Effects,
    actor: str | None = None,
) -> None:
    """The one end of a job: its record moves from the live jobs to the kept ones."""
    state = final_state(reason, exit_code)
    cluster.queue.discard(job)
    move(job, state)
    job.reason, job.exit_code, job.message = reason, exit_code, message
    job.ended_at = now.at
    data: dict[str, Any] = {"exit_code": exit_code, "owner": str(REASONS[reason].owner)}
    if last := job.last:
        data["log_chunks"] = last.log_chunks
    effects.emit(job, EventKind(state), now, message=message, actor=actor, data=data)
    effects.jobs.discard(job.key)
    cluster.jobs.pop(job.key, None)
    document = documents.job_document(job)
    effects.done[job.key] = document
    effects.deleted.add(job.key)
    effects.ended.append(job.key)
    cluster.remember_done(document)


def final_state(reason: EndReason, exit_code: int | None) -> JobState:
    if reason is EndReason.EXITED and exit_code == 0:
        return S.SUCCEEDED
    return S.CANCELLED if reason in _CANCELLED_BY else S.FAILED


def job_was_cancelled(attempt: Attempt) -> bool:
    """True once a cancel was ordered: whatever the attempt ends with, nothing follows it."""
    return attempt.stop is not None and attempt.stop["reason"] in _CANCELLED_BY


def _why_again(cluster: Cluster, job: Job, attempt: Attempt, is_stale: bool) -> str | None:
    """Why another attempt is allowed, in words for the job's history; None ends the job."""
    reason = EndReason(attempt.reason or EndReason.RUNTIME_ERROR)
    row = REASONS[reason]
    if reason is EndReason.EXITED and attempt.exit_code == 0:
        return None
    if is_stale:
        return "the node's inventory had changed; not charged"
    if reason in _ALWAYS_AGAIN:
        return f"{reason}: {row.text}"
    if attempt.started_at is None:
        is_theirs = row.owner in _NOT_THE_JOBS
        if not (is_theirs and row.retry is Retry.ELSEWHERE and job.not_charged < FREE_RETRIES):
            return None
        elsewhere = without_node(job.shape, attempt.node)
        if not filters.could_ever_run(cluster, elsewhere, even_lost=False):
            return None
        return f"{reason} {documents.NO_FAULT_OF_THE_JOB}"
    return _why_retry(job, attempt, reason)


def _why_retry(job: Job, attempt: Attempt, reason: EndReason) -> str | None:
    """The job's own `retries`, for attempts that ran."""
    retries = job.spec.get("retries") or {}
    ran = [a for a in job.attempts if a.started_at is not None and a.reason not in _ALWAYS_AGAIN]
    used = len(ran) - 1
    row = REASONS[reason]
    if row.retry is Retry.NEVER or used >= int(retries.get("max", 0)):
        return None
    when = set(retries.get("when") or ())
    names = {str(reason), str(row.owner)}
    if reason is EndReason.EXITED:
        names = {str(reason), f"exit:{attempt.exit_code}", str(row.owner)}
    if not names & when:
        return None
    return f"retry {used + 1} of {retries['max']} after {reason}"


def _requeue(cluster: Cluster, job: Job, why: str, *, now: Now, effects: Effects) -> None:
    ended = job.last
    job.started_at = None
    move(job, S.QUEUED)
    cluster.queue.add(job)
    data = {"reason": ended.reason if ended else None}
    effects.emit(job, EventKind.REQUEUED, now, message=why, data=data)


def without_node(shape: Shape, node: str) -> Shape:
    """The same request, kept off a node that failed it."""
    return replace(shape, excluded=shape.excluded | {node})
