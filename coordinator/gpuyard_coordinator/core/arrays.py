"""Arrays: one stored document that stands for many tasks, and hands them out as they can start.

Rules of this file: an array is a queued job that never enters the line; a task that was handed out
is a job like any other, with an id made of the array's and its number; what lives of them is
derived from the jobs, what is over is counted in the array's document. See docs/decisions.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from gpuyard.messages import JobDocument
from gpuyard.model import ids
from gpuyard.model.arrays import parse_array
from gpuyard.model.ids import JobKey
from gpuyard.model.quantities import counted
from gpuyard.model.reasons import EndReason, exit_code_of
from gpuyard.model.states import HOLDING_STATES, JobState
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core.cluster import Cluster, LiveTasks
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.core.state import Array, Job, Now, StopTasks

FRESH: Final = 100
"""So many tasks of an array are handed out and have no attempt yet, at most: as many as a turn
places."""
_NOT_A_TASKS: Final[dict[str, Any]] = {
    "array": None,
    "after": [],
    "hold": False,
    "not_before": None,
}
"""What the array has waited for, its tasks do not wait for again."""


def count(spec: dict[str, Any]) -> int:
    """How many jobs a spec stands for."""
    text = spec.get("array")
    return 1 if text is None else len(parse_array(text))


def of_spec(spec: dict[str, Any]) -> Array | None:
    text = spec.get("array")
    return None if text is None else Array(parse_array(text))


def array_key(key: JobKey) -> JobKey | None:
    """The array of a task; None for any other job."""
    parts = ids.array_of(key[1])
    return None if parts is None else (key[0], parts[0])


def array_of(cluster: Cluster, job: Job) -> Job | None:
    """The live array of a task; None for any other job."""
    key = array_key(job.key)
    return None if key is None else cluster.jobs.get(key)


def enter(cluster: Cluster, job: Job) -> None:
    """A task lives; other jobs are passed over."""
    if (key := array_key(job.key)) is not None:
        live = cluster.tasks.setdefault(key, LiveTasks())
        (live.begun if job.attempts else live.fresh)[job.key] = None


def leave(cluster: Cluster, job: Job) -> None:
    """It does not, or is about to be entered anew; one that is not there is no error."""
    key = array_key(job.key)
    if key is not None and (live := cluster.tasks.get(key)) is not None:
        live.fresh.pop(job.key, None)
        live.begun.pop(job.key, None)
        if not len(live):
            del cluster.tasks[key]


def begin(cluster: Cluster, job: Job, now: Now, effects: Effects) -> None:
    """A task got its first attempt, and leaves room for another; other jobs are passed over."""
    key = array_key(job.key)
    if key is None:
        return
    leave(cluster, job)
    enter(cluster, job)
    if (array := cluster.jobs.get(key)) is not None:
        cluster.arrays_due.setdefault(array.key, False)
        if array.started_at is None:
            array.started_at = now.at
            effects.change(array)


def note_end(cluster: Cluster, job: Job, effects: Effects) -> None:
    """A task is over: its array counts it; other jobs are passed over."""
    key = array_key(job.key)
    if key is None:
        return
    leave(cluster, job)
    array = cluster.jobs.get(key)
    if array is None or array.array is None:
        return
    told = f"task {job.id}: {job.message}" if job.message else f"task {job.id}"
    _count(array.array, str(job.reason), job.exit_code, told, str(job.state), 1)
    cluster.arrays_due.setdefault(array.key, False)
    effects.change(array)


def stop(cluster: Cluster, job: Job, order: StopTasks, state: JobState, effects: Effects) -> bool:
    """No further task is handed out, and those that live are ended, in this turn and the next ones;
    `state` is that of tasks which never started. False where that was ordered before."""
    array = job.array
    if array is None or (array.stop is not None and array.stop.reason == EndReason.CANCELLED):
        return False
    left = array.left
    array.stop = order
    if left:
        told = f"{counted(left, 'tasks')} never started: {order.message}"
        _count(array, order.reason, None, told, str(state), left)
    cluster.arrays_due[job.key] = True
    effects.change(job)
    return True


def adopt(cluster: Cluster, job: Job, effects: Effects) -> None:
    """A task that a node tells of after a restore; its array may not know it as handed out."""
    enter(cluster, job)
    if (found := pending(cluster, job.key)) is not None:
        array, position = found
        take(cluster, array, position, effects)
    if (key := array_key(job.key)) in cluster.jobs and key is not None:
        cluster.arrays_due[key] = True


def take(cluster: Cluster, job: Job, position: int, effects: Effects) -> None:
    """A task is a job of its own from now on: its array counts for one less that waits."""
    assert job.array is not None
    job.array.take(position)
    effects.change(job)
    if (parked := cluster.queue.parked.get(job.key)) is not None:
        cluster.queue.park(job, parked.code, job.array.left)


def _count(
    array: Array, reason: str, exit_code: int | None, told: str, state: str, number: int
) -> None:
    array.ended[state] = array.ended.get(state, 0) + number
    is_bad = state != JobState.SUCCEEDED
    worst = -1 if array.worst is None else exit_code_of(*array.worst[:2])
    if is_bad and exit_code_of(reason, exit_code) > worst:
        array.worst = (reason, exit_code, told)


def outcome(array: Array) -> tuple[EndReason, int | None, str]:
    """(reason, exit code, message) of an array that is over: those of its worst task."""
    counts = [f"{number} {state}" for state, number in sorted(array.ended.items())]
    message = f"{', '.join(counts)} of {counted(len(array.tasks), 'tasks')}"
    if array.worst is None:
        return EndReason.EXITED, 0, message
    reason, exit_code, told = array.worst
    return EndReason(reason), exit_code, f"{message}; {told}"


def pending(cluster: Cluster, key: JobKey) -> tuple[Job, int] | None:
    """(array, position) of a task that was not handed out yet; None for anything else."""
    parts = ids.array_of(key[1])
    job = None if parts is None else cluster.jobs.get((key[0], parts[0]))
    if parts is None or job is None or job.array is None:
        return None
    position = job.array.tasks.position_of(parts[1])
    return (job, position) if position is not None and job.array.is_left(position) else None


def task(cluster: Cluster, array: Job, position: int, now: Now | None = None) -> Job:
    """The job that a task becomes when it is handed out; it is not in the cluster yet. With `now`
    None it is only to be looked at."""
    assert array.array is not None
    packed = _task_spec(array.packed_spec)
    document = cluster.tenants.get(array.tenant)
    spec = fast_codec.decode_own(packed)
    return Job(
        tenant=array.tenant,
        id=ids.task_id(array.id, array.array.tasks.at(position)),
        user=array.user,
        user_verified=array.user_verified,
        packed_spec=packed,
        name=array.name,
        spec_sha256=array.spec_sha256,
        shape=shape_of(spec, array.tenant, document, packed=packed),
        priority=array.priority,
        submitted_at=array.submitted_at,
        submit_seq=array.submit_seq if now is None else cluster.next_submit_seq,
        image=array.image,
        fence_s=array.fence_s,
        is_preemptible=array.is_preemptible,
        deadline=array.deadline,
        age_seq=array.submit_seq + 1 + position,
    )


@lru_cache(maxsize=64)
def _task_spec(packed: bytes) -> bytes:
    return fast_codec.encode(fast_codec.decode_own(packed) | _NOT_A_TASKS)


def live(cluster: Cluster, array: Job) -> Iterator[Job]:
    """Its tasks that are handed out and not over."""
    tasks = cluster.tasks.get(array.key, LiveTasks())
    for key in (*tasks.begun, *tasks.fresh):
        yield cluster.jobs[key]


def states(cluster: Cluster, job: Job) -> dict[str, int]:
    """How many of its tasks are in which state; those that are not handed out are queued."""
    assert job.array is not None
    counts = Counter(job.array.ended)
    counts.update(str(task.state) for task in live(cluster, job))
    counts[str(JobState.QUEUED)] += job.array.left
    return {state: number for state, number in counts.items() if number}


def shown_state(cluster: Cluster, job: Job) -> JobState:
    """What readers are told: an array runs once and as long as one of its tasks holds a grant."""
    if job.array is None or job.state.is_final:
        return job.state
    if job.array.stop is not None:
        return JobState.STOPPING
    is_running = any(task.state in HOLDING_STATES for task in live(cluster, job))
    return JobState.RUNNING if is_running else job.state


def is_all_begun(cluster: Cluster, job: Job) -> bool:
    """True for an array of which no task waits."""
    if job.array is None or job.array.left:
        return False
    return all(task.state is not JobState.QUEUED for task in live(cluster, job))


def is_at_its_limit(cluster: Cluster, job: Job) -> bool:
    """True where `%N` allows no more tasks under way."""
    assert job.array is not None
    most = job.array.tasks.limit
    return most is not None and len(cluster.tasks.get(job.key, ())) >= most


def never_started(record: JobDocument, id: str) -> JobDocument | None:
    """The record of a task, of which that of its array is all there is; None where it had none of
    that number."""
    parts, text = ids.array_of(id), (record["spec"] or {}).get("array")
    if parts is None or not text or parse_array(text).position_of(parts[1]) is None:
        return None
    spec = record["spec"] | _NOT_A_TASKS
    return {**record, "id": id, "spec": spec, "array": None, "events": 0, "started_at": None}
