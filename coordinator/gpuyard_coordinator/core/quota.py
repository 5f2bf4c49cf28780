"""A tenant's hard limits: what is refused at once, what waits, and what a job gets by default.

Refused is what only an edit of the job or of the tenant could cure; what others' ends could cure
waits. Limits are never exceeded; lowering one below the use ends nothing that runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuyard.errors import FieldFault
from gpuyard.model.quantities import format_duration, parse_duration_s
from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core.cluster import Use
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Shape

Document = Mapping[str, Any]
_MIB_PER_GIB: Final = 1024


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The limit that keeps a job waiting; numbers in the limit's own unit."""

    tenant: str
    name: str
    used: float
    asked: float
    max: float

    @property
    def text(self) -> str:
        return (
            f"quota: {self.name} of tenant {self.tenant}: "
            f"{self.used:g} of {self.max:g} used, {self.asked:g} asked"
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """What one more job would add to its tenant's use, as far as it is known."""

    milli: int
    gpu_memory_mib: int = 0


def least_ask(shape: Shape) -> Ask:
    """What a job adds at least, before its place is known."""
    if shape.is_share:
        return Ask(round((shape.share_core_percent or 0) * 10), shape.share_mib or 0)
    count = 1 if shape.all_gpus else shape.gpus + len(shape.gpu_ids)
    return Ask(count * WHOLE_GPU_MILLI)


def limit_hit(tenant: str, document: Document | None, use: Use, ask: Ask) -> LimitHit | None:
    """The first limit that one more job would exceed; None if it may run."""
    limits = (document or {}).get("limits") or {}
    rows = (
        ("gpus", use.milli / WHOLE_GPU_MILLI, ask.milli / WHOLE_GPU_MILLI),
        (
            "gpu_memory_gib",
            use.gpu_memory_mib / _MIB_PER_GIB,
            ask.gpu_memory_mib / _MIB_PER_GIB,
        ),
        ("running_jobs", use.running_jobs, 1),
    )
    for name, used, asked in rows:
        most = limits.get(name)
        if most is not None and asked > 0 and used + asked > most + 1e-9:
            return LimitHit(tenant, name, used, asked, most)
    return None


def over(document: Document, use: Use, queued: int) -> list[str]:
    """Names of the limits that the use exceeds, after one was lowered."""
    limits = document.get("limits") or {}
    now = {
        "gpus": use.milli / WHOLE_GPU_MILLI,
        "gpu_memory_gib": use.gpu_memory_mib / _MIB_PER_GIB,
        "running_jobs": use.running_jobs,
        "queued_jobs": queued,
    }
    return [
        name
        for name, used in now.items()
        if limits.get(name) is not None and used > limits[name] + 1e-9
    ]


def refusal(
    tenant: str, document: Document | None, spec: Mapping[str, Any], shape: Shape, queued: int
) -> tuple[EndReason, FieldFault] | None:
    """Why a job can never run under its tenant's document as it stands; None if it may wait."""
    if document is None:
        return None
    limits, per_job = document["limits"], document["per_job"]
    gpus = least_ask(shape).milli / WHOLE_GPU_MILLI
    for name, most in (("per_job.max_gpus", per_job["max_gpus"]), ("limits.gpus", limits["gpus"])):
        if most is not None and gpus > most:
            return _never("gpus", f"{gpus:g} asked, {name} of tenant {tenant} is {most:g}")
    memory, most = shape.share_mib, limits["gpu_memory_gib"]
    if memory is not None and most is not None and memory > most * _MIB_PER_GIB:
        text = f"{memory} MiB asked, limits.gpu_memory_gib of tenant {tenant} is {most:g}"
        return _never("gpus", text)
    if limits["running_jobs"] == 0:
        return _never("", f"limits.running_jobs of tenant {tenant} is 0")
    runtime, cap = spec.get("max_runtime"), per_job["max_runtime"]
    if runtime and cap and parse_duration_s(runtime) > parse_duration_s(cap):
        text = f"{runtime} asked, per_job.max_runtime of tenant {tenant} is {cap}"
        return _never("max_runtime", text)
    if limits["queued_jobs"] is not None and queued >= limits["queued_jobs"]:
        text = f"tenant {tenant} has {queued} queued jobs, its limit is {limits['queued_jobs']}"
        return EndReason.QUEUE_FULL, FieldFault("", "queue_full", text)
    return None


def _never(field: str, text: str) -> tuple[EndReason, FieldFault]:
    return EndReason.QUOTA_IMPOSSIBLE, FieldFault(field, "quota_impossible", text)


def with_defaults(
    spec: dict[str, Any], document: Document | None
) -> tuple[dict[str, Any], list[str]]:
    """The spec that runs, with what the tenant's document fills in or caps, and words for it."""
    if document is None:
        return spec, []
    per_job, notes = document["per_job"], []
    spec = dict(spec)
    gpus = spec["gpus"]
    if per_job["default_gpus"] and not any(gpus[key] for key in gpus):
        spec["gpus"] = gpus | {"count": per_job["default_gpus"]}
        notes.append(f"gpus is {per_job['default_gpus']} by default")
    count = spec["gpus"]["count"] or len(spec["gpus"]["ids"])
    for key, per_gpu in (
        ("cpus", per_job["default_cpus_per_gpu"]),
        ("memory_mib", per_job["default_memory_mib_per_gpu"]),
    ):
        if per_gpu and count and spec.get(key) is None:
            spec[key] = per_gpu * count
            notes.append(f"{key} is {spec[key]:g} by default")
    runtime = per_job["default_runtime"] or per_job["max_runtime"]
    if runtime and spec.get("max_runtime") is None:
        spec["max_runtime"] = format_duration(parse_duration_s(runtime))
        notes.append(f"max_runtime is {spec['max_runtime']} by default")
    cap = per_job["max_priority"]
    if cap is not None and spec["priority"] > cap:
        spec["priority"] = cap
        notes.append(f"priority is capped to {cap}")
    return spec, notes
