"""One example of every body that crosses the bus or is stored, and the golden files of them.

`python -m tests.shared.golden_examples` writes the files that are missing. A file that exists is
never rewritten: what was released stays readable.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpuyard import codec
from gpuyard.messages import (
    AttemptDocument,
    AttemptReport,
    AuditRecord,
    Beat,
    BeatReply,
    ErrorReply,
    Event,
    JobDocument,
    LogChunk,
    NodeDocument,
    OutRecord,
    Page,
    WantedDocument,
    WantedEntry,
)
from gpuyard.model.node import GpuFacts, GpuSample, NodeFacts

GOLDEN: Final = Path(__file__).parent.parent / "golden"
_UUID: Final = "GPU-3f2a5c1e-0000-4000-8000-000000000001"
_AT: Final = "2026-05-04T12:30:15.250Z"

_GPU: Final[GpuFacts] = {
    "uuid": _UUID,
    "index": 0,
    "minor": 0,
    "name": "NVIDIA GeForce RTX 4090",
    "compute_capability": "8.9",
    "memory_total_mib": 24564,
    "memory_reserved_mib": None,
    "pci_bus_id": "00000000:01:00.0",
    "mig": None,
    "labels": {"gpu-name": "NVIDIA-GeForce-RTX-4090", "gpu-memory": "24GB"},
    "missing": ["memory_reserved_mib"],
}
_SAMPLE: Final[GpuSample] = {
    "uuid": _UUID,
    "memory_used_mib": 1200,
    "memory_free_mib": 23364,
    "memory_foreign_mib": 800,
    "utilization_percent": 7,
    "temperature_c": 41,
    "power_w": 62.5,
    "health": {"state": "healthy", "reason": None, "since": None},
    "foreign": [{"pid": 4242, "user": "mia", "container": None, "memory_mib": 800}],
    "missing": [],
}
_FACTS: Final[NodeFacts] = {
    "labels": {"zone": "a", "gpu-count": "1"},
    "driver_version": "550.54.14",
    "cuda_version": "12.4",
    "docker_version": "27.3.1",
    "agent_version": "0.1.0",
    "runtime": "docker",
    "gpu_injection": "toolkit",
    "sharing": "none",
    "cpus": 16.0,
    "memory_mib": 65536,
    "gpus": [_GPU],
    "links": [],
    "missing": [],
}
_SPEC: Final[dict[str, Any]] = {
    "image": "pytorch/pytorch:2.6.0",
    "command": ["python", "train.py"],
    "gpus": {"count": 1},
    "env": {"SEED": "17"},
    "priority": 50,
}
_WANTED_ENTRY: Final[WantedEntry] = {
    "tenant": "team-a",
    "job": "0f3k9v2m7q1x4z8c",
    "attempt": 1,
    "user": "mia",
    "name": "train",
    "machine_id": "b0a1",
    "boot_id": "c2d3",
    "generation": 4,
    "gpus": [{"uuid": _UUID, "milli": 1000, "memory_mib": None, "core_percent": None}],
    "spec": _SPEC,
    "spec_sha256": "ab" * 32,
    "stop": {"reason": "cancelled", "signal": "SIGTERM", "grace_s": 10.0},
    "fence_s": 900.0,
}
_WANTED: Final[WantedDocument] = {
    "v": 1,
    "yard": "k3x9qa",
    "node": "node-1",
    "token": [1777897815250, 42],
    "revision": 9,
    "entries": [_WANTED_ENTRY],
}
_REPORT: Final[AttemptReport] = {
    "tenant": "team-a",
    "job": "0f3k9v2m7q1x4z8c",
    "attempt": 1,
    "state": "running",
    "container_id": "9d8c7b6a",
    "image_digest": "sha256:11",
    "started_at": _AT,
    "ended_at": None,
    "reason": None,
    "exit_code": None,
    "message": None,
    "pull": {"done_bytes": 1048576, "total_bytes": 4194304},
    "usage": {
        "gpu_seconds": 12.5,
        "utilization_mean_percent": 93.25,
        "memory_peak_mib": 20480,
    },
    "log_chunks": 3,
    "unexpected": False,
    "fenced": True,
    "wanted": _WANTED_ENTRY,
}
_ATTEMPT: Final[AttemptDocument] = {
    "attempt": 1,
    "node": "node-1",
    "machine_id": "b0a1",
    "boot_id": "c2d3",
    "generation": 4,
    "state": "ended",
    "reason": "exited",
    "exit_code": 0,
    "message": None,
    "assigned_at": _AT,
    "started_at": _AT,
    "ended_at": _AT,
    "container_id": "9d8c7b6a",
    "image_digest": "sha256:11",
    "gpus": [{"uuid": _UUID, "milli": 1000, "memory_mib": None, "core_percent": None}],
    "next_allowed_because": None,
    "usage": None,
    "log_chunks": 3,
    "stop": None,
    "stop_requested_at": None,
    "fenced": True,
}

BEAT: Final[Beat] = {
    "v": 1,
    "yard": "k3x9qa",
    "node": "node-1",
    "machine_id": "b0a1",
    "boot_id": "c2d3",
    "instance": "5e4f",
    "started_ns": 123456789012345,
    "seq": 17,
    "ts": _AT,
    "applied": {"token": [1777897815250, 42], "revision": 9},
    "adopting": False,
    "generation": 4,
    "facts": _FACTS,
    "sample_age_s": 0.75,
    "samples": [_SAMPLE],
    "reasons": [{"code": "disk_low", "message": "2 GiB left", "gpu": None, "since": _AT}],
    "attempts": [_REPORT],
    "stopping": False,
    "self_stop": True,
}
BEAT_REPLY: Final[BeatReply] = {
    "v": 1,
    "yard": "k3x9qa",
    "token": [1777897815250, 42],
    "lease_s": 30.0,
    "status": "ok",
    "message": None,
    "wanted": _WANTED,
    "log_chunks": {"team-a/0f3k9v2m7q1x4z8c/1": 3},
}
LOG_CHUNK: Final[LogChunk] = {
    "v": 1,
    "attempt": 1,
    "n": 2,
    "stream": 2,
    "offset": 4096,
    "at": _AT,
    "data": b"loss 0.25\n\xff\x00",
    "lost_bytes": 0,
    "end": False,
}
EVENT: Final[Event] = {
    "v": 1,
    "seq": 3,
    "at": _AT,
    "tenant": "team-a",
    "job": "0f3k9v2m7q1x4z8c",
    "attempt": 1,
    "kind": "running",
    "state": "running",
    "node": "node-1",
    "reason": None,
    "message": "Übung läuft",
    "actor": None,
    "data": {},
}
AUDIT_RECORD: Final[AuditRecord] = {
    "v": 1,
    "actor": "mia",
    "before": None,
    "after": {"state": "cancelled"},
    "user": "mia",
    "namespace": "team-a",
    "gpu_request": {"count": 1},
    "actual_usage": None,
    "timestamp": _AT,
    "action": "cancel",
}
JOB_DOCUMENT: Final[JobDocument] = {
    "v": 1,
    "id": "0f3k9v2m7q1x4z8c",
    "tenant": "team-a",
    "user": "mia",
    "user_verified": True,
    "spec": _SPEC,
    "spec_sha256": "ab" * 32,
    "state": "succeeded",
    "reason": "exited",
    "exit_code": 0,
    "message": None,
    "verdict": {"code": "waiting_turn", "message": "2 jobs are before it", "since": _AT},
    "submitted_at": _AT,
    "submit_seq": 1001,
    "started_at": _AT,
    "ended_at": _AT,
    "events": 5,
    "attempts": [_ATTEMPT],
    "not_charged": 0,
    "avoid": ["node-2"],
    "not_before": None,
    "hold": ["alice", "2026-01-01T00:00:00.000Z"],
    "after": [["prepare", "succeeded"]],
    "array": {
        "next": 3,
        "ahead": [5],
        "ended": {"failed": 1},
        "worst": ["exited", 2, None],
        "stop": None,
    },
    "age_seq": 7,
}
NODE_DOCUMENT: Final[NodeDocument] = {
    "v": 1,
    "name": "node-1",
    "machine_id": "b0a1",
    "boot_id": "c2d3",
    "scheduling": "cordoned",
    "scheduling_reason": "new fans",
    "drain_deadline_at": "2026-06-01T12:00:00.000Z",
    "cordons": {"GPU-11111111-2222-3333-4444-555555555555": ["fan", "2026-06-01T10:00:00.000Z"]},
    "facts": _FACTS,
    "generation": 4,
    "last_beat_at": _AT,
    "aside": {
        "reason": "runtime_error",
        "message": "job after job failed, the last with runtime_error: no such device",
        "since": _AT,
        "until": "2026-05-04T12:35:15.250Z",
        "backoff_s": 300.0,
        "trial": ["team-a", "0f3k9v2m7q1x4z8c", 2],
    },
    "forgotten_by": None,
    "told_in": 1777897815250,
    "given_up_in": None,
}
OUT_RECORD: Final[OutRecord] = {
    "v": 1,
    "messages": [
        {
            "subject": "gpuyard.events.team-a.0f3k9v2m7q1x4z8c.running.3",
            "body": {"v": 1, "seq": 3},
        }
    ],
}
ERROR_REPLY: Final[ErrorReply] = {
    "v": 1,
    "error": {"code": "unknown_job", "message": "no job abcd", "field": "id", "hint": None},
}
PAGE: Final[Page] = {"v": 1, "items": [{"id": "0f3k9v2m7q1x4z8c"}], "next": "live:1001"}

EXAMPLES: Final[dict[str, Mapping[str, Any]]] = {
    "Beat": BEAT,
    "BeatReply": BEAT_REPLY,
    "WantedDocument": _WANTED,
    "LogChunk": LOG_CHUNK,
    "Event": EVENT,
    "AuditRecord": AUDIT_RECORD,
    "JobDocument": JOB_DOCUMENT,
    "NodeDocument": NODE_DOCUMENT,
    "OutRecord": OUT_RECORD,
    "ErrorReply": ERROR_REPLY,
    "Page": PAGE,
}


def golden_file(kind: str) -> Path:
    return GOLDEN / f"{kind}.bin"


def main() -> None:
    for kind, body in EXAMPLES.items():
        if not golden_file(kind).exists():
            golden_file(kind).write_bytes(codec.encode(body))


if __name__ == "__main__":
    main()
