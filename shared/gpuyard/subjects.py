"""Every subject, stream, bucket and key of the yard, in one place.

A name that becomes part of a subject has been checked by `gpuyard.model.ids` before; these
functions only put tokens together.
"""

from typing import Final

# Streams and the subjects they capture.
SUBMIT_STREAM: Final = "GPUYARD_SUBMIT"
SUBMIT_ALL: Final = "gpuyard.submit.>"
EVENTS_STREAM: Final = "GPUYARD_EVENTS"
EVENTS_ALL: Final = "gpuyard.events.>"
LOGS_STREAM: Final = "GPUYARD_LOGS"
LOGS_ALL: Final = "gpuyard.logs.>"
AUDIT_STREAM: Final = "GPUYARD_AUDIT"
AUDIT_ALL: Final = "gpuyard.audit.>"
USAGE_STREAM: Final = "GPUYARD_USAGE"
USAGE_ALL: Final = "gpuyard.usage.>"

# The bucket that holds the state; it is also the stream KV_gpuyard.
BUCKET: Final = "gpuyard"
STATE_STREAM: Final = "KV_gpuyard"
STATE_ALL: Final = "$KV.gpuyard.>"
LEASE_KEY: Final = "leader.lease"
EPOCH_KEY: Final = "leader.epoch"
YARD_KEY: Final = "leader.yard"
COMMIT_KEY: Final = "leader.commit"
MIX_KEY: Final = "mix"

# Core subjects.
BEAT_ALL: Final = "gpuyard.beat.*"
API_ALL: Final = "gpuyard.api.*.*.*"
STANDBY_QUEUE: Final = "standbys"
LEADER: Final = "gpuyard.coordinator.leader"
"""The leader answers here, so that standbys know that it does."""
PRESENCE: Final = "gpuyard.coordinator.presence"
OPERATOR_TENANT: Final = "_"
UNKNOWN_USER: Final = "_"

# Private inboxes: a request is answered only if its reply subject starts with the caller's own.
AGENTS_INBOX: Final = "_INBOX.a"
TENANTS_INBOX: Final = "_INBOX.t"
COORDINATOR_INBOX: Final = "_INBOX.coordinator"


def submit(tenant: str, user: str | None = None) -> str:
    return f"gpuyard.submit.{tenant}" if user is None else f"gpuyard.submit.{tenant}.{user}"


def parse_submit(subject: str) -> tuple[str, str | None]:
    """(tenant, user or None) of a submit subject; raises ValueError on any other shape."""
    tokens = subject.split(".")
    if len(tokens) not in (3, 4) or tokens[:2] != ["gpuyard", "submit"]:
        raise ValueError(f"not a submit subject: {subject}")
    return tokens[2], tokens[3] if len(tokens) == 4 else None


def api(tenant: str, user: str, operation: str) -> str:
    return f"gpuyard.api.{tenant}.{user}.{operation}"


def parse_api(subject: str) -> tuple[str, str, str]:
    """(tenant, user, operation) of an API subject; raises ValueError on any other shape."""
    tokens = subject.split(".")
    if len(tokens) != 5 or tokens[:2] != ["gpuyard", "api"]:
        raise ValueError(f"not an API subject: {subject}")
    return tokens[2], tokens[3], tokens[4]


def event(tenant: str, job: str, kind: str, n: int) -> str:
    return f"gpuyard.events.{tenant}.{job}.{kind}.{n}"


def events_of(tenant: str, job: str | None = None) -> str:
    return f"gpuyard.events.{tenant}.>" if job is None else f"gpuyard.events.{tenant}.{job}.>"


def logs(tenant: str, job: str, attempt: int, node: str) -> str:
    return f"gpuyard.logs.{tenant}.{job}.{attempt}.{node}"


def logs_of(tenant: str, job: str) -> str:
    return f"gpuyard.logs.{tenant}.{job}.>"


def audit(tenant: str, action: str) -> str:
    return f"gpuyard.audit.{tenant}.{action}"


def beat(node: str) -> str:
    return f"gpuyard.beat.{node}"


def parse_beat(subject: str) -> str:
    """The node of a beat subject; raises ValueError on any other shape."""
    tokens = subject.split(".")
    if len(tokens) != 3 or tokens[:2] != ["gpuyard", "beat"]:
        raise ValueError(f"not a beat subject: {subject}")
    return tokens[2]


def wanted(node: str) -> str:
    return f"gpuyard.wanted.{node}"


def command(node: str, name: str) -> str:
    return f"gpuyard.command.{node}.{name}"


def agent_inbox(node: str) -> str:
    return f"{AGENTS_INBOX}.{node}"


def tenant_inbox(tenant: str, user: str) -> str:
    return f"{TENANTS_INBOX}.{tenant}.{user}"


def state(key: str) -> str:
    """The subject behind a key of the bucket."""
    return f"$KV.{BUCKET}.{key}"


def job_key(tenant: str, job: str) -> str:
    return f"job.{tenant}.{job}"


def done_key(tenant: str, job: str) -> str:
    return f"done.{tenant}.{job}"


def node_key(node: str) -> str:
    return f"node.{node}"


def tenant_key(tenant: str) -> str:
    return f"tenant.{tenant}"


def share_key(tenant: str) -> str:
    return f"share.{tenant}"


def out_key(n: int) -> str:
    return f"out.{n}"


def wal_key(epoch: int, n: int) -> str:
    """The n-th commit of the leader whose epoch has that sequence."""
    return f"wal.{epoch}.{n}"


def parse_wal(key: str) -> tuple[int, int]:
    """(epoch, n) of such a key; raises ValueError on any other shape."""
    prefix, epoch, n = key.split(".")
    if prefix != "wal":
        raise ValueError(f"not the key of a commit: {key}")
    return int(epoch), int(n)
