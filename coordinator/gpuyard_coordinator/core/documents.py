"""Between the core's nouns and the documents that are stored or sent; nothing is decided here."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from gpuyard.messages import (
    AttemptDocument,
    JobDocument,
    NodeDocument,
    WantedDocument,
    WantedEntry,
)
from gpuyard.model import where
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.states import AttemptState, JobState, Scheduling
from gpuyard.model.verdicts import Verdict
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Cordon, Job, Node, Shape

DEFAULT_GRACE_S: Final = 30.0
NO_FAULT_OF_THE_JOB: Final = "before the container started, no fault of the job; not charged"
"""How `next_allowed_because` ends where another node is tried for free."""
_ENTRY_BYTES: Final = 512
_ENTRY_GPU_BYTES: Final = 128
_GPUS_OF_ALL: Final = 16


def grace_s(spec: dict[str, Any]) -> float:
    """Seconds between SIGTERM and SIGKILL of a job."""
    text = spec.get("stop_grace")
    return parse_duration_s(text) if text else DEFAULT_GRACE_S


def shape_of(
    spec: dict[str, Any], tenant: str = "", document: Mapping[str, Any] | None = None
) -> Shape:
    """What placing a normalised spec depends on, with what its tenant's `document` adds."""
    gpus = spec.get("gpus") or {}
    count, ids = int(gpus.get("count") or 0), tuple(gpus.get("ids") or ())
    devices = _GPUS_OF_ALL if gpus.get("all") else count + len(ids)
    return Shape(
        gpus=count,
        all_gpus=bool(gpus.get("all")),
        gpu_ids=ids,
        cpu_milli=round(float(spec.get("cpus") or 0) * 1000),
        memory_mib=int(spec.get("memory_mib") or 0),
        node=spec.get("node"),
        tenant=tenant,
        where=tuple(where.parse(line) for line in spec.get("where") or ()),
        prefer=tuple(where.parse(line) for line in spec.get("prefer") or ()),
        tolerate=tuple(spec.get("tolerate") or ()),
        share_mib=gpus.get("memory_mib"),
        share_core_percent=gpus.get("core_percent"),
        models=None if (models := (document or {}).get("models")) is None else tuple(models),
        is_shared_across_tenants=bool((document or {}).get("share_across_tenants")),
        document_kib=_document_kib(spec, devices),
    )


def _document_kib(spec: dict[str, Any], devices: int) -> int:
    """A power of two, so that specs of about the same size share a shape."""
    size = len(json.dumps(spec)) + _ENTRY_BYTES + devices * _ENTRY_GPU_BYTES
    return 1 << (size // 1024).bit_length()


def failed_to_start(attempts: Iterable[Attempt]) -> frozenset[str]:
    """Nodes that a job is kept off, since one of its attempts could not be started there."""
    return frozenset(
        attempt.node
        for attempt in attempts
        if (attempt.next_allowed_because or "").endswith(NO_FAULT_OF_THE_JOB)
    )


def job_document(job: Job, verdict: Verdict | None = None) -> JobDocument:
    return {
        "v": 1,
        "id": job.id,
        "tenant": job.tenant,
        "user": job.user,
        "user_verified": job.user_verified,
        "spec": job.spec,
        "spec_sha256": job.spec_sha256,
        "state": str(job.state),
        "reason": job.reason,
        "exit_code": job.exit_code,
        "message": job.message,
        "verdict": verdict,
        "submitted_at": job.submitted_at,
        "submit_seq": job.submit_seq,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "events": job.events,
        "attempts": [_attempt_document(attempt) for attempt in job.attempts],
        "not_charged": job.not_charged,
    }


def _attempt_document(attempt: Attempt) -> AttemptDocument:
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
    }


def job_from_document(document: JobDocument, tenant: Mapping[str, Any] | None = None) -> Job:
    """A stored job as it stood at its last commit; reads back equal to what was written.

    `tenant` is the document of its tenant, if there is one.
    """
    spec = document["spec"]
    attempts = [_attempt_from_document(attempt) for attempt in document["attempts"]]
    shape = shape_of(spec, document["tenant"], tenant)
    shape = replace(shape, excluded=failed_to_start(attempts))
    return Job(
        tenant=document["tenant"],
        id=document["id"],
        user=document["user"],
        user_verified=document["user_verified"],
        spec=spec,
        spec_sha256=document["spec_sha256"],
        shape=shape,
        priority=int(spec.get("priority", 50)),
        submitted_at=document["submitted_at"],
        submit_seq=document["submit_seq"],
        state=JobState(document["state"]),
        reason=document["reason"],
        exit_code=document["exit_code"],
        message=document["message"],
        started_at=document["started_at"],
        ended_at=document["ended_at"],
        events=document["events"],
        attempts=attempts,
        not_charged=document["not_charged"],
    )


def _attempt_from_document(document: AttemptDocument) -> Attempt:
    state = document["state"]
    return Attempt(
        number=document["attempt"],
        node=document["node"],
        machine_id=document["machine_id"],
        boot_id=document["boot_id"],
        generation=document["generation"],
        gpus=document["gpus"],
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
    }


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
    )


def wanted_document(cluster: Cluster, node: Node) -> WantedDocument:
    """The whole wanted set of a node, derived from its jobs (docs/decisions)."""
    return {
        "v": 1,
        "yard": cluster.yard,
        "node": node.name,
        "token": list(cluster.token),
        "revision": node.revision,
        "entries": [
            *(_wanted_entry(job, attempt) for job, attempt in node.attempts.values()),
            *(_refusing_entry(node, key) for key in sorted(node.refused)),
        ],
    }


def _refusing_entry(node: Node, key: AttemptRef) -> WantedEntry:
    """Tells an adopting agent to end an attempt that nobody wants any more."""
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
        "stop": {"reason": "cancelled", "signal": "SIGTERM", "grace_s": DEFAULT_GRACE_S},
    }


def _wanted_entry(job: Job, attempt: Attempt) -> WantedEntry:
    return {
        "tenant": job.tenant,
        "job": job.id,
        "attempt": attempt.number,
        "user": job.user,
        "name": job.spec.get("name"),
        "machine_id": attempt.machine_id,
        "boot_id": attempt.boot_id,
        "generation": attempt.generation,
        "gpus": attempt.gpus,
        "spec": job.spec,
        "spec_sha256": job.spec_sha256,
        "stop": attempt.stop,
    }
