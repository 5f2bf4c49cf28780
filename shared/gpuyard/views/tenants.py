"""What readers are shown of tenants."""

from typing import Any

from gpuyard._typing import TypedDict


class TenantUse(TypedDict):
    gpus: float
    gpu_memory_gib: float
    running_jobs: int
    queued_jobs: int


class TenantView(TypedDict):
    """One element of `gpuyard tenants --json`."""

    v: int
    tenant: str
    exists: bool
    """False for a tenant that has jobs and no document: it is not limited."""
    limits: dict[str, Any]
    per_job: dict[str, Any]
    models: list[str] | None
    share_across_tenants: bool
    priority: int | None
    """Before that of its jobs; unset is 50."""
    weight: int | None
    """Unset is 1."""
    used: TenantUse
    over: list[str]
    """Names of the limits below the use."""
