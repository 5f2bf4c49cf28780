"""Hold and release: a queued job does not start while somebody holds it."""

from gpuyard.errors import Conflict, UnknownThing
from gpuyard.model.states import EventKind, JobState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import arrays, waiting
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import HoldRequested
from gpuyard_coordinator.core.state import Hold, Job, Now


def apply_hold(cluster: Cluster, event: HoldRequested, now: Now, effects: Effects) -> None:
    """Holds or releases a job; what is so already stays as it is, and nothing is told twice."""
    job = cluster.jobs.get((event.tenant, event.id))
    verb = "held" if event.is_hold else "released"
    if job is None or job.state is not JobState.QUEUED:
        effects.outcomes.append(Outcome(event.ref, error=_refusal(cluster, event, job, verb)))
        return
    if job.array is not None and job.array.stop is not None:
        error = Conflict(f"job {job.id} is stopping: only a queued job can be {verb}")
        effects.outcomes.append(Outcome(event.ref, error=error))
        return
    if (job.hold is not None) != event.is_hold:
        job.hold = Hold(event.actor, now.at) if event.is_hold else None
        waiting.place(cluster, job, now)
        for task in arrays.live(cluster, job):
            if task.state is JobState.QUEUED:
                waiting.place(cluster, task, now)
        data = {"code": str(VerdictCode.HELD)} if event.is_hold else None
        message = f"{verb} by {event.actor}"
        effects.emit(job, EventKind.QUEUED, now, message=message, actor=event.actor, data=data)
    effects.outcomes.append(Outcome(event.ref, key=job.key))


def _refusal(
    cluster: Cluster, event: HoldRequested, job: Job | None, verb: str
) -> Conflict | UnknownThing:
    if job is not None:
        text = f"job {job.id} is {job.state}: only a queued job can be {verb}"
        return Conflict(text, hint="cancel ends it" if event.is_hold else None)
    if (found := arrays.pending(cluster, (event.tenant, event.id))) is not None:
        return Conflict(f"task {event.id} waits in its array; hold and release job {found[0].id}")
    if (event.tenant, event.id) in cluster.recently_done or event.is_over:
        return Conflict(f"job {event.id} is over: only a queued job can be {verb}")
    return UnknownThing(f"no job {event.id} in tenant {event.tenant}", field="id")
