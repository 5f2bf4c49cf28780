"""`apply(cluster, event, now, effects)`: the only place where the yard's state changes.

The same events at the same times give the same state and effects: ids, times and tie-breaks come in
with them. What each event means is with its subject; here it is only told whose it is.
"""

from typing import assert_never

from gpuyard.model.reasons import EndReason
from gpuyard.model.states import EventKind
from gpuyard_coordinator.core import (
    beats,
    fencing,
    follow_ups,
    holds,
    lifecycle,
    operations,
    setaside,
    submitting,
    tenancy,
    times,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import (
    Assigned,
    AwaitedLookedUp,
    CancelRequested,
    Event,
    HoldRequested,
    MixPriced,
    NodeBeat,
    NodeOrder,
    Preempted,
    Refused,
    StillQueued,
    Submitted,
    TenantApplied,
    TenantDeleted,
    Tick,
)
from gpuyard_coordinator.core.state import Now


def apply(cluster: Cluster, event: Event, now: Now, effects: Effects) -> None:
    """Changes `cluster` by one event and adds what is to be stored, sent and answered.

    Raises InvalidTransition on a broken invariant; the cluster must then be rebuilt.
    """
    match event:
        case Submitted() | Refused() | CancelRequested():
            submitting.apply_request(cluster, event, now, effects)
        case HoldRequested():
            holds.apply_hold(cluster, event, now, effects)
        case AwaitedLookedUp():
            cluster.ended_awaited[event.tenant, event.id] = event.state or follow_ups.GONE
        case NodeBeat():
            beats.apply_beat(cluster, event, now, effects)
        case NodeOrder():
            operations.apply_order(cluster, event, now, effects)
        case TenantApplied() | TenantDeleted():
            tenancy.apply_tenant(cluster, event, now, effects)
        case Assigned() | Preempted() | StillQueued() | MixPriced():
            _carry_out(cluster, event, now, effects)
        case Tick():
            _judge(cluster, now, effects)
        case _:
            assert_never(event)
    follow_ups.go_on(cluster, now, effects)


def _judge(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Whatever is due by time alone."""
    beats.judge_lateness(cluster, now, effects)
    fencing.judge(cluster, now, effects)
    operations.go_on_forgetting(cluster, now, effects)
    operations.judge_drains(cluster, now, effects)
    setaside.judge(cluster, now)
    times.look_at_clock(cluster, now)
    waiting.release_due(cluster, now, effects)
    times.judge(cluster, now, effects)


def _carry_out(
    cluster: Cluster,
    event: Assigned | Preempted | StillQueued | MixPriced,
    now: Now,
    effects: Effects,
) -> None:
    """What the planner decided."""
    match event:
        case Assigned():
            _assign(cluster, event, now, effects)
        case Preempted():
            _preempt(cluster, event, now, effects)
        case StillQueued():
            job, data = cluster.jobs[event.tenant, event.job], {"code": event.code}
            effects.emit(job, EventKind.QUEUED, now, message=event.message, data=data)
        case MixPriced():
            cluster.priced, effects.mix = event.mix, True


def _assign(cluster: Cluster, event: Assigned, now: Now, effects: Effects) -> None:
    job = cluster.jobs[event.tenant, event.job]
    if event.others:
        lifecycle.assign_gang(cluster, job, event.places, now=now, effects=effects)
    else:
        node = cluster.nodes[event.node]
        lifecycle.assign(cluster, job, node, event.gpus, now=now, effects=effects)


def _preempt(cluster: Cluster, event: Preempted, now: Now, effects: Effects) -> None:
    job = cluster.jobs[event.tenant, event.job]
    # Of another tenant's jobs no id is told.
    is_own = event.by_tenant == job.tenant
    by = f"job {event.by_job}" if is_own else f"a job of tenant {event.by_tenant}"
    lifecycle.request_stop(
        cluster,
        job,
        reason=EndReason.PREEMPTED,
        message=f"{by} has a higher priority and takes its place",
        now=now,
        effects=effects,
    )
