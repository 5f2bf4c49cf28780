"""Jobs that wait for something else than room: a release, others' ends, a time, an image on hold.

They count as queued and no planner sees them. Each waits for one thing at a time, in that order,
and is placed anew once that is over. What is due is found without a walk over them.
"""

from collections.abc import Iterable
from typing import Final

from gpuyard.model.states import JobState
from gpuyard.model.verdicts import Verdict, VerdictCode
from gpuyard_coordinator.core import arrays, dependencies, images, retries
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.moments import later, seconds_until
from gpuyard_coordinator.core.retries import LONGEST_WAIT_S
from gpuyard_coordinator.core.shapes import without_nodes
from gpuyard_coordinator.core.state import Hold, Job, Now

LOOKED_AT_S: Final = LONGEST_WAIT_S
"""A time further ahead than this is worked out anew meanwhile: the wall clock may have been set."""


def enqueue(cluster: Cluster, job: Job, now: Now, *, delay_s: float = 0.0) -> None:
    """Puts a queued job in line, after its delay and once nothing else keeps it."""
    if delay_s > 0:
        job.not_before = later(now.at, delay_s)
    place(cluster, job, now)
    file_deadline(cluster, job, now)


def place(cluster: Cluster, job: Job, now: Now) -> None:
    """Puts a queued job where it waits now: for what keeps it from the line, else in line."""
    cluster.delays.drop(job.key)
    if (code := closed(cluster, job)) is not None:
        _park(cluster, job, code)
        return
    if file_delay(cluster, job, now):
        _park(cluster, job, VerdictCode.NOT_BEFORE)
    else:
        cluster.delays.drop(job.key)
        _line_up(cluster, job)


def file_delay(cluster: Cluster, job: Job, now: Now) -> bool:
    """Puts the job in line when its time has come; False where it has."""
    if job.not_before is None:
        return False
    left_s = seconds_until(now.at, job.not_before, most=LOOKED_AT_S)
    cluster.delays.file(job.key, now.mono + left_s)
    return left_s > 0


def file_deadline(cluster: Cluster, job: Job, now: Now) -> None:
    """Ends the job in time; one without a deadline is passed over."""
    if job.deadline is not None:
        left_s = seconds_until(now.at, job.deadline, most=LOOKED_AT_S)
        cluster.deadlines.file(job.key, now.mono + left_s)


def closed(cluster: Cluster, job: Job) -> VerdictCode | None:
    """What keeps a queued job from the line until some event, as stored documents tell it."""
    if _hold(cluster, job) is not None:
        return VerdictCode.HELD
    return VerdictCode.DEPENDENCY if job.after else None


def enter(cluster: Cluster, jobs: Iterable[Job]) -> None:
    """Queued jobs as they were stored: in line, but for those that wait for some event."""
    in_line = []
    for job in jobs:
        code = closed(cluster, job)
        if code is None and job.array is None:
            in_line.append(job)
        else:
            _park(cluster, job, code or VerdictCode.WAITING_TURN)
    cluster.queue.add_all(in_line)


def _hold(cluster: Cluster, job: Job) -> Hold | None:
    """Of the job, or of the array whose task it is."""
    array = arrays.array_of(cluster, job)
    return job.hold or (None if array is None else array.hold)


def _park(cluster: Cluster, job: Job, code: VerdictCode) -> None:
    """An array counts for all tasks that it has not handed out."""
    cluster.queue.park(job, code, 1 if job.array is None else job.array.left)


def release_due(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Puts in line whose time has come."""
    while effects.has_room() and (key := cluster.delays.take(now.mono)) is not None:
        job = cluster.jobs.get(key)
        if job is not None and key in cluster.queue.parked:
            _keep_off_no_more(cluster, job, effects)
            if job.attempts:
                # A retry waits for a while, whatever the wall clock was set to since.
                _line_up(cluster, job)
            else:
                place(cluster, job, now)
    images.release_due(cluster, now)
    _loosen(cluster, effects)


def verdict(cluster: Cluster, job: Job) -> Verdict | None:
    """Why a queued job waits that no planner sees; None for any other."""
    parked = cluster.queue.parked.get(job.key)
    if parked is None:
        # A task that was not handed out waits as its array does.
        pending = arrays.pending(cluster, job.key)
        return None if pending is None else verdict(cluster, pending[0])
    if (hold := _hold(cluster, job)) is not None:
        message = f"held by {hold.by}: it waits until somebody releases it"
        return {"code": str(parked.code), "message": message, "since": hold.since}
    if job.after:
        return dependencies.verdict(cluster, job)
    if parked.code is VerdictCode.WAITING_TURN:
        return _of_tasks(cluster, job)
    return _timed(cluster, job)


def _of_tasks(cluster: Cluster, job: Job) -> Verdict | None:
    """Why the tasks of an array wait; None where the first of them waits for room."""
    if job.array is not None and job.array.left and arrays.is_at_its_limit(cluster, job):
        live = len(cluster.tasks[job.key])
        message = f"{live} of its tasks are under way, and its array allows no more at once"
        code = str(VerdictCode.WAITING_TURN)
        return {"code": code, "message": message, "since": job.queued_at}
    waiting = (task for task in arrays.live(cluster, job) if task.state is JobState.QUEUED)
    first = min(waiting, key=lambda task: task.order, default=None)
    return None if first is None else verdict(cluster, first)


def _timed(cluster: Cluster, job: Job) -> Verdict:
    code = str(VerdictCode.NOT_BEFORE)
    if job.key in cluster.delays:
        message = f"it is not to start before {job.not_before}"
        if job.last is not None:
            why = job.last.next_allowed_because or "its last attempt failed"
            message = f"it waits until {job.not_before} before the next attempt: {why}"
        return {"code": code, "message": message, "since": job.queued_at}
    record = cluster.images[job.image]
    nodes = ", ".join(sorted(record.failed_on))
    message = f"image {job.image} could not be started on {nodes}; next try about {record.next_try}"
    return {"code": code, "message": message, "since": record.held_since or job.queued_at}


def _line_up(cluster: Cluster, job: Job) -> None:
    cluster.queue.discard(job)
    if job.array is not None:
        _park(cluster, job, VerdictCode.WAITING_TURN)
        cluster.arrays_due.setdefault(job.key, False)
    elif images.is_held(cluster, job):
        images.wait(cluster, job)
    else:
        cluster.queue.add(job)


def _loosen(cluster: Cluster, effects: Effects) -> None:
    """After nodes went: jobs may take a node again that failed them, where no other is left."""
    if not cluster.shrank:
        return
    cluster.shrank = False
    by_shape = cluster.queue.by_shape
    narrow = [shape for shape in by_shape if not retries.has_other_nodes(cluster, shape)]
    for shape in narrow:
        for _, _, tenant, id in list(by_shape[shape]):
            if not effects.has_room():
                cluster.shrank = True
                return
            job = cluster.jobs[tenant, id]
            cluster.queue.discard(job)
            _keep_off_no_more(cluster, job, effects)
            cluster.queue.add(job)


def _keep_off_no_more(cluster: Cluster, job: Job, effects: Effects) -> None:
    if not retries.has_other_nodes(cluster, job.shape):
        job.shape = without_nodes(job.shape, frozenset())
        effects.change(job)
