"""Tasks become jobs of their own: as many of an array as may start soon, or one asked for."""

from gpuyard.model.ids import JobKey
from gpuyard.model.states import EventKind
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import arrays, waiting
from gpuyard_coordinator.core.arrays import FRESH
from gpuyard_coordinator.core.cluster import Cluster, LiveTasks
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Job, Now


def hand_out(cluster: Cluster, job: Job, now: Now, effects: Effects) -> bool:
    """Keeps some tasks of an array that waits for nothing in line; False where the turn had no room
    for all of them."""
    array, parked = job.array, cluster.queue.parked.get(job.key)
    if array is None or parked is None or parked.code is not VerdictCode.WAITING_TURN:
        return True
    while array.left and not arrays.is_at_its_limit(cluster, job):
        if len(cluster.tasks.get(job.key, LiveTasks()).fresh) >= FRESH:
            break
        if not effects.has_room():
            return False
        _hand_out(cluster, job, array.next, now, effects)
    return True


def live_job(cluster: Cluster, key: JobKey, now: Now, effects: Effects) -> Job | None:
    """A live job; a task that its array has not handed out is handed out for that."""
    found = arrays.pending(cluster, key)
    if found is not None:
        _hand_out(cluster, *found, now, effects)
    return cluster.jobs.get(key)


def _hand_out(cluster: Cluster, job: Job, position: int, now: Now, effects: Effects) -> None:
    task = arrays.task(cluster, job, position, now)
    arrays.take(cluster, job, position, effects)
    cluster.next_submit_seq += 1
    cluster.jobs[task.key] = task
    arrays.enter(cluster, task)
    message = f"a task of array {job.id}"
    effects.emit(task, EventKind.ACCEPTED, now, message=message, actor=job.user)
    cluster.mix.observe(task.shape, task.submit_seq)
    waiting.enqueue(cluster, task, now)
