"""What a new leader has to work out anew: whatever counts on its own clock, and its own counts."""

from gpuyard_coordinator.core import (
    adoption,
    fencing,
    operations,
    setaside,
    stored_history,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.deadlines import Deadlines
from gpuyard_coordinator.core.state import Now


def begin(cluster: Cluster, now: Now) -> None:
    """Files all that is due later of a state as it was stored; called once, before any event.

    Fences count from `now`. What waits for a time goes on with what is left of it. How images and
    nodes did of late is not stored: that is learned anew.
    """
    cluster.began_at = now.at
    stored_history.resume(cluster, now)
    cluster.ended_awaited.clear()
    cluster.arrays_due.clear()
    adoption.begin(cluster)
    cluster.fences, cluster.delays, cluster.deadlines = Deadlines(), Deadlines(), Deadlines()
    cluster.images.clear()
    for names in (cluster.images_held, cluster.aside, cluster.draining, cluster.forgetting):
        names.clear()
    for node in cluster.nodes.values():
        setaside.resume(cluster, node, now)
        operations.resume(cluster, node)
        for job, attempt in node.attempts.values():
            fencing.resume(cluster, node, job, attempt, now)
    for job in cluster.jobs.values():
        if job.not_before is not None or job.array is not None:
            waiting.place(cluster, job, now)
        if job.array is not None:
            cluster.arrays_due[job.key] = True
        waiting.file_deadline(cluster, job, now)
