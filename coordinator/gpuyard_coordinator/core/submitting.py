"""A job comes in, or is taken back: accepted, refused, cancelled.

An id stands for one job of its tenant. So the same submission again changes nothing, another one is
refused, and a cancel that comes before its job leaves a record for the submission to meet.
"""

import sys
from collections.abc import Sequence
from typing import Any

from gpuyard.errors import Conflict, FieldFault, InvalidJob, TooLarge, UnknownThing
from gpuyard.messages import JobDocument
from gpuyard.model.ids import JobKey
from gpuyard.model.job import DEFAULT_PRIORITY
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import EventKind, JobState
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import (
    arrays,
    dependencies,
    documents,
    fencing,
    follow_ups,
    handing_out,
    lifecycle,
    quota,
    tenancy,
    times,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import CancelRequested, Refused, Submitted
from gpuyard_coordinator.core.shapes import Shape, shape_of
from gpuyard_coordinator.core.state import Hold, Job, Now


def apply_request(
    cluster: Cluster, event: Submitted | Refused | CancelRequested, now: Now, effects: Effects
) -> None:
    match event:
        case Submitted():
            _submit(cluster, event, now, effects)
        case Refused():
            _refuse(cluster, event, now, effects)
        case CancelRequested():
            _cancel(cluster, event, now, effects)


def _submit(cluster: Cluster, event: Submitted, now: Now, effects: Effects) -> None:
    key = (event.tenant, event.id)
    live = cluster.jobs.get(key)
    done = _done(cluster, event.tenant, event.id, event.known)
    if live is not None or (done is not None and not _may_be_replaced(done)):
        same = _is_same(cluster, event, live, done, now)
        _answer_repeat(event, same=same, now=now, effects=effects)
        return
    spec, notes = _settled(cluster, event, now)
    shape = shape_of(spec, event.tenant, cluster.tenants.get(event.tenant))
    if refusal := _refusal(cluster, event, spec, shape, now):
        reason, fault = refusal
        refused = Refused(
            event.tenant, event.user, event.id, (fault,), event.spec, event.sequence, ref=event.ref
        )
        _refuse(cluster, refused, now, effects, reason=reason)
        return
    job = _new_job(cluster, event, spec, shape, now)
    _accept(cluster, event, job, notes, now=now, effects=effects)
    if done is not None and done["state"] == JobState.CANCELLED:
        message = done["message"] or "cancelled before it was submitted"
        _end_as_cancelled(cluster, job, message, now, effects)
    elif _begin_waiting(cluster, event, job, now, effects):
        _queue(cluster, job, now, effects)


def _accept(
    cluster: Cluster,
    event: Submitted,
    job: Job,
    notes: Sequence[str],
    *,
    now: Now,
    effects: Effects,
) -> None:
    cluster.jobs[job.key] = job
    cluster.recently_done.discard(job.key)
    effects.done.pop(job.key, None)
    notice = {"unlimited": True} if tenancy.is_stranger(cluster, event.tenant) else None
    message = "; ".join(note for note in (event.note, *notes) if note) or None
    effects.emit(job, EventKind.ACCEPTED, now, message=message, actor=event.user, data=notice)
    effects.outcomes.append(Outcome(event.ref, key=job.key))


def _end_as_cancelled(cluster: Cluster, job: Job, message: str, now: Now, effects: Effects) -> None:
    lifecycle.end_job(
        cluster,
        job,
        reason=EndReason.CANCELLED,
        message=message,
        now=now,
        effects=effects,
    )


def _queue(cluster: Cluster, job: Job, now: Now, effects: Effects) -> None:
    if job.array is None:
        cluster.mix.observe(job.shape, job.submit_seq)
    waiting.enqueue(cluster, job, now)
    if verdict := waiting.verdict(cluster, job):
        data = {"code": verdict["code"]}
        effects.emit(job, EventKind.QUEUED, now, message=verdict["message"], data=data)


def _begin_waiting(
    cluster: Cluster, event: Submitted, job: Job, now: Now, effects: Effects
) -> bool:
    """Whom a new job still waits for; False where one of them ended so that it can never start."""
    ended = {
        awaited: state
        for awaited in job.after
        if not dependencies.is_live(cluster, (job.tenant, awaited.job))
        and (state := dependencies.state_of(cluster, event, awaited.job)) is not None
    }
    for awaited, state in ended.items():
        if not dependencies.is_met(awaited, state):
            job.after = ()
            follow_ups.end_as_failed(
                cluster, job, awaited.job, state, awaited.when, now=now, effects=effects
            )
            return False
    dependencies.drop(cluster, job, ended)
    return True


def _settled(cluster: Cluster, event: Submitted, now: Now) -> tuple[dict[str, Any], list[str]]:
    """The spec with what its tenant and the yard add to it, and what of that is worth saying."""
    spec, notes = quota.with_defaults(event.spec, cluster.tenants.get(event.tenant))
    return times.settled(fencing.with_rule(spec, cluster.settings), now), notes


def _refusal(
    cluster: Cluster, event: Submitted, spec: dict[str, Any], shape: Shape, now: Now
) -> tuple[EndReason, FieldFault] | None:
    tenant = event.tenant
    queued, tasks = cluster.queue.waiting[tenant], arrays.count(spec)
    refusal = quota.refusal(tenant, cluster.tenants.get(tenant), spec, shape, queued, tasks)
    if refusal is not None:
        return refusal
    fault = (
        fencing.fault(spec, cluster.settings)
        or dependencies.fault(cluster, event)
        or times.fault(spec, now)
    )
    return None if fault is None else (EndReason.INVALID, fault)


def _is_same(
    cluster: Cluster, event: Submitted, live: Job | None, done: JobDocument | None, now: Now
) -> bool:
    """True for what was submitted before: the same text, or one read off the job itself."""
    kept = live.spec_sha256 if live else None, done["spec_sha256"] if done else None
    if event.spec_sha256 in kept:
        return True
    spec = live.spec if live else done["spec"] if done else None
    return spec == _settled(cluster, event, now)[0]


def _done(cluster: Cluster, tenant: str, id: str, known: JobDocument | None) -> JobDocument | None:
    """The record of a job that is over; one that ended since it was looked up comes first."""
    return cluster.recently_done.get((tenant, id)) or known


def _may_be_replaced(done: JobDocument) -> bool:
    """A record of a refusal, or of a cancel that came before its job, stands for no job yet."""
    return not done["spec_sha256"]


def _new_job(
    cluster: Cluster, event: Submitted, spec: dict[str, Any], shape: Shape, now: Now
) -> Job:
    sequence = cluster.next_submit_seq
    array = arrays.of_spec(spec)
    # Its tasks have their ages from here on, whenever each is handed out.
    cluster.next_submit_seq += 1 if array is None else 1 + len(array.tasks)
    return Job(
        tenant=event.tenant,
        id=event.id,
        user=event.user,
        user_verified=event.user_verified,
        packed_spec=fast_codec.encode(spec),
        name=spec.get("name"),
        spec_sha256=event.spec_sha256,
        shape=shape,
        priority=int(spec.get("priority", DEFAULT_PRIORITY)),
        submitted_at=now.at,
        submit_seq=sequence,
        image=sys.intern(str(spec["image"])),
        fence_s=documents.fence_s(spec),
        is_preemptible=bool(spec.get("preemptible")),
        hold=Hold(event.user, now.at) if spec.get("hold") else None,
        after=dependencies.of_spec(spec),
        not_before=spec.get("not_before"),
        deadline=spec.get("deadline"),
        array=array,
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
    if done is not None and done["state"] == JobState.CANCELLED:
        return  # a cancel that came first goes on to meet whatever is submitted well
    record = _record(event.tenant, event.id, event.user, JobState.FAILED, now)
    record["reason"] = reason
    record["message"] = "; ".join(str(fault) for fault in event.faults)
    record["spec"] = event.spec
    _keep(cluster, key, record, effects)


def _cancel(cluster: Cluster, event: CancelRequested, now: Now, effects: Effects) -> None:
    key = (event.tenant, event.id)
    message = event.message or f"cancelled by {event.actor}"
    job = handing_out.live_job(cluster, key, now, effects)
    if job is None:
        if _done(cluster, event.tenant, event.id, event.known) is None:
            _cancel_unknown(cluster, event, message, now, effects)
            return
    else:
        follow_ups.end_or_stop(
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
    _keep(cluster, (event.tenant, event.id), record, effects, is_early_cancel=True)
    error = UnknownThing(f"no job {event.id}: should it still come, it will not run")
    effects.outcomes.append(Outcome(event.ref, error=error))


def _keep(
    cluster: Cluster,
    key: JobKey,
    record: JobDocument,
    effects: Effects,
    *,
    is_early_cancel: bool = False,
) -> None:
    packed = fast_codec.encode(record)
    effects.keep(key, packed, is_early_cancel=is_early_cancel)
    cluster.recently_done.put(key, packed)


def _record(tenant: str, id: str, user: str, state: JobState, now: Now) -> JobDocument:
    """The record of something that never became a job."""
    job = Job(
        tenant=tenant,
        id=id,
        user=user,
        user_verified=False,
        packed_spec=fast_codec.encode({}),
        name=None,
        spec_sha256="",
        shape=Shape(),
        priority=DEFAULT_PRIORITY,
        submitted_at=now.at,
        submit_seq=0,
        state=state,
        ended_at=now.at,
    )
    return documents.job_document(job)
