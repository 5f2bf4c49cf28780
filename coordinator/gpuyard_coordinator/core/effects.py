"""What `apply` wants done, as values in named buckets; the loop commits, then performs them."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from gpuyard import subjects
from gpuyard.errors import RequestError
from gpuyard.messages import AuditRecord, Event, OutMessage
from gpuyard.model.ids import JobKey
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import EventKind, JobState
from gpuyard_coordinator.core.state import Job, Now

COORDINATOR: Final = "coordinator"
"""The actor of what nobody ordered."""
MOST_KEYS: Final = 350
"""Keys that one turn may change: a commit holds 399 messages, among them the turn's events."""
MOST_KIB: Final = 4096
"""Of documents that one turn may write, about half of what a commit holds."""
_KEYS_OF_AN_END: Final = 3
"""The job's key is deleted, its record kept and its tenant's history written."""
_ATTEMPTS_IN_A_KIB: Final = 2
_GPUS_IN_A_MEMBER: Final = 4
"""Their grants take as much of a document as an attempt does without."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to whoever holds `ref`: what was changed, or an error."""

    ref: object
    key: JobKey | None = None
    node: str | None = None
    tenant: str | None = None
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class BeatOutcome:
    """How a beat is answered; `needs_wanted` says that the agent's document is older."""

    ref: object
    node: str
    status: str
    message: str | None = None
    needs_wanted: bool = False


class Done(NamedTuple):
    """The record of a job that is over, as it is stored."""

    packed: bytes
    is_early_cancel: bool = False
    """Of a cancel that came before its job."""


@dataclass(slots=True)
class Effects:
    """Everything of one turn. `jobs` and `nodes` are stored as they stand when the turn ends."""

    jobs: set[JobKey] = field(default_factory=set)
    done: dict[JobKey, Done] = field(default_factory=dict)
    """Records to keep of jobs that are over; where the job lived, its key is deleted too."""
    deleted: set[JobKey] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    """Nodes whose wanted set changed."""
    out: list[OutMessage] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    beats: list[BeatOutcome] = field(default_factory=list)
    ended: list[tuple[JobKey, int]] = field(default_factory=list)
    """Jobs that are over, each with its number of attempts."""
    forgotten: set[str] = field(default_factory=set)
    """Nodes whose record is deleted."""
    tenants: set[str] = field(default_factory=set)
    """Tenants whose document is stored, or deleted where there is none any more."""
    histories: set[str] = field(default_factory=set)
    """Tenants of whom is stored what they held of late."""
    mix: bool = False
    """The mix that the placer goes by is stored."""
    kib: int = 0
    """About how large the documents are that this turn writes, each job's at its largest."""
    _kib: dict[JobKey, int] = field(default_factory=dict)
    """Of it, what each job counts for."""

    @property
    def keys(self) -> int:
        """Keys of the store that the turn changes; its events are beside them."""
        removed = len(self.deleted) + len(self.forgotten)
        stored = len(self.jobs) + len(self.done) + len(self.nodes) + len(self.tenants)
        return stored + removed + len(self.histories) + self.mix

    def has_room(self) -> bool:
        """True if one more attempt may change or end in this turn; else it is for the next."""
        return self.keys + _KEYS_OF_AN_END <= MOST_KEYS and self.kib < MOST_KIB

    def change(self, job: Job) -> None:
        """The job is stored as it stands when the turn ends."""
        self.jobs.add(job.key)
        kib = job.shape.document_kib + len(job.attempts) // _ATTEMPTS_IN_A_KIB
        last = job.last
        if last is not None and last.members:
            kept = sum(len(attempt.members) for attempt in job.attempts)
            kib += (kept + len(last.gpus) // _GPUS_IN_A_MEMBER) // _ATTEMPTS_IN_A_KIB
        self._count(job.key, kib)

    def keep(self, key: JobKey, packed: bytes, *, is_early_cancel: bool = False) -> None:
        """This record is kept of a job that is over, or that never became one."""
        self.done[key] = Done(packed, is_early_cancel)
        self._count(key, -(-len(packed) // 1024))

    def _count(self, key: JobKey, kib: int) -> None:
        counted = self._kib.get(key, 0)
        if kib > counted:
            self.kib += kib - counted
            self._kib[key] = kib

    def emit(
        self,
        job: Job,
        kind: EventKind,
        now: Now,
        *,
        message: str | None = None,
        actor: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """One event of a job, numbered within it; the job is stored with its new count."""
        job.events += 1
        self.change(job)
        last = job.last
        body: Event = {
            "v": 1,
            "seq": job.events,
            "at": now.at,
            "tenant": job.tenant,
            "job": job.id,
            "attempt": last.number if last else None,
            "kind": str(kind),
            "state": str(job.state),
            "node": last.node if last else None,
            "reason": job.reason if job.state.is_final else (last.reason if last else None),
            "message": message,
            "actor": actor,
            "data": data or {},
        }
        subject = subjects.event(job.tenant, job.id, kind, job.events)
        self.out.append({"subject": subject, "body": cast(dict[str, Any], body)})

    def audit(
        self,
        actor: str,
        action: str,
        now: Now,
        *,
        tenant: str = "_",
        before: Any = None,
        after: Any = None,
    ) -> None:
        """A record of what an operator did, published with the events of its commit."""
        body: AuditRecord = {
            "v": 1,
            "actor": actor,
            "before": before,
            "after": after,
            "user": actor,
            "namespace": tenant,
            "gpu_request": None,
            "actual_usage": None,
            "timestamp": now.at,
            "action": action,
        }
        self.out.append({"subject": subjects.audit(tenant, action), "body": dict(body)})

    def reject(
        self,
        tenant: str,
        id: str,
        sequence: int | None,
        faults: list[dict[str, Any]],
        now: Now,
        *,
        actor: str,
        reason: EndReason = EndReason.INVALID,
    ) -> None:
        """The event of a refused submission, numbered by the submission's own sequence.

        One that came as a request is answered instead and leaves no event.
        """
        if sequence is None:
            return
        body: Event = {
            "v": 1,
            "seq": sequence,
            "at": now.at,
            "tenant": tenant,
            "job": id,
            "attempt": None,
            "kind": str(EventKind.REJECTED),
            "state": str(JobState.FAILED),
            "node": None,
            "reason": str(reason),
            "message": "; ".join(str(fault["message"]) for fault in faults),
            "actor": actor,
            "data": {"errors": faults},
        }
        subject = subjects.event(tenant, id, EventKind.REJECTED, sequence)
        self.out.append({"subject": subject, "body": dict(body)})
