"""What one event leads to in other jobs, carried on over as many turns as it takes.

Each turn does as much as one commit holds; what is left is known from the stored documents alone.
"""

from gpuyard.model.reasons import EndReason
from gpuyard.model.states import EventKind, JobState
from gpuyard_coordinator.core import arrays, dependencies, handing_out, lifecycle, waiting
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Job, Now, StopTasks

GONE = "gone"
"""The state of a job whose record is not kept any more."""


def go_on(cluster: Cluster, now: Now, effects: Effects) -> None:
    """To be called after each event."""
    while cluster.ended_awaited or cluster.arrays_due:
        if not (_wake_dependants(cluster, now, effects) and _carry_on(cluster, now, effects)):
            return


def are_left(cluster: Cluster) -> bool:
    """True while there is more of it than the last turn had room for."""
    return bool(cluster.ended_awaited or cluster.arrays_due)


def _carry_on(cluster: Cluster, now: Now, effects: Effects) -> bool:
    """Hands out tasks of arrays and ends those that are to end; False where no room was left."""
    while cluster.arrays_due:
        key, is_stopping = next(iter(cluster.arrays_due.items()))
        job = cluster.jobs.get(key)
        if job is not None and job.array is not None:
            if is_stopping and not _end_tasks(cluster, job, now, effects):
                return False
            if not handing_out.hand_out(cluster, job, now, effects) or not effects.has_room():
                return False
            if not job.array.left and key not in cluster.tasks:
                reason, exit_code, message = arrays.outcome(job.array)
                lifecycle.end_job(
                    cluster,
                    job,
                    reason=reason,
                    exit_code=exit_code,
                    message=message,
                    now=now,
                    effects=effects,
                )
        cluster.arrays_due.pop(key, None)
    return True


def _end_tasks(cluster: Cluster, job: Job, now: Now, effects: Effects) -> bool:
    """Ends all live tasks of an array that is to end; False where the turn had no room for all."""
    order = job.array.stop if job.array is not None else None
    for task in list(arrays.live(cluster, job)) if order is not None else ():
        if not effects.has_room():
            return False
        assert order is not None
        end_or_stop(
            cluster,
            task,
            reason=EndReason(order.reason),
            actor=order.actor,
            message=order.message,
            now=now,
            effects=effects,
        )
    return True


def end_or_stop(
    cluster: Cluster,
    job: Job,
    *,
    reason: EndReason,
    message: str,
    now: Now,
    effects: Effects,
    actor: str | None = None,
) -> None:
    """Ends a job that waits; one that holds is asked to end, and so are the tasks of an array."""
    if job.array is not None:
        state = lifecycle.final_state(reason, None)
        order = StopTasks(str(reason), actor, message)
        if arrays.stop(cluster, job, order, state, effects):
            waiting.place(cluster, job, now)
            data = {"reason": str(reason)}
            effects.emit(job, EventKind.STOPPING, now, message=message, actor=actor, data=data)
    elif job.state is JobState.QUEUED:
        lifecycle.end_job(
            cluster,
            job,
            reason=reason,
            message=message,
            actor=actor,
            now=now,
            effects=effects,
        )
    else:
        lifecycle.request_stop(
            cluster, job, reason=reason, actor=actor, message=message, now=now, effects=effects
        )


def _wake_dependants(cluster: Cluster, now: Now, effects: Effects) -> bool:
    """False where the turn had no room for all of them."""
    while cluster.ended_awaited:
        key, state = next(iter(cluster.ended_awaited.items()))
        while waiting_for := cluster.dependants.get(key):
            if not effects.has_room():
                return False
            # Only ever the last: taking the first of many again and again would pass all before it.
            job = cluster.jobs[next(reversed(waiting_for))]
            _take_end(cluster, job, key[1], state, now, effects)
        del cluster.ended_awaited[key]
    return True


def _take_end(cluster: Cluster, job: Job, id: str, state: str, now: Now, effects: Effects) -> None:
    """A job that this one waits for is over: it goes on, or can never start."""
    asked = [awaited for awaited in job.after if dependencies.is_of(awaited, id)]
    missed = [awaited for awaited in asked if not dependencies.is_met(awaited, state)]
    if missed:
        end_as_failed(cluster, job, id, state, missed[0].when, now=now, effects=effects)
        return
    dependencies.drop(cluster, job, asked)
    effects.change(job)
    waiting.place(cluster, job, now)


def end_as_failed(
    cluster: Cluster,
    job: Job,
    id: str,
    state: str,
    when: str,
    *,
    now: Now,
    effects: Effects,
) -> None:
    """Ends a job that waits for something that cannot be any more."""
    how = "is not known any more" if state == GONE else f"is {state}"
    lifecycle.end_job(
        cluster,
        job,
        reason=EndReason.DEPENDENCY_FAILED,
        message=f"job {id} {how}, and it was to end {when} first",
        now=now,
        effects=effects,
    )
