"""Images that could not be started on one node after another: their jobs wait, one at a time tries.

An image is on hold once it failed on `NODES` different nodes since it last started anywhere. When
the hold is over one of its jobs goes in line each `TRY_EVERY_S`; the first that starts frees the
others, a failure doubles the hold. The count is this leader's own: a new one begins anew.

Which nodes have an image is known from the attempts that run there, which each leader hears of.
"""

import heapq
from collections.abc import Collection
from typing import Final

from gpuyard.model.reasons import EndReason
from gpuyard.model.states import JobState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.moments import later
from gpuyard_coordinator.core.retries import FREE_RETRIES
from gpuyard_coordinator.core.state import Attempt, ImageRecord, Job, Now

NODES: Final = 1 + FREE_RETRIES
"""As many as one job may try for free."""
WINDOW_S: Final = 3600.0
"""A failure longer ago says nothing about the image now."""
FIRST_HOLD_S: Final = 300.0
LONGEST_HOLD_S: Final = 3600.0
NODES_KEPT: Final = 32
"""Nodes of which it is remembered that they have an image."""
TRY_EVERY_S: Final = 60.0
KEPT: Final = 4096
"""Images that are remembered; what is on hold is not forgotten."""
_ABOUT_IMAGES: Final = frozenset({EndReason.IMAGE_PULL_FAILED, EndReason.RUNTIME_ERROR})


def is_about_image(attempt: Attempt) -> bool:
    """True for an end of which the image may be the cause: the container never started."""
    return attempt.started_at is None and attempt.reason in _ABOUT_IMAGES


def is_held(cluster: Cluster, job: Job) -> bool:
    return job.image in cluster.images_held


def is_known_good(cluster: Cluster, image: str, node: str) -> bool:
    """True if the image has started and has failed on no other node since."""
    record = cluster.images.get(image)
    return record is not None and record.has_started and set(record.failed_on) <= {node}


def waits(cluster: Cluster, job: Job) -> bool:
    """True for a job that waits for its image, and for nothing else."""
    parked = cluster.queue.parked.get(job.key)
    is_for_a_time = parked is not None and parked.code is VerdictCode.NOT_BEFORE
    return is_for_a_time and job.key not in cluster.delays


def wait(cluster: Cluster, job: Job) -> None:
    """A queued job waits for its image, which is on hold."""
    cluster.queue.park(job, VerdictCode.NOT_BEFORE)
    heapq.heappush(cluster.images[job.image].waiting, job.order)


def present_on(cluster: Cluster, image: str) -> Collection[str]:
    """Nodes that are known to have an image; others may have it too."""
    record = cluster.images.get(image)
    return () if record is None else record.present_on


def take_pull(cluster: Cluster, image: str, node: str) -> None:
    """A node pulls an image: what it had of it is gone."""
    record = cluster.images.get(image)
    if record is not None and node in record.present_on:
        del record.present_on[node]
        cluster.images_moved.add(image)


def take_start(cluster: Cluster, job: Job, node: str) -> None:
    """An attempt runs: nothing is wrong with its image, and whoever waited for it goes in line."""
    record = _record(cluster, job.image)
    if node not in record.present_on:
        cluster.images_moved.add(job.image)
    record.present_on.pop(node, None)
    record.present_on[node] = None
    if len(record.present_on) > NODES_KEPT:
        del record.present_on[next(iter(record.present_on))]
    record.has_started, record.held_since = True, None
    record.failed_on.clear()
    cluster.images_held.discard(job.image)
    while record.waiting:
        _release_one(cluster, record)


def take_failure(cluster: Cluster, job: Job, attempt: Attempt, now: Now) -> None:
    """An attempt ended in a way that `is_about_image`."""
    record = _record(cluster, job.image)
    record.failed_on[attempt.node] = now.mono
    for node, mono in list(record.failed_on.items()):
        if now.mono - mono > WINDOW_S:
            del record.failed_on[node]
    if record.held_since is None:
        if len(record.failed_on) >= NODES:
            record.held_since, record.backoff_s = now.at, FIRST_HOLD_S
            _hold(cluster, job.image, record, now)
    elif record.has_tried:
        record.backoff_s = min(2 * record.backoff_s, LONGEST_HOLD_S)
        _hold(cluster, job.image, record, now)


def release_due(cluster: Cluster, now: Now) -> None:
    """Lets one job try each image whose hold is over, and forgets holds that nobody waits for."""
    for image in sorted(cluster.images_held):
        record = cluster.images[image]
        if record.due > now.mono:
            continue
        if not _release_one(cluster, record):
            record.held_since = None
            record.failed_on.clear()
            cluster.images_held.discard(image)
            continue
        record.has_tried = True
        _put_off(record, TRY_EVERY_S, now)


def _record(cluster: Cluster, image: str) -> ImageRecord:
    record = cluster.images.setdefault(image, ImageRecord())
    cluster.images.move_to_end(image)
    while len(cluster.images) - len(cluster.images_held) > KEPT:
        oldest = next(name for name in cluster.images if name not in cluster.images_held)
        del cluster.images[oldest]
        cluster.images_moved.add(oldest)
    return record


def _hold(cluster: Cluster, image: str, record: ImageRecord, now: Now) -> None:
    cluster.images_held.add(image)
    record.has_tried = False
    _put_off(record, record.backoff_s, now)
    for job in cluster.jobs.values():
        is_in_line = job.state is JobState.QUEUED and job.key not in cluster.queue.parked
        if is_in_line and job.image == image:
            wait(cluster, job)


def _put_off(record: ImageRecord, seconds: float, now: Now) -> None:
    record.due, record.next_try = now.mono + seconds, later(now.at, seconds)


def _release_one(cluster: Cluster, record: ImageRecord) -> bool:
    """Puts the first of those that still wait in line; False where none does."""
    while record.waiting:
        _, _, tenant, id = heapq.heappop(record.waiting)
        job = cluster.jobs.get((tenant, id))
        if job is not None and waits(cluster, job):
            cluster.queue.discard(job)
            cluster.queue.add(job)
            return True
    return False
