"""What must hold of each placement, before and after it is applied."""

from gpuyard.model.states import HOLDING_STATES
from gpuyard_coordinator.core import explain, filters, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import Assigned
from gpuyard_coordinator.core.state import Job


def check_planned(cluster: Cluster, placement: Assigned) -> None:
    """A plan's placement, before it is applied, is one that the explanations allow."""
    job = cluster.jobs[placement.tenant, placement.job]
    assert explain.binding_limit(cluster, job.shape) is None
    assert len(dict(placement.places)) == len(placement.places) == job.shape.nodes
    for name, _ in placement.places:
        verdict = filters.why_not(cluster.nodes[name], job.shape, cluster.settings)
        assert verdict is None, (job.key, verdict)


def check_limits(cluster: Cluster, job: Job) -> None:
    """What has just been granted to a job keeps its tenant's document; a limit of which it takes
    nothing may be exceeded since it was lowered."""
    document = cluster.tenants.get(job.tenant)
    if document is None or job.last is None:
        return
    held = [j for j in cluster.jobs.values() if j.tenant == job.tenant]
    attempts = [j.last for j in held if j.state in HOLDING_STATES and j.last]
    parts = [p for j in held if j.last for p in j.last.parts if ledger.is_held(cluster, j, p)]
    milli = sum(gpu["milli"] for part in parts for gpu in part.gpus)
    memory_mib = sum(part.gpu_memory_mib for part in parts)
    own = sum(gpu["milli"] for gpu in job.last.gpus)
    limits, most_each = document["limits"], document["per_job"]["max_gpus"]
    for most, used, added in (
        (limits["gpus"], milli / 1000, own),
        (limits["gpu_memory_gib"], memory_mib / 1024, own),
        (limits["running_jobs"], len(attempts), 1),
        (most_each, own / 1000, own),
    ):
        assert most is None or not added or used <= most + 1e-9, f"{job.key}: {used} of {most}"


def check_neighbours(cluster: Cluster, job: Job) -> None:
    """A job has just been put beside another tenant's on a GPU only where both allow it."""
    for part in job.last.parts if job.last else ():
        for granted in part.gpus:
            gpu = cluster.nodes[part.node].gpus[granted["uuid"]]
            tenants = {tenant for tenant, _, _ in gpu.grants}
            found = [cluster.tenants.get(tenant) or {} for tenant in {*tenants, job.tenant}]
            is_open = all(document.get("share_across_tenants") for document in found)
            assert tenants == {job.tenant} or is_open, tenants
