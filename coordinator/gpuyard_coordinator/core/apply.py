"""`apply(cluster, event, now, effects)`: the only place where the yard's state changes.

The same events at the same times give the same state and effects: ids, times and tie-breaks come
in with them.
"""

from typing import Any, assert_never

from gpuyard.errors import Conflict, InvalidJob, TooLarge, UnknownThing
from gpuyard.messages import JobDocument
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import EventKind, JobState
from gpuyard_coordinator.core import beats, documents, lifecycle, operations, quota, tenancy
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import (
    Assigned,
    CancelRequested,
    Event,
    NodeBeat,
    NodeOrder,
    Refused,
    StillQueued,
    Submitted,
    TenantApplied,
    TenantDeleted,
    Tick,
)
from gpuyard_coordinator.core.state import Job, Now, Shape


def apply(cluster: Cluster, event: Event, now: Now, effects: Effects) -> None:
    """Changes `cluster` by one event and adds what is to be stored, sent and answered.

    Raises InvalidTransition on a broken invariant; the cluster must then be rebuilt.
    """
    match event:
        case Submitted():
            _submit(cluster, event, now, effects)
        case Refused():
            _refuse(cluster, event, now, effects)
        case CancelRequested():
            _cancel(cluster, event, now, effects)
        case NodeBeat():
            _take_beat(cluster, event, now, effects)
        case NodeOrder():
            operations.apply_order(cluster, event, now, effects)
        case TenantApplied() | TenantDeleted():
            tenancy.apply_tenant(cluster, event, now, effects)
        case Assigned():
            job, node = cluster.jobs[event.tenant, event.job], cluster.nodes[event.node]
            lifecycle.assign(cluster, job, node, event.gpus, now=now, effects=effects)
        case StillQueued():
            job = cluster.jobs[event.tenant, event.job]
            data = {"code": event.code}
            effects.emit(job, EventKind.QUEUED, now, message=event.message, data=data)
        case Tick():
            beats.judge_lateness(cluster, now, effects)
            operations.judge_drains(cluster, now, effects)
        case _:
            assert_never(event)


def _take_beat(cluster: Cluster, event: NodeBeat, now: Now, effects: Effects) -> None:
    name = event.beat["node"]
    known = cluster.nodes.get(name)
    instance = known.instance if known is not None else None
    beats.apply_beat(cluster, event, now, effects)
    effects.forgotten.discard(name)  # it may have joined again in this turn
    if cluster.nodes[name].instance != instance:
        # Another agent has to prove itself first: the placer must not think the node as it was.
        cluster.nodes_changed.add(name)


def _done(cluster: Cluster, tenant: str, id: str, known: JobDocument | None) -> JobDocument | None:
    return cluster.recently_done.get((tenant, id), known)


def _submit(cluster: Cluster, event: Submitted, now: Now, effects: Effects) -> None:
    key = (event.tenant, event.id)
    live = cluster.jobs.get(key)
    done = _done(cluster, event.tenant, event.id, event.known)
    if live is not None or (done is not None and not _may_be_replaced(done)):
        kept = live.spec_sha256 if live else None, done["spec_sha256"] if done else None
        _answer_repeat(event, same=event.spec_sha256 in kept, now=now, effects=effects)
        return
    document = cluster.tenants.get(event.tenant)
    spec, notes = quota.with_defaults(event.spec, document)
    shape = documents.shape_of(spec, event.tenant, document)
    queued = cluster.queue.waiting[event.tenant]
    if refusal := quota.refusal(event.tenant, document, spec, shape, queued):
        reason, fault = refusal
        refused = Refused(
            event.tenant, event.user, event.id, (fault,), event.spec, event.sequence, ref=event.ref
        )
        _refuse(cluster, refused, now, effects, reason=reason)
        return
    job = _new_job(cluster, event, spec, shape, now)
    cluster.jobs[key] = job
    cluster.recently_done.pop(key, None)
    effects.done.pop(key, None)
    message = "; ".join(note for note in (event.note, *notes) if note) or None
    effects.emit(job, EventKind.ACCEPTED, now, message=message, actor=event.user)
    effects.outcomes.append(Outcome(event.ref, key=key))
    if done is not None and done["state"] == JobState.CANCELLED:
        lifecycle.end_job(
            cluster,
            job,
            reason=EndReason.CANCELLED,
            exit_code=None,
            message=done["message"] or "cancelled before it was submitted",
            now=now,
            effects=effects,
        )
        return
    cluster.queue.add(job)


def _may_be_replaced(done: JobDocument) -> bool:
    """A record of a refusal, or of a cancel that came before its job, stands for no job yet."""
    return not done["spec_sha256"]


def _new_job(
    cluster: Cluster, event: Submitted, spec: dict[str, Any], shape: Shape, now: Now
) -> Job:
    sequence = cluster.next_submit_seq
    cluster.next_submit_seq += 1
    return Job(
        tenant=event.tenant,
        id=event.id,
        user=event.user,
        user_verified=event.user_verified,
        spec=spec,
        spec_sha256=event.spec_sha256,
        shape=shape,
        priority=int(spec.get("priority", 50)),
        submitted_at=now.at,
        submit_seq=sequence,
    )


def _answer_repeat(event: Submitted, *, same: bool, now: Now, effects: Effects) -> None:
    key = (event.tenant, event.id)
    if same:
        effects.outcomes.append(Outcome(event.ref, key=key))
        return
    error = Conflict(f"job {event.id} exists already with another spec", field="id")
    fault = {"field": "id", "code": "conflict", "message": str(error), "did_you_mean": None}
    effects.reject(event.tenant, event.id, event.sequence, [fault], now, actor=event.user)
    effects.outcomes.append(Outcome(event.ref, error=error))


def _refuse(
    cluster: Cluster,
    event: Refused,
    now: Now,
    effects: Effects,
    *,
    reason: EndReason = EndReason.INVALID,
) -> None:
    key = (event.tenant, event.id)
    done = _done(cluster, event.tenant, event.id, event.known)
    faults = [fault.as_dict() for fault in event.faults]
    effects.reject(
        event.tenant, event.id, event.sequence, faults, now, actor=event.user, reason=reason
    )
    is_large = any(fault.code == TooLarge.code for fault in event.faults)
    error = InvalidJob(event.faults, code=TooLarge.code if is_large else None)
    effects.outcomes.append(Outcome(event.ref, error=error))
    if key in cluster.jobs or (done is not None and not _may_be_replaced(done)):
        return
    record = _record(event.tenant, event.id, event.user, JobState.FAILED, now)
    record["reason"] = reason
    record["message"] = "; ".join(str(fault) for fault in event.faults)
    record["spec"] = event.spec
    effects.done[key] = record
    cluster.remember_done(record)


def _cancel(cluster: Cluster, event: CancelRequested, now: Now, effects: Effects) -> None:
    key = (event.tenant, event.id)
    message = event.message or f"cancelled by {event.actor}"
    job = cluster.jobs.get(key)
    if job is None:
        if _done(cluster, event.tenant, event.id, event.known) is None:
            _cancel_unknown(cluster, event, message, now, effects)
            return
    elif job.state is JobState.QUEUED:
        lifecycle.end_job(
            cluster,
            job,
            reason=EndReason.CANCELLED,
            exit_code=None,
            message=message,
            actor=event.actor,
            now=now,
            effects=effects,
        )
    else:
        lifecycle.request_stop(
            cluster,
            job,
            reason=EndReason.CANCELLED,
            actor=event.actor,
            message=message,
            now=now,
            effects=effects,
        )
    effects.outcomes.append(Outcome(event.ref, key=key))


def _cancel_unknown(
    cluster: Cluster, event: CancelRequested, message: str, now: Now, effects: Effects
) -> None:
    """Keeps a record that the submission, should it still come, will meet."""
    record = _record(event.tenant, event.id, event.actor, JobState.CANCELLED, now)
    record["reason"] = EndReason.CANCELLED
    record["message"] = f"{message}, before it was submitted"
    effects.done[event.tenant, event.id] = record
    cluster.remember_done(record)
    error = UnknownThing(f"no job {event.id}: should it still come, it will not run")
    effects.outcomes.append(Outcome(event.ref, error=error))


def _record(tenant: str, id: str, user: str, state: JobState, now: Now) -> JobDocument:
    """The record of something that never became a job."""
    job = Job(
        tenant=tenant,
        id=id,
        user=user,
        user_verified=False,
        spec={},
        spec_sha256="",
        shape=Shape(),
        priority=50,
        submitted_at=now.at,
        submit_seq=0,
        state=state,
        ended_at=now.at,
    )
    return documents.job_document(job)
