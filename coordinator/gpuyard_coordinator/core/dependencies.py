"""Jobs that wait for the ends of others (`after`), found by whom they wait for.

A job's document holds what it still waits for; what ended as asked leaves it. So a new leader knows
whom each waits for, and has to look up only those that ended while their dependants were being
told.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuyard.errors import FieldFault
from gpuyard.model.ids import JobKey
from gpuyard.model.states import JobState
from gpuyard.model.verdicts import Verdict, VerdictCode
from gpuyard_coordinator.core import arrays
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import Submitted
from gpuyard_coordinator.core.state import Awaited, Job

_NAMED: Final = 3
"""Jobs that a verdict names."""


def of_spec(spec: dict[str, Any]) -> tuple[Awaited, ...]:
    return tuple(Awaited(item["job"], item["when"]) for item in spec.get("after") or ())


def fault(cluster: Cluster, event: Submitted) -> FieldFault | None:
    """Why a job cannot wait for what its spec names: itself, or a job that nobody knows."""
    for index, awaited in enumerate(of_spec(event.spec)):
        field = f"after[{index}].job"
        if awaited.job == event.id:
            return FieldFault(field, "invalid", f"job {event.id} cannot wait for its own end")
        if not is_live(cluster, (event.tenant, awaited.job)) and (
            state_of(cluster, event, awaited.job) is None
        ):
            text = f"no job {awaited.job} in tenant {event.tenant}: submit that one first"
            return FieldFault(field, "unknown_job", text)
    return None


def is_live(cluster: Cluster, key: JobKey) -> bool:
    """True for a job that will end, and wake its dependants then."""
    return key in cluster.jobs or arrays.pending(cluster, key) is not None


def state_of(cluster: Cluster, event: Submitted, id: str) -> str | None:
    """The final state of a job that is over; None where no record of it is kept. What ended of late
    comes before what was looked up earlier."""
    record = cluster.recently_done.get((event.tenant, id))
    if record is not None:
        return record["state"] if record["spec_sha256"] else None
    return event.ended.get(id)


def is_met(awaited: Awaited, state: str) -> bool:
    return awaited.when in ("ended", state)


def is_of(awaited: Awaited, id: str) -> bool:
    """True for what is waited for of a job: its end, or where it is an array that of a task, which
    never started if it is still waited for then."""
    return awaited.job == id or awaited.job.startswith(f"{id}_")


def filed_under(job: Job) -> Iterator[JobKey]:
    """Each that it waits for; of a task its array as well, since the task may never start."""
    for awaited in job.after:
        key = (job.tenant, awaited.job)
        yield key
        if (array := arrays.array_key(key)) is not None:
            yield array


def enter(cluster: Cluster, job: Job) -> None:
    """Files a job under each that it waits for."""
    for key in filed_under(job):
        cluster.dependants.setdefault(key, {})[job.key] = None


def leave(cluster: Cluster, job: Job) -> None:
    """Takes it out again; one that is not there is no error."""
    for key in filed_under(job):
        waiting = cluster.dependants.get(key, {})
        waiting.pop(job.key, None)
        if not waiting:
            cluster.dependants.pop(key, None)


def drop(cluster: Cluster, job: Job, ended: Iterable[Awaited]) -> None:
    """What a job waits for no longer; the caller stores it."""
    leave(cluster, job)
    gone = set(ended)
    job.after = tuple(awaited for awaited in job.after if awaited not in gone)
    enter(cluster, job)


def note_end(cluster: Cluster, job: Job) -> None:
    """Whoever waits for a job that is over is told in this turn, or in those that follow."""
    leave(cluster, job)
    if job.key in cluster.dependants:
        cluster.ended_awaited[job.key] = str(job.state)


def unknown(cluster: Cluster) -> list[JobKey]:
    """Those waited for that no live job is: a new leader has their records looked up."""
    return [key for key in cluster.dependants if not is_live(cluster, key)]


def verdict(cluster: Cluster, job: Job) -> Verdict:
    told = [_words(cluster, job, awaited) for awaited in job.after[:_NAMED]]
    more = len(job.after) - _NAMED
    if more > 0:
        told.append(f"{more} more")
    message = f"it waits for {' and for '.join(told)}"
    return {"code": str(VerdictCode.DEPENDENCY), "message": message, "since": job.queued_at}


def _words(cluster: Cluster, job: Job, awaited: Awaited) -> str:
    live = cluster.jobs.get((job.tenant, awaited.job))
    state = str(JobState.QUEUED if live is None else arrays.shown_state(cluster, live))
    how = "to end" if awaited.when == "ended" else f"to end {awaited.when}"
    return f"job {awaited.job} {how} (it is {state})"
