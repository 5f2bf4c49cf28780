"""What holds a job up apart from room and limits, for whoever looks at it."""

from gpuyard.model.states import JobState
from gpuyard.model.verdicts import Verdict
from gpuyard_coordinator.core import adoption, fencing, waiting
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Job


def holdup(cluster: Cluster, job: Job) -> Verdict | None:
    """A queued job waits for a time, or after a restore for all nodes; one that holds for word of
    its node; None for all others."""
    if job.state is JobState.QUEUED:
        return waiting.verdict(cluster, job) or adoption.verdict(cluster, job)
    return fencing.lost_verdict(cluster, job)
