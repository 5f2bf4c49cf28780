"""A tenant's hard limits: what is refused at once, what waits, and what a job gets by default.

Refused is what only an edit of the job or of the tenant could cure; what others' ends could cure
waits. Limits are never exceeded; lowering one below the use ends nothing that runs. Keys that a
stored document lacks limit nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpuyard.errors import FieldFault
from gpuyard.model import mig
from gpuyard.model.gpus import GpuRequest
from gpuyard.model.quantities import (
    counted,
    first_named,
    format_days,
    format_duration,
    parse_duration_s,
)
from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core import ledger, selection
from gpuyard_coordinator.core.cluster import Use
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node

Document = Mapping[str, Any]
_MIB_PER_GIB: Final = 1024
_BY_DEFAULT: Final = "by the tenant's default"
_NAMED: Final = 5
"""Models that a refusal names."""
_SLACK: Final = 1e-6
"""Limits are written in decimal fractions, which floats hold nearly."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The limit that keeps a job waiting; numbers in the limit's own unit."""

    tenant: str
    name: str
    """As under `limits`; those of each job with `per_job.` before it."""
    used: float
    asked: float
    max: float

    @property
    def text(self) -> str:
        most = f"{self.used:g} of {self.max:g} used"
        if self.is_per_job:
            most = f"at most {self.max:g}"
        return f"quota: {self.name} of tenant {self.tenant}: {most}, {self.asked:g} asked"

    @property
    def is_per_job(self) -> bool:
        """True where what the tenant uses does not count."""
        return self.name.startswith("per_job.")

    @property
    def is_impossible(self) -> bool:
        """True where it stays so whatever else of the tenant ends."""
        return self.asked > self.max + _SLACK


@dataclass(frozen=True, slots=True)
class Ask:
    """What one more job would add to its tenant's use, as far as it is known."""

    milli: int
    gpu_memory_mib: int = 0

    def times(self, members: int) -> "Ask":
        """What so many members of a gang add that each add this."""
        return Ask(self.milli * members, self.gpu_memory_mib * members)


@dataclass(frozen=True, slots=True)
class Left:
    """What one more job may add at most; None where nothing bounds it."""

    milli: float | None
    gpu_memory_mib: float | None

    def part(self, members: int) -> "Left":
        """What each of so many members of a gang may add: an equal part, so that whatever their
        places, all together stay within it."""
        milli, memory = self.milli, self.gpu_memory_mib
        return Left(
            None if milli is None else milli / members,
            None if memory is None else memory / members,
        )

    def takes(self, ask: Ask) -> bool:
        is_within = self.milli is None or ask.milli <= self.milli + _SLACK
        memory = self.gpu_memory_mib
        return is_within and (memory is None or ask.gpu_memory_mib <= memory + _SLACK)


def left(document: Document | None, use: Use) -> Left | None:
    """None where neither GPUs nor their memory are limited."""
    limits, per_job = _part(document, "limits"), _part(document, "per_job")
    milli: list[float] = []
    if (gpus := limits.get("gpus")) is not None:
        milli.append(gpus * WHOLE_GPU_MILLI - use.milli)
    if (gpus := per_job.get("max_gpus")) is not None:
        milli.append(gpus * WHOLE_GPU_MILLI)
    memory = limits.get("gpu_memory_gib")
    if memory is not None:
        memory = memory * _MIB_PER_GIB - use.gpu_memory_mib
    return Left(min(milli, default=None), memory) if milli or memory is not None else None


@lru_cache(maxsize=4096)
def least_ask(shape: Shape) -> Ask:
    """What a job adds at least, a gang with all its members, before its place is known."""
    if shape.is_share:
        percent = shape.share_core_percent
        milli = 0 if percent is None else ledger.percent_milli(percent)
        return Ask(milli, shape.share_mib or 0).times(shape.nodes)
    if shape.mig is not None:
        return Ask(shape.gpus * mig.milli_of(shape.mig)).times(shape.nodes)
    named = sum(map(mig.is_uuid, shape.gpu_ids))
    count = 1 if shape.all_gpus else shape.gpus + len(shape.gpu_ids) - named
    return Ask(count * WHOLE_GPU_MILLI + named * mig.LEAST_MILLI).times(shape.nodes)


def depends_on_place(document: Document | None, shape: Shape) -> bool:
    """True where how much of a limit a job takes is known only once its GPUs are."""
    if not shape.wants_gpus:
        return False
    is_sized = shape.all_gpus or shape.share_mib is not None or shape.names_instances
    counts = (_part(document, "limits").get("gpus"), _part(document, "per_job").get("max_gpus"))
    is_counted = any(most is not None for most in counts)
    return (is_sized and is_counted) or _part(document, "limits").get("gpu_memory_gib") is not None


def ask_of(node: Node, shape: Shape, uuids: Sequence[str]) -> Ask:
    """What a grant of these GPUs adds."""
    milli = memory = 0
    for uuid in uuids:
        if (granted := ledger.grant(node.gpus[uuid], shape)) is not None:
            milli += granted["milli"]
            memory += ledger.memory_of(node, granted)
    return Ask(milli, memory)


def cheapest(node: Node, shape: Shape, uuids: Sequence[str]) -> list[str]:
    """The choice among GPUs that a shape fits on which adds least, in the order given."""
    if shape.is_share:
        asks = {uuid: ask_of(node, shape, [uuid]) for uuid in uuids}
        least = min(uuids, key=lambda uuid: (asks[uuid].milli, asks[uuid].gpu_memory_mib))
        return [least]
    if shape.all_gpus or shape.gpu_ids:
        return list(uuids)
    by_size = sorted(uuids, key=lambda uuid: node.gpus[uuid].facts["memory_total_mib"] or 0)
    chosen = set(by_size[: shape.gpus])
    return [uuid for uuid in uuids if uuid in chosen]


def limit_hit(tenant: str, document: Document | None, use: Use, ask: Ask) -> LimitHit | None:
    """The first limit that one more job would exceed; None if it may run."""
    for name, used, asked, most in _rows(document, use, ask):
        if most is not None and asked > 0 and used + asked > most + _SLACK:
            return LimitHit(tenant, name, used, asked, most)
    return None


def _rows(
    document: Document | None, use: Use, ask: Ask
) -> Iterator[tuple[str, float, float, float | None]]:
    """(name, used, asked, most) of each limit."""
    limits, per_job = _part(document, "limits"), _part(document, "per_job")
    gpus, memory = ask.milli / WHOLE_GPU_MILLI, ask.gpu_memory_mib / _MIB_PER_GIB
    held, held_memory = use.milli / WHOLE_GPU_MILLI, use.gpu_memory_mib / _MIB_PER_GIB
    yield "per_job.max_gpus", 0, gpus, per_job.get("max_gpus")
    yield "gpus", held, gpus, limits.get("gpus")
    yield "gpu_memory_gib", held_memory, memory, limits.get("gpu_memory_gib")
    yield "running_jobs", use.running_jobs, 1, limits.get("running_jobs")


def over(document: Document, use: Use, queued: int) -> list[str]:
    """Names of the limits that the use exceeds, after one was lowered."""
    limits = _part(document, "limits")
    now = {
        "gpus": use.milli / WHOLE_GPU_MILLI,
        "gpu_memory_gib": use.gpu_memory_mib / _MIB_PER_GIB,
        "running_jobs": use.running_jobs,
        "queued_jobs": queued,
    }
    return [
        name
        for name, used in now.items()
        if (most := limits.get(name)) is not None and used > most + _SLACK
    ]


def refusal(
    tenant: str,
    document: Document | None,
    spec: Mapping[str, Any],
    shape: Shape,
    queued: int,
    tasks: int = 1,
) -> tuple[EndReason, FieldFault] | None:
    """Why a job, which stands for so many tasks, is refused under its tenant's document as it
    stands; None if it may wait."""
    if document is None:
        return None
    for field, text in _never(f"of tenant {tenant}", document, spec, shape):
        return EndReason.QUOTA_IMPOSSIBLE, FieldFault(field, "quota_impossible", text)
    if is_queue_full(document, queued, tasks):
        most = _part(document, "limits")["queued_jobs"]
        if tasks > most > 0:
            text = f"{tasks} tasks asked, limits.queued_jobs of tenant {tenant} is {most}"
            return EndReason.QUOTA_IMPOSSIBLE, FieldFault("array", "quota_impossible", text)
        text = f"tenant {tenant} has {counted(queued, 'queued jobs')}, its limit is {most}"
        text += f"; the array has {tasks} tasks" if tasks > 1 else ""
        return EndReason.QUEUE_FULL, FieldFault("", "queue_full", text)
    return None


def is_queue_full(document: Document | None, queued: int, tasks: int = 1) -> bool:
    """True where so many jobs more may not be queued, not even such as would start at once."""
    most = _part(document, "limits").get("queued_jobs")
    return most is not None and queued + tasks > most


def _never(
    of_tenant: str, document: Document, spec: Mapping[str, Any], shape: Shape
) -> Iterator[tuple[str, str]]:
    """(field, why) of what no end of another job and no new node could cure."""
    limits, per_job = _part(document, "limits"), _part(document, "per_job")
    gpus = least_ask(shape).milli / WHOLE_GPU_MILLI
    for name, most in (
        ("per_job.max_gpus", per_job.get("max_gpus")),
        ("limits.gpus", limits.get("gpus")),
    ):
        if most is not None and (gpus > most + _SLACK or (most == 0 and shape.wants_gpus)):
            yield "gpus", f"{gpus:g} asked, {name} {of_tenant} is {most:g}"
    memory, most = (shape.share_mib or 0) * shape.nodes, limits.get("gpu_memory_gib")
    if most is not None and (memory > most * _MIB_PER_GIB or (most == 0 and shape.wants_gpus)):
        yield "gpus", f"{memory} MiB asked, limits.gpu_memory_gib {of_tenant} is {most:g}"
    if shape.wants_gpus and shape.models == ():
        yield "gpus", f"models {of_tenant} is empty: it may use no GPU"
    elif shape.wants_gpus and not selection.may_have_an_allowed_model(shape):
        asked = " and ".join(str(line) for line in shape.where if line.key == "gpu-name")
        allowed = first_named(shape.models or (), _NAMED)
        yield "where", f"{asked} asked, models {of_tenant} allows only {allowed}"
    if limits.get("running_jobs") == 0:
        yield "", f"limits.running_jobs {of_tenant} is 0"
    runtime, cap = spec.get("max_runtime"), per_job.get("max_runtime")
    if runtime and cap and parse_duration_s(runtime) > parse_duration_s(cap):
        text = f"{_days(runtime)} asked, per_job.max_runtime {of_tenant} is {_days(cap)}"
        yield "max_runtime", text


def with_defaults(
    spec: dict[str, Any], document: Document | None
) -> tuple[dict[str, Any], list[str]]:
    """The spec that runs, with what the tenant's document fills in or caps, and words for it."""
    per_job, notes = _part(document, "per_job"), list[str]()
    if not per_job:
        return spec, notes
    spec = dict(spec)
    count = per_job.get("default_gpus")
    if count and spec["gpus"] is None:
        spec["gpus"] = GpuRequest(count=count).requested()
        notes.append(f"gpus is {count} {_BY_DEFAULT}")
    gpus = spec["gpus"]
    held = (gpus["count"] or len(gpus["ids"])) if gpus else 0
    for key in ("cpus", "memory_mib"):
        per_gpu = per_job.get(f"default_{key}_per_gpu")
        if per_gpu and held and spec.get(key) is None:
            spec[key] = per_gpu * held
            notes.append(f"{key} is {spec[key]:g} {_BY_DEFAULT}")
    runtime = per_job.get("default_runtime") or per_job.get("max_runtime")
    if runtime and spec.get("max_runtime") is None:
        spec["max_runtime"] = format_duration(parse_duration_s(runtime))
        notes.append(f"max_runtime is {_days(runtime)} {_BY_DEFAULT}")
    cap = per_job.get("max_priority")
    if cap is not None and spec["priority"] > cap:
        spec["priority"] = cap
        notes.append(f"priority is capped to {cap}")
    return spec, notes


def _days(duration: str) -> str:
    return format_days(parse_duration_s(duration))


def _part(document: Document | None, name: str) -> Mapping[str, Any]:
    return (document or {}).get(name) or {}
