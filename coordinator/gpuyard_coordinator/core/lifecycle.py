"""How a job moves: the table of its states, the end of an attempt, and what may follow it.

Rules kept here: a job moves only along `TRANSITIONS`; a grant is held from assignment to the
proven end of the attempt; a new attempt exists only when the one before is over.
"""

from collections.abc import Sequence
from typing import Any, Final

from gpuyard.errors import GpuyardError
from gpuyard.messages import StopOrder
from gpuyard.model.grace import stop_grace_s
from gpuyard.model.reasons import REASONS, EndReason
from gpuyard.model.states import AttemptState, EventKind, JobState
from gpuyard_coordinator.core import (
    arrays,
    dependencies,
    documents,
    fairshare,
    gang_ports,
    gangs,
    ledger,
    retries,
    setaside,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.gangs import Place
from gpuyard_coordinator.core.shapes import without_nodes
from gpuyard_coordinator.core.state import Attempt, Job, Node, Now

S = JobState
_ENDS: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    # An array succeeds as it waits: once all of its tasks have.
    S.QUEUED: frozenset({S.ASSIGNED}) | _ENDS,
    S.ASSIGNED: frozenset({S.PREPARING, S.RUNNING, S.STOPPING, S.QUEUED}) | _ENDS,
    S.PREPARING: frozenset({S.RUNNING, S.STOPPING, S.QUEUED}) | _ENDS,
    S.RUNNING: frozenset({S.STOPPING, S.QUEUED}) | _ENDS,
    S.STOPPING: frozenset({S.QUEUED}) | _ENDS,
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
REPORTED: Final = "its node reported the end"
_CANCELLED_BY: Final = frozenset({EndReason.CANCELLED, EndReason.YARD_STOPPED})


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
        number=job.next_number,
        node=node.name,
        machine_id=node.machine_id,
        boot_id=node.boot_id,
        generation=node.generation,
        gpus=granted,
        assigned_at=now.at,
    )
    begin_attempt(cluster, job, attempt, now=now, effects=effects)
    setaside.take_assignment(node, job, attempt, effects)
    effects.emit(job, EventKind.ASSIGNED, now, data={"gpus": list(uuids)})


def assign_gang(
    cluster: Cluster, job: Job, places: Sequence[Place], *, now: Now, effects: Effects
) -> None:
    """Starts the next attempt of a queued job with a member at each place, and that all at once."""
    ranked, meeting = gang_ports.ranked(cluster, places)
    whole = gangs.attempt_of(cluster, job, ranked, meeting, now)
    begin_attempt(cluster, job, whole, now=now, effects=effects)
    gangs.trim(job)
    for member in whole.members:
        setaside.take_assignment(cluster.nodes[member.node], job, member, effects)
    data = {"gpus": [gpu["uuid"] for gpu in whole.gpus], "nodes": [name for name, _ in ranked]}
    effects.emit(job, EventKind.ASSIGNED, now, data=data)


def begin_attempt(
    cluster: Cluster, job: Job, attempt: Attempt, *, now: Now, effects: Effects
) -> None:
    """A queued job gets its next attempt, which holds its grant from now on."""
    cluster.queue.discard(job)
    cluster.delays.drop(job.key)
    move(job, S.ASSIGNED)
    if job.after:
        dependencies.drop(cluster, job, job.after)
    job.not_before = job.hold = None
    job.attempts.append(attempt)
    arrays.begin(cluster, job, now, effects)
    fairshare.settle(cluster, job.tenant, now)
    for part in attempt.parts:
        node = cluster.nodes[part.node]
        ledger.enter(cluster, node, job, part)
        part.introduced = (cluster.token, node.revision)
        effects.wanted.add(node.name)


def request_stop(
    cluster: Cluster,
    job: Job,
    *,
    reason: EndReason,
    message: str | None,
    now: Now,
    effects: Effects,
    actor: str | None = None,
) -> None:
    """Asks the node of a held attempt to end it; asking again changes nothing.

    A cancel goes over an order that would let another attempt follow.
    """
    attempt = job.last
    if attempt is None or job_was_cancelled(attempt):
        return
    if attempt.stop is not None and reason not in _CANCELLED_BY:
        return
    grace_s = stop_grace_s(job.spec)
    attempt.stop = StopOrder(reason=str(reason), signal="SIGTERM", grace_s=grace_s)
    attempt.stop_requested_at = attempt.stop_requested_at or now.at
    if job.state is not S.STOPPING:  # the node may be stopping it already, for its own reason
        move(job, S.STOPPING)
    for part in attempt.parts:
        _order_stop(cluster, job, part, attempt.stop, now, effects)
    effects.emit(
        job, EventKind.STOPPING, now, message=message, actor=actor, data={"reason": str(reason)}
    )


def _order_stop(
    cluster: Cluster, job: Job, part: Attempt, order: StopOrder, now: Now, effects: Effects
) -> None:
    """Tells a node to end what it has of an attempt; of what is over there, nothing."""
    if ledger.is_held(cluster, job, part):
        part.stop, part.stop_requested_at = order, part.stop_requested_at or now.at
        ledger.wanted_changed(cluster.nodes[part.node])
        cluster.nodes_changed.add(part.node)
        effects.wanted.add(part.node)


def _end_gang(
    cluster: Cluster, job: Job, whole: Attempt, member: Attempt, now: Now, effects: Effects
) -> bool:
    """A member of a gang is over: True once all are. The first that failed ends the others."""
    has_failed = whole.ended_by is not None
    is_over = gangs.take_end(job, member, effects)
    if has_failed or is_over or whole.ended_by is None:
        return is_over
    grace_s = stop_grace_s(job.spec)
    why = str(whole.reason)
    whole.stop = whole.stop or StopOrder(reason=why, signal="SIGTERM", grace_s=grace_s)
    whole.stop_requested_at = whole.stop_requested_at or now.at
    if job.state is not S.STOPPING:
        move(job, S.STOPPING)
        data = {"reason": why, "rank": member.rank, "node": member.node}
        message = f"{whole.message}; the others are ended"
        effects.emit(job, EventKind.STOPPING, now, message=message, data=data)
    order = StopOrder(reason=str(EndReason.CANCELLED), signal="SIGTERM", grace_s=grace_s)
    for part in whole.members:
        if part.stop is None:
            _order_stop(cluster, job, part, order, now, effects)
    return False


def end_attempt(
    cluster: Cluster,
    job: Job,
    attempt: Attempt,
    *,
    reason: EndReason,
    message: str | None,
    now: Now,
    effects: Effects,
    exit_code: int | None = None,
    ended_at: str | None = None,
    proof: str = REPORTED,
) -> None:
    """An attempt that is proven over: frees its grant, then ends the job or queues it again.

    `proof` says in words what proves it. Of a gang it is one member's, and the job goes on with it
    as long as others are left.
    """
    attempt.state, attempt.reason = AttemptState.ENDED, reason
    attempt.exit_code, attempt.message = exit_code, message
    attempt.ended_at = ended_at or now.at
    free(cluster, job, attempt, now, effects)
    setaside.take_end(cluster, job, attempt, now, effects)
    if attempt.rank is None:
        _after_attempt(cluster, job, attempt, attempt, proof, now, effects)
    elif (whole := job.last) is not None and _end_gang(cluster, job, whole, attempt, now, effects):
        _after_attempt(cluster, job, whole, gangs.decisive(whole), proof, now, effects)


def free(cluster: Cluster, job: Job, attempt: Attempt, now: Now, effects: Effects) -> None:
    """The grant of an attempt that is over, or of one member of a gang's, is for others again."""
    fairshare.settle(cluster, job.tenant, now)
    effects.histories.add(job.tenant)
    ledger.take_out(cluster, cluster.nodes[attempt.node], job, attempt)
    effects.wanted.add(attempt.node)


def _after_attempt(
    cluster: Cluster,
    job: Job,
    attempt: Attempt,
    decisive: Attempt,
    proof: str,
    now: Now,
    effects: Effects,
) -> None:
    """Once all of an attempt is over: another one follows, or the job's end. `decisive` is the
    member whose end counts, or the attempt itself."""
    reason = EndReason(attempt.reason or EndReason.RUNTIME_ERROR)
    again = retries.again(cluster, job, decisive)
    if attempt.stop is not None and job_was_cancelled(attempt):
        if again is not None or REASONS[reason].owner in retries.NOT_THE_JOBS:
            # Only the cancel keeps another attempt from following: the attempt keeps its own end.
            reason = EndReason(attempt.stop["reason"])
    elif again is not None:
        attempt.next_allowed_because = f"{proof}; {again.why}"
        _requeue(cluster, job, again, now=now, effects=effects)
        return
    end_job(
        cluster,
        job,
        reason=reason,
        exit_code=attempt.exit_code,
        message=attempt.message,
        now=now,
        effects=effects,
    )


def end_job(
    cluster: Cluster,
    job: Job,
    *,
    reason: EndReason,
    message: str | None,
    now: Now,
    effects: Effects,
    exit_code: int | None = None,
    actor: str | None = None,
) -> None:
    """The one end of a job: its record moves from the live jobs to the kept ones."""
    state, key = final_state(reason, exit_code), job.key
    cluster.queue.discard(job)
    cluster.delays.drop(key)
    cluster.deadlines.drop(key)
    move(job, state)
    job.reason, job.exit_code, job.message = reason, exit_code, message
    job.ended_at = now.at
    dependencies.note_end(cluster, job)
    arrays.note_end(cluster, job, effects)
    data: dict[str, Any] = {"exit_code": exit_code, "owner": str(REASONS[reason].owner)}
    if last := job.last:
        data["log_chunks"] = last.log_chunks
    effects.emit(job, EventKind(state), now, message=message, actor=actor, data=data)
    effects.jobs.discard(key)
    cluster.jobs.pop(key, None)
    packed = documents.encode_job(job)
    effects.keep(key, packed)
    effects.deleted.add(key)
    effects.ended.append((key, len(job.attempts)))
    cluster.recently_done.put(key, packed)


def final_state(reason: EndReason, exit_code: int | None) -> JobState:
    if reason is EndReason.EXITED and exit_code == 0:
        return S.SUCCEEDED
    return S.CANCELLED if reason in _CANCELLED_BY else S.FAILED


def job_was_cancelled(attempt: Attempt) -> bool:
    """True once a cancel was ordered: whatever the attempt ends with, nothing follows it."""
    return attempt.stop is not None and attempt.stop["reason"] in _CANCELLED_BY


def _requeue(
    cluster: Cluster, job: Job, again: retries.Again, *, now: Now, effects: Effects
) -> None:
    ended = job.last
    job.started_at = None
    job.not_charged += again.is_free
    if again.avoid is not None:
        job.shape = without_nodes(job.shape, again.avoid)
    move(job, S.QUEUED)
    waiting.enqueue(cluster, job, now, delay_s=again.delay_s)
    data = {"reason": ended.reason if ended else None, "not_before": job.not_before}
    message = (ended.next_allowed_because if ended else None) or again.why
    if job.not_before is not None:
        message = f"{message}; not before {job.not_before}"
    effects.emit(job, EventKind.REQUEUED, now, message=message, data=data)
