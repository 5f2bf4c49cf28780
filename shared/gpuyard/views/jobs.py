"""What readers are shown of jobs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NotRequired

from gpuyard._typing import TypedDict
from gpuyard.messages import AttemptDocument, Event, GrantedGpu, JobDocument
from gpuyard.model import mig
from gpuyard.model.arrays import parse_array
from gpuyard.model.gpus import GpusRequested
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.states import HOLDING_STATES
from gpuyard.model.verdicts import Verdict

_NOT_ENFORCED: Final = "audited: not yet"
"""What a share says of itself until its limit is watched."""
_NO_GPUS: Final[GpusRequested] = {
    "count": 0,
    "all": False,
    "ids": [],
    "memory_mib": None,
    "core_percent": None,
    "mig": None,
}
_ATTEMPT_KEYS: Final = (
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
    held = _held_gpus(last) if last and is_holding else []
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
        "milli_gpu": _milli_requested(requested, held),
        "node": last["node"] if last and document["state"] != "queued" else None,
        "node_state": node_state if is_holding else None,
        "attempt": last["attempt"] if last else None,
        "gpus": _held_views(held, gpu_index or {}),
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


def job_detail(view: JobView, document: JobDocument, events: Sequence[Event]) -> JobView:
    """`view` with the three rows that only `gpuyard job` shows."""
    attempts = [
        _attempt(attempt) | {"members": [_member(m) for m in attempt["members"]]}
        if "members" in attempt
        else _attempt(attempt)
        for attempt in document["attempts"]
    ]
    return {**view, "spec": document["spec"], "attempts": attempts, "events": list(events)}


def _milli_requested(requested: Mapping[str, Any], held: Sequence[GrantedGpu]) -> int | None:
    """milli-GPU of a request: 1000 per whole GPU, a part of that per MIG instance; None while
    `all`, a share or a named instance is not placed."""
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


def _held_views(gpus: Iterable[GrantedGpu], index_of: Mapping[str, int]) -> list[HeldGpu]:
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
    return "exclusive" if gpu["memory_mib"] is None else _NOT_ENFORCED


def _held_gpus(attempt: AttemptDocument) -> list[GrantedGpu]:
    """What an attempt holds, a gang's with all its members."""
    return [gpu for part in attempt.get("members") or [attempt] for gpu in part["gpus"]]


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


def _attempt(attempt: AttemptDocument) -> dict[str, Any]:
    shown = {key: attempt[key] for key in _ATTEMPT_KEYS}
    return shown | {"fenced": attempt.get("fenced", False), "gpus": _held_gpus(attempt)}


def _member(member: AttemptDocument) -> dict[str, Any]:
    """One member of a gang; `attempt` and `next_allowed_because` are the whole's."""
    shown = _attempt(member)
    del shown["attempt"], shown["next_allowed_because"], shown["assigned_at"]
    return {"rank": member.get("rank"), "state": member["state"]} | shown
