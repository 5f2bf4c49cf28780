"""Between the core's nouns and the documents that are stored or sent; nothing is decided here."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from gpuyard.messages import (
    ArrayDocument,
    AttemptDocument,
    GangPlace,
    JobDocument,
    NodeDocument,
    PutAside,
    WantedDocument,
    WantedEntry,
)
from gpuyard.model.arrays import parse_array
from gpuyard.model.grace import DEFAULT_STOP_GRACE_S
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.states import AttemptState, Scheduling
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import (
    Array,
    Aside,
    Attempt,
    AttemptRef,
    Cordon,
    Job,
    Meeting,
    Node,
    StopTasks,
)


def fence_s(spec: dict[str, Any]) -> float | None:
    """Seconds after its node's last lease when an attempt is ended there; None: it goes on."""
    rule = spec.get("on_partition")
    return parse_duration_s(rule["stop_after"]) if isinstance(rule, dict) else None


def job_document(job: Job) -> JobDocument:
    return cast(JobDocument, {**_job_fields(job), "spec": job.spec})


def encode_job(job: Job) -> bytes:
    """`job_document` as it is stored."""
    return fast_codec.encode({**_job_fields(job), "spec": fast_codec.Raw(job.packed_spec)})


def _job_fields(job: Job) -> dict[str, Any]:
    """A job's document but for its spec, which is packed already."""
    return {
        "v": 1,
        "id": job.id,
        "tenant": job.tenant,
        "user": job.user,
        "user_verified": job.user_verified,
        "spec_sha256": job.spec_sha256,
        "state": str(job.state),
        "reason": job.reason,
        "exit_code": job.exit_code,
        "message": job.message,
        "verdict": None,
        "submitted_at": job.submitted_at,
        "submit_seq": job.submit_seq,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "events": job.events,
        "attempts": [attempt_document(attempt) for attempt in job.attempts],
        "not_charged": job.not_charged,
        "avoid": sorted(job.shape.excluded),
        "not_before": job.not_before,
        "hold": None if job.hold is None else [*job.hold],
        "after": [[*awaited] for awaited in job.after],
        "array": None if job.array is None else _array_document(job.array),
        "age_seq": job.age_seq,
    }


def _array_document(array: Array) -> ArrayDocument:
    return {
        "next": array.next,
        "ahead": list(array.ahead),
        "ended": dict(array.ended),
        "worst": None if array.worst is None else [*array.worst],
        "stop": None if array.stop is None else [*array.stop],
    }


def array_from_document(text: str, document: ArrayDocument) -> Array:
    """An array as it was stored; `text` is that of its spec."""
    worst, stop = document["worst"], document["stop"]
    return Array(
        tasks=parse_array(text),
        next=document["next"],
        ahead=list(document["ahead"]),
        ended=dict(document["ended"]),
        worst=None if worst is None else (worst[0], worst[1], worst[2]),
        stop=None if stop is None else StopTasks(*stop),
    )


def attempt_document(attempt: Attempt) -> AttemptDocument:
    """As it is stored: a gang's with its members, which say what it holds."""
    document = _attempt_fields(attempt)
    if attempt.members or attempt.meeting:
        document["gpus"] = []
        document["members"] = [attempt_document(member) for member in attempt.members]
        document["meeting"] = list(attempt.meeting) if attempt.meeting else None
        document["may_start"] = attempt.may_start
        document["ended_by"] = attempt.ended_by
    if attempt.rank is not None:
        document["rank"] = attempt.rank
    return document


def _attempt_fields(attempt: Attempt) -> AttemptDocument:
    return {
        "attempt": attempt.number,
        "node": attempt.node,
        "machine_id": attempt.machine_id,
        "boot_id": attempt.boot_id,
        "generation": attempt.generation,
        "state": str(attempt.state) if attempt.state else "assigned",
        "reason": attempt.reason,
        "exit_code": attempt.exit_code,
        "message": attempt.message,
        "assigned_at": attempt.assigned_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "container_id": attempt.container_id,
        "image_digest": attempt.image_digest,
        "gpus": attempt.gpus,
        "next_allowed_because": attempt.next_allowed_because,
        "usage": attempt.usage,
        "log_chunks": attempt.log_chunks,
        "stop": attempt.stop,
        "stop_requested_at": attempt.stop_requested_at,
        "fenced": attempt.fenced,
    }


def attempt_from_document(document: AttemptDocument) -> Attempt:
    """A stored attempt as it stood at its job's last commit."""
    state = document["state"]
    members = [attempt_from_document(member) for member in document.get("members") or ()]
    meeting = document.get("meeting")
    return Attempt(
        number=document["attempt"],
        node=document["node"],
        machine_id=document["machine_id"],
        boot_id=document["boot_id"],
        generation=document["generation"],
        gpus=[gpu for m in members for gpu in m.gpus] if members else document["gpus"],
        assigned_at=document["assigned_at"],
        state=None if state == "assigned" else AttemptState(state),
        started_at=document["started_at"],
        ended_at=document["ended_at"],
        reason=document["reason"],
        exit_code=document["exit_code"],
        message=document["message"],
        container_id=document["container_id"],
        image_digest=document["image_digest"],
        next_allowed_because=document["next_allowed_because"],
        usage=document["usage"],
        log_chunks=document["log_chunks"],
        stop=document["stop"],
        stop_requested_at=document["stop_requested_at"],
        fenced=document.get("fenced", False),
        rank=document.get("rank"),
        members=members,
        meeting=None if meeting is None else Meeting(str(meeting[0]), int(meeting[1])),
        may_start=document.get("may_start", False),
        ended_by=document.get("ended_by"),
    )


def node_document(node: Node) -> NodeDocument:
    return {
        "v": 1,
        "name": node.name,
        "machine_id": node.machine_id,
        "boot_id": node.boot_id,
        "scheduling": str(node.scheduling),
        "scheduling_reason": node.scheduling_reason,
        "drain_deadline_at": node.drain_deadline_at,
        "cordons": {uuid: [*cordon] for uuid, cordon in node.cordons.items()},
        "facts": node.facts,
        "generation": node.generation,
        "last_beat_at": node.last_beat_at,
        "aside": None if node.aside is None else _aside_document(node.aside),
        "forgotten_by": node.forgotten_by,
        "told_in": node.told_in,
        "given_up_in": node.given_up_in,
    }


def _aside_document(aside: Aside) -> PutAside:
    return {
        "reason": aside.reason,
        "message": aside.message,
        "since": aside.since,
        "until": aside.until,
        "backoff_s": aside.backoff_s,
        "trial": None if aside.trial is None else [*aside.trial],
    }


def _aside_from_document(document: PutAside) -> Aside:
    trial = document["trial"]
    return Aside(
        reason=document["reason"],
        message=document["message"],
        since=document["since"],
        until=document["until"],
        backoff_s=document["backoff_s"],
        trial=None if trial is None else (str(trial[0]), str(trial[1]), int(trial[2])),
    )


def node_from_document(document: NodeDocument) -> Node:
    """A stored node; it takes no work before its first beat to this leader."""
    return Node(
        name=document["name"],
        machine_id=document["machine_id"],
        boot_id=document["boot_id"],
        facts=document["facts"],
        generation=document["generation"],
        scheduling=Scheduling(document["scheduling"]),
        scheduling_reason=document["scheduling_reason"],
        drain_deadline_at=document.get("drain_deadline_at"),
        cordons={
            uuid: Cordon(reason, since or "")
            for uuid, (reason, since) in (document.get("cordons") or {}).items()
        },
        last_beat_at=document["last_beat_at"],
        aside=None if (aside := document.get("aside")) is None else _aside_from_document(aside),
        forgotten_by=document.get("forgotten_by"),
        told_in=document.get("told_in"),
        given_up_in=document.get("given_up_in"),
    )


def wanted_document(cluster: Cluster, node: Node) -> WantedDocument:
    """The whole wanted set of a node, derived from its jobs (docs/decisions)."""
    return cast(WantedDocument, _wanted(cluster, node, lambda job: job.spec))


def encode_wanted(cluster: Cluster, node: Node) -> bytes:
    """`wanted_document` as it is sent, without unpacking a spec."""
    return fast_codec.encode(_wanted(cluster, node, lambda job: fast_codec.Raw(job.packed_spec)))


def _wanted(cluster: Cluster, node: Node, spec_of: Callable[[Job], Any]) -> dict[str, Any]:
    entries: list[Mapping[str, Any]] = [
        _wanted_entry(job, attempt, spec_of(job)) for job, attempt in node.attempts.values()
    ]
    entries += [_refusing_entry(node, key) for key in sorted(node.refused)]
    return {
        "v": 1,
        "yard": cluster.yard,
        "node": node.name,
        "token": list(cluster.token),
        "revision": node.revision,
        "entries": entries,
    }


def _refusing_entry(node: Node, key: AttemptRef) -> WantedEntry:
    """Tells an agent to end an attempt of its host which nobody wants any more."""
    tenant, job, attempt = key
    return {
        "tenant": tenant,
        "job": job,
        "attempt": attempt,
        "user": "_",
        "name": None,
        "machine_id": node.machine_id,
        "boot_id": node.boot_id,
        "generation": node.generation,
        "gpus": [],
        "spec": {},
        "spec_sha256": "",
        "stop": {"reason": "cancelled", "signal": "SIGTERM", "grace_s": DEFAULT_STOP_GRACE_S},
    }


def _wanted_entry(job: Job, attempt: Attempt, spec: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tenant": job.tenant,
        "job": job.id,
        "attempt": attempt.number,
        "user": job.user,
        "name": job.name,
        "machine_id": attempt.machine_id,
        "boot_id": attempt.boot_id,
        "generation": attempt.generation,
        "gpus": attempt.gpus,
        "spec_sha256": job.spec_sha256,
        "stop": attempt.stop,
        "fence_s": job.fence_s,
        "spec": spec,
    }
    whole = job.last
    if attempt.rank is not None and whole is not None:
        fields["gang"] = _gang_place(job, whole, attempt.rank)
    return fields


def _gang_place(job: Job, whole: Attempt, rank: int) -> GangPlace:
    meeting = whole.meeting
    return {
        "rank": rank,
        "size": job.shape.nodes,
        "address": meeting.address if meeting else "",
        "port": meeting.port if meeting else 0,
        "may_start": whole.may_start,
    }
