"""What readers are shown of nodes and their GPUs."""

from typing import Any, Final

from gpuyard._typing import TypedDict
from gpuyard.model.node import (
    ForeignProcess,
    GpuFacts,
    GpuSample,
    Health,
    MigFacts,
    NodeFacts,
    NodeReason,
)
from gpuyard.model.states import GpuHealth

_UNKNOWN_HEALTH: Final[Health] = {
    "state": GpuHealth.UNHEALTHY,
    "reason": "gpu_sample_stale",
    "since": None,
}


class GrantView(TypedDict):
    tenant: str
    job: str
    attempt: int
    milli: int


class GpuView(TypedDict):
    uuid: str
    index: int
    name: str | None
    labels: dict[str, str]
    compute_capability: str | None
    memory_total_mib: int | None
    memory_reserved_mib: int | None
    memory_used_mib: int | None
    memory_free_mib: int | None
    memory_foreign_mib: int | None
    utilization_percent: int | None
    temperature_c: int | None
    power_w: float | None
    health: Health
    mig: MigFacts | None
    free_milli: int
    """What nobody is granted, be the GPU in use by others or not."""
    allocatable_milli: int
    """What of it a job could be granted now: 0 where the node or the GPU takes no new work."""
    grants: list[GrantView]
    foreign: list[ForeignProcess]
    missing: list[str]
    cordoned: dict[str, Any] | None
    """`reason` and `since` where an operator keeps new work off it."""


class NodeView(TypedDict):
    """One element of `gpuyard nodes --json`."""

    v: int
    name: str
    state: str
    scheduling: str
    reasons: list[NodeReason]
    labels: dict[str, str]
    driver_version: str | None
    cuda_version: str | None
    docker_version: str | None
    agent_version: str
    boot_id: str
    generation: int
    runtime: str
    gpu_injection: str
    sharing: str
    cpus: float | None
    cpus_free: float | None
    memory_mib: int | None
    memory_free_mib: int | None
    last_beat_at: str | None
    jobs: list[str]
    missing: list[str]
    gpus: list[GpuView]
    links: list[dict[str, Any]]


def gpu_view(
    facts: GpuFacts,
    sample: GpuSample | None,
    *,
    free_milli: int,
    allocatable_milli: int,
    grants: list[GrantView],
    cordoned: dict[str, Any] | None = None,
) -> GpuView:
    """One GPU from its facts and its last sample; without a sample nothing is guessed."""
    return {
        "uuid": facts["uuid"],
        "index": facts["index"],
        "name": facts["name"],
        "labels": facts["labels"],
        "compute_capability": facts["compute_capability"],
        "memory_total_mib": facts["memory_total_mib"],
        "memory_reserved_mib": facts["memory_reserved_mib"],
        "memory_used_mib": sample["memory_used_mib"] if sample else None,
        "memory_free_mib": sample["memory_free_mib"] if sample else None,
        "memory_foreign_mib": sample["memory_foreign_mib"] if sample else None,
        "utilization_percent": sample["utilization_percent"] if sample else None,
        "temperature_c": sample["temperature_c"] if sample else None,
        "power_w": sample["power_w"] if sample else None,
        "health": sample["health"] if sample else _UNKNOWN_HEALTH,
        "mig": facts["mig"],
        "free_milli": free_milli,
        "allocatable_milli": allocatable_milli,
        "grants": grants,
        "foreign": sample["foreign"] if sample else [],
        "missing": sorted({*facts["missing"], *(sample["missing"] if sample else ())}),
        "cordoned": cordoned,
    }


def node_view(
    *,
    name: str,
    state: str,
    scheduling: str,
    reasons: list[NodeReason],
    facts: NodeFacts,
    boot_id: str,
    generation: int,
    cpus_free: float | None,
    memory_free_mib: int | None,
    last_beat_at: str | None,
    jobs: list[str],
    gpus: list[GpuView],
) -> NodeView:
    """A node from its facts and from what the coordinator keeps of it."""
    return {
        "v": 1,
        "name": name,
        "state": state,
        "scheduling": scheduling,
        "reasons": reasons,
        "labels": facts["labels"],
        "driver_version": facts["driver_version"],
        "cuda_version": facts["cuda_version"],
        "docker_version": facts["docker_version"],
        "agent_version": facts["agent_version"],
        "boot_id": boot_id,
        "generation": generation,
        "runtime": facts["runtime"],
        "gpu_injection": facts["gpu_injection"],
        "sharing": facts["sharing"],
        "cpus": facts["cpus"],
        "cpus_free": cpus_free,
        "memory_mib": facts["memory_mib"],
        "memory_free_mib": memory_free_mib,
        "last_beat_at": last_beat_at,
        "jobs": jobs,
        "missing": facts["missing"],
        "gpus": gpus,
        "links": [dict(link) for link in facts["links"]],
    }
