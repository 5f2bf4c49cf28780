"""What can happen to the yard. `apply` takes these one at a time, in the order they came.

`ref` is a handle of the shell (a message to acknowledge, a request to answer); the core only hands
it back with the outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuyard.errors import FieldFault
from gpuyard.messages import Beat, JobDocument
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.mix import Mix


@dataclass(frozen=True, slots=True)
class Submitted:
    """A well-formed spec. `known` is the kept record of an ended job of that id, if any."""

    tenant: str
    user: str
    user_verified: bool
    id: str
    spec: dict[str, Any]
    spec_sha256: str
    sequence: int | None = None
    """Of the submission's message; None for one that came as a request."""
    note: str | None = None
    """Something that the submitter should hear with the acceptance."""
    known: JobDocument | None = None
    ended: Mapping[str, str] = field(default_factory=dict)
    """Final states, by id, of those jobs named in its `after` whose records are kept."""
    ref: object = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A submission that no edit of the yard's side could accept; `faults` say why."""

    tenant: str
    user: str
    id: str
    faults: tuple[FieldFault, ...]
    spec: dict[str, Any]
    """What could be read of it; {} for garbage."""
    sequence: int | None = None
    known: JobDocument | None = None
    ref: object = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    tenant: str
    id: str
    actor: str
    message: str | None = None
    known: JobDocument | None = None
    ref: object = None


@dataclass(frozen=True, slots=True)
class HoldRequested:
    """Somebody keeps a queued job from starting, or lets it go."""

    tenant: str
    id: str
    actor: str
    is_hold: bool
    is_over: bool = False
    """True where its record is kept as ended."""
    ref: object = None


@dataclass(frozen=True, slots=True)
class AwaitedLookedUp:
    """The record of an ended job that others wait for; `state` None: none is kept."""

    tenant: str
    id: str
    state: str | None


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """`ended` are those among the jobs of `wanted` in its reports that are kept as ended; None
    where nobody has looked, and then no job is made of such a report."""

    beat: Beat
    ref: object = None
    ended: frozenset[JobKey] | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """A placement of the planner, committed like anything else."""

    tenant: str
    job: str
    node: str
    gpus: tuple[str, ...]
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Of a gang: node and GPUs of every other member, in no order that counts."""

    @property
    def places(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ((self.node, self.gpus), *self.others)


@dataclass(frozen=True, slots=True)
class Preempted:
    """The planner stops a job, whose attempt holds, for one of higher rank."""

    tenant: str
    job: str
    by_tenant: str
    by_job: str


@dataclass(frozen=True, slots=True)
class StillQueued:
    """The planner could not place a job that has just come; `code` and `message` say why."""

    tenant: str
    job: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """An operator's word on a node, or on one GPU of it where `gpu` is not None."""

    action: Literal["cordon", "uncordon", "drain", "forget"]
    node: str
    actor: str
    gpu: str | None = None
    reason: str | None = None
    deadline_at: str | None = None
    """RFC 3339 UTC; when a drain ends what still runs."""
    ref: object = None


@dataclass(frozen=True, slots=True)
class TenantApplied:
    """A tenant's document in its kept form."""

    tenant: str
    document: dict[str, Any]
    actor: str
    ref: object = None


@dataclass(frozen=True, slots=True)
class TenantDeleted:
    tenant: str
    actor: str
    ref: object = None


@dataclass(frozen=True, slots=True)
class MixPriced:
    """From here on the placer goes by this mix, and so does whoever leads next."""

    mix: Mix


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; lateness of beats is judged."""


Event = (
    Submitted
    | Refused
    | CancelRequested
    | HoldRequested
    | AwaitedLookedUp
    | NodeBeat
    | NodeOrder
    | TenantApplied
    | TenantDeleted
    | Assigned
    | Preempted
    | StillQueued
    | MixPriced
    | Tick
)
