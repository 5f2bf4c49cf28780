"""What one event leads to in other jobs, carried on over as many turns as it takes.

Each turn does as much as one commit holds; what is left is known from the stored documents alone.
"""

from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core import dependencies, lifecycle, waiting
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Job, Now

GONE = "gone"
"""The state of a job whose record is not kept any more."""


def go_on(cluster: Cluster, now: Now, effects: Effects) -> None:
    """To be called after each event."""
    if cluster.ended_awaited:
        _wake_dependants(cluster, now, effects)


def are_left(cluster: Cluster) -> bool:
    """True while there is more of it than the last turn had room for."""
    return bool(cluster.ended_awaited)


def _wake_dependants(cluster: Cluster, now: Now, effects: Effects) -> None:
    while cluster.ended_awaited:
        key, state = next(iter(cluster.ended_awaited.items()))
        while waiting_for := cluster.dependants.get(key):
            if not effects.has_room():
                return
            # Only ever the last: taking the first of many again and again would pass all before it.
            job = cluster.jobs[next(reversed(waiting_for))]
            _take_end(cluster, job, key[1], state, now, effects)
        del cluster.ended_awaited[key]


def _take_end(cluster: Cluster, job: Job, id: str, state: str, now: Now, effects: Effects) -> None:
    """A job that this one waits for is over: it goes on, or can never start."""
    asked = [awaited for awaited in job.after if awaited.job == id]
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
        exit_code=None,
        message=f"job {id} {how}, and it was to end {when} first",
        now=now,
        effects=effects,
    )
