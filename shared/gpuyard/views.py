"""What every reader is shown: jobs (INTERFACES table B) and nodes (table C).

One module for the API, the CLI, the SDK and the web page. Keys are always present; unknown is
None, never 0; times are RFC 3339 UTC; units are in names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired

from gpuyard._typing import TypedDict
from gpuyard.messages import AttemptDocument, Event, GrantedGpu, JobDocument
from gpuyard.model import mig
from gpuyard.model.arrays import parse_array
from gpuyard.model.gpus import GpusRequested
from gpuyard.model.node import (
    ForeignProcess,
    GpuFacts,
    GpuSample,
    Health,
    MigFacts,
    NodeFacts,
    NodeReason,
)
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.states import HOLDING_STATES, GpuHealth
from gpuyard.model.verdicts import Verdict

NOT_ENFORCED = "audited: not yet"
"""What a share says of itself until its limit is watched."""
UNKNOWN_HEALTH: Health = {"state": GpuHealth.UNHEALTHY, "reason": "gpu_sample_stale", "since": None}


class HeldGpu(TypedDict):
    """A GPU (or a part of one) that an attempt holds."""

    uuid: str
    index: int | None
    milli: int
    memory_mib: int | None
    core_percent: int | None
    enforced: str
    """exclusive, hard, mps or audited."""


class ArrayView(TypedDict):
    """What became of an array's tasks."""

    tasks: int
    at_once: int | None
    """How many may be under way at once; None: not limited."""
    waiting: str | None
    """Numbers of those that were not handed out yet, as `5-99`: they are in no list of jobs."""
    states: dict[str, int]
    """How many of all are in which state."""


class JobView(TypedDict):
    """One element of `gpuyard jobs --json`; the last three keys are in `job --json` alone."""

    v: int
    id: str
    name: str | None
    tenant: str
    user: str
    user_verified: bool
    labels: dict[str, str]
    state: str
    reason: str | None
    exit_code: int | None
    message: str | None
    verdict: Verdict | None
    image: str | None
    image_digest: str | None
    command: list[str] | None
    priority: int | None
    preemptible: bool
    borrowed: bool
    gpus_requested: GpusRequested
    milli_gpu: int | None
    node: str | None
    node_state: str | None
    attempt: int | None
    gpus: list[HeldGpu]
    isolation: str | None
    """`none` where the job runs as a plain process; None where it runs in a container."""
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    max_runtime_s: float | None
    stop_requested_at: str | None
    queue_position: int | None
    expected_start_at: str | None
    """Of a queued job for which a node is reserved: when it starts at the latest, RFC 3339."""
    nodes: list[str]
    """Where it is or was last: of a gang the nodes of its members, by rank."""
    array: ArrayView | None
    """Set for an array."""
    spec: NotRequired[dict[str, Any]]
    attempts: NotRequired[list[dict[str, Any]]]
    events: NotRequired[list[Event]]


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


def milli_requested(requested: Mapping[str, Any], held: Sequence[GrantedGpu] = ()) -> int | None:
    """milli-GPU of a request: 1000 per whole GPU, a part of that per MIG instance; None while `all`,
    a share or a named instance is not placed."""
    named = requested["ids"]
    if held:
        return sum(gpu["milli"] for gpu in held)
    if requested["all"] or requested["memory_mib"] is not None or any(map(mig.is_uuid, named)):
        return None
    if requested["core_percent"] is not None:
        return round(float(requested["core_percent"]) * 10)
    if requested.get("mig") is not None:
        return mig.milli_of(requested["mig"]) * int(requested["count"])
    return 1000 * (int(requested["count"]) or len(named))


def _held(gpus: Iterable[GrantedGpu], index_of: Mapping[str, int]) -> list[HeldGpu]:
    return [
        {
            "uuid": gpu["uuid"],
            "index": index_of.get(gpu["uuid"]),
            "milli": gpu["milli"],
            "memory_mib": gpu["memory_mib"],
            "core_percent": gpu["core_percent"],
            "enforced": _enforced(gpu),
        }
        for gpu in gpus
    ]


def _enforced(gpu: GrantedGpu) -> str:
    if mig.is_uuid(gpu["uuid"]):
        return "hard"
    return "exclusive" if gpu["memory_mib"] is None else NOT_ENFORCED


def job_view(
    document: JobDocument,
    *,
    node_state: str | None = None,
    runtime: str | None = None,
    gpu_index: Mapping[str, int] | None = None,
    queue_position: int | None = None,
    expected_start_at: str | None = None,
    verdict: Verdict | None = None,
    state: str | None = None,
    tasks: Mapping[str, int] | None = None,
) -> JobView:
    """A stored job as readers see it; what the document cannot know comes as arguments, for an
    array that lives its state and how many of its tasks are in which."""
    spec = document["spec"]
    last: AttemptDocument | None = document["attempts"][-1] if document["attempts"] else None
    is_holding = document["state"] in HOLDING_STATES
    held = held_gpus(last) if last and is_holding else []
    requested = spec.get("gpus") or _NO_GPUS
    max_runtime = spec.get("max_runtime")
    return {
        "v": 1,
        "id": document["id"],
        "name": spec.get("name"),
        "tenant": document["tenant"],
        "user": document["user"],
        "user_verified": document["user_verified"],
        "labels": spec.get("labels") or {},
        "state": state or document["state"],
        "reason": document["reason"],
        "exit_code": document["exit_code"],
        "message": document["message"],
        "verdict": verdict if verdict is not None else document["verdict"],
        "image": spec.get("image"),
        "image_digest": last["image_digest"] if last else None,
        "command": spec.get("command"),
        "priority": spec.get("priority"),
        "preemptible": bool(spec.get("preemptible")),
        "borrowed": False,
        "gpus_requested": requested,
        "milli_gpu": milli_requested(requested, held),
        "node": last["node"] if last and document["state"] != "queued" else None,
        "node_state": node_state if is_holding else None,
        "attempt": last["attempt"] if last else None,
        "gpus": _held(held, gpu_index or {}),
        "isolation": "none" if runtime == "process" else None,
        "submitted_at": document["submitted_at"],
        "started_at": document["started_at"],
        "ended_at": document["ended_at"],
        "max_runtime_s": parse_duration_s(max_runtime) if max_runtime else None,
        "stop_requested_at": last["stop_requested_at"] if last and is_holding else None,
        "queue_position": queue_position,
        "expected_start_at": expected_start_at,
        "nodes": _nodes(document, last),
        "array": _array_view(document, tasks),
    }


def _nodes(document: JobDocument, last: AttemptDocument | None) -> list[str]:
    if last is None or document["state"] == "queued":
        return []
    return [part["node"] for part in last.get("members") or [last]]


def _array_view(document: JobDocument, tasks: Mapping[str, int] | None) -> ArrayView | None:
    array, text = document.get("array"), document["spec"].get("array")
    if array is None or not text:
        return None
    numbers = parse_array(text)
    is_left = (
        document["state"] == "queued" and array["stop"] is None and array["next"] < len(numbers)
    )
    return {
        "tasks": len(numbers),
        "at_once": numbers.limit,
        "waiting": numbers.text(array["next"]) if is_left else None,
        "states": dict(array["ended"] if tasks is None else tasks),
    }


def held_gpus(attempt: AttemptDocument) -> list[GrantedGpu]:
    """What an attempt holds, a gang's with all its members."""
    return [gpu for part in attempt.get("members") or [attempt] for gpu in part["gpus"]]


_NO_GPUS: GpusRequested = {
    "count": 0,
    "all": False,
    "ids": [],
    "memory_mib": None,
    "core_percent": None,
    "mig": None,
}
_ATTEMPT_KEYS = (
    "attempt",
    "node",
    "reason",
    "exit_code",
    "message",
    "assigned_at",
    "started_at",
    "ended_at",
    "container_id",
    "gpus",
    "next_allowed_because",
    "usage",
)


def job_detail(view: JobView, document: JobDocument, events: Sequence[Event]) -> JobView:
    """`view` with the three rows that only `gpuyard job` shows."""
    attempts = [
        _attempt(attempt) | {"members": [_member(m) for m in attempt["members"]]}
        if "members" in attempt
        else _attempt(attempt)
        for attempt in document["attempts"]
    ]
    return {**view, "spec": document["spec"], "attempts": attempts, "events": list(events)}


def _attempt(attempt: AttemptDocument) -> dict[str, Any]:
    shown = {key: attempt[key] for key in _ATTEMPT_KEYS}  # type: ignore[literal-required]
    return shown | {"fenced": attempt.get("fenced", False), "gpus": held_gpus(attempt)}


def _member(member: AttemptDocument) -> dict[str, Any]:
    """One member of a gang; `attempt` and `next_allowed_because` are the whole's."""
    shown = _attempt(member)
    del shown["attempt"], shown["next_allowed_because"], shown["assigned_at"]
    return {"rank": member.get("rank"), "state": member["state"]} | shown


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
        "health": sample["health"] if sample else UNKNOWN_HEALTH,
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


class LimitView(TypedDict):
    """A limit that binds, in its own unit."""

    scope: str
    name: str
    used: float
    asked: float
    max: float


class FullVerdict(TypedDict):
    code: str
    message: str
    since: str | None
    counts: dict[str, int]
    """Nodes by the code that binds there."""
    limit: LimitView | None
    impossible_now: bool
    """True where no known node could ever hold the job."""


Unit = Literal["GPUs", "instances", "MiB", "CPUs"]


class ReasonView(TypedDict):
    """Why a node does not take a job; with `where_mismatch` the line of the request that fails."""

    code: str
    asked: int | float | str | None
    """A number in `unit`, or a line such as `gpu-memory>=24`."""
    have: int | float | str | None
    """What the node has of it now; the values of its label where a line fails, None for none. A text
    where nothing was asked is to be told instead of the code."""
    unit: Unit | None
    """None where `asked` and `have` are no numbers."""


class NodeFit(TypedDict):
    name: str
    fits: bool
    reasons: list[ReasonView]


class Forecast(TypedDict):
    """When a job that waits starts, as time limits stand."""

    expected_start_at: str | None
    """RFC 3339: by then there is room for it; sooner where jobs end before their limits, later where
    a job before it takes the place. None where nobody can tell."""
    node: str | None
    text: str
    """The same in words, or why nobody can tell."""


class WhyView(TypedDict):
    """`gpuyard why --json` (INTERFACES table D); `job` and `state` are None for a dry run."""

    v: int
    job: str | None
    state: str | None
    verdict: FullVerdict | None
    nodes: list[NodeFit]
    forecast: NotRequired[Forecast | None]
    """None where it does not wait, or waits for something else than room and limits."""
    changes: list[dict[str, Any]]
    """Each with `kind` and `text`, and what else that kind has."""


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
