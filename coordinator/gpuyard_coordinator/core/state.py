"""The nouns that deciding works on: jobs, attempts, nodes and GPUs with their ledger.

Plain slots dataclasses; what is stored and shown is made from them by `documents` and the views.
Only `apply` and what it calls may change them.
"""

from bisect import insort
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuyard.messages import MAX_WANTED_BYTES, AttemptUsage, GrantedGpu, StopOrder, Token
from gpuyard.model.arrays import Tasks
from gpuyard.model.ids import JobKey
from gpuyard.model.node import GpuFacts, GpuSample, NodeFacts, NodeReason
from gpuyard.model.states import AttemptState, JobState, NodeState, Scheduling
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core.shapes import Mask, Shape

AttemptRef = tuple[str, str, int]
"""(tenant, job, attempt): the unique key of an attempt."""
Order = tuple[int, int, str, str]
"""Place in the queue: larger priority first, then age, then names."""

WHOLE_GPU_MILLI: Final = 1000
DOCUMENT_KIB: Final = MAX_WANTED_BYTES // 1024
"""What the attempts of one node may take in its wanted document, which must fit one message."""


class Now(NamedTuple):
    """The time of one turn of the loop: monotonic seconds, and RFC 3339 UTC for records."""

    mono: float
    at: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Times of the yard, in seconds, and what placement tolerates."""

    beat_s: float = 2.0
    suspect_s: float = 6.0
    lost_s: float = 30.0
    fence_s: float = 900.0
    """`stop_after` of a job with retries that says nothing of partitions."""
    foreign_tolerated_mib: int = 256
    """Foreign memory up to this on a GPU does not keep jobs off it: a display server's share."""
    starvation_after_s: float = 600.0
    """A job that waited so long for room has the room of one node collected, where no time limits
    tell when some will be free."""
    min_runtime_s: float = 60.0
    """An attempt is not preempted before it had its node for so long."""


class Meeting(NamedTuple):
    """Where the members of a gang meet: the address of rank 0's node, and a port held there."""

    address: str
    port: int


@dataclass(slots=True)
class Attempt:
    """One try of a job on a node; holds its grant until it is proven over."""

    number: int
    node: str
    machine_id: str
    boot_id: str
    generation: int
    gpus: list[GrantedGpu]
    assigned_at: str
    state: AttemptState | None = None
    """None until the agent has accepted it."""
    started_at: str | None = None
    ended_at: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    message: str | None = None
    container_id: str | None = None
    image_digest: str | None = None
    next_allowed_because: str | None = None
    usage: AttemptUsage | None = None
    log_chunks: int = 0
    stop: StopOrder | None = None
    stop_requested_at: str | None = None
    introduced: tuple[Token, int] = ((0, 0), 0)
    """(token, revision) of the first wanted document of this leader that holds it."""
    gpu_memory_mib: int = 0
    """GPU memory that the grant stands for in the tenant's limit."""
    pull_reported: int | None = None
    """Bytes of the last `pulling` event; None before the first."""
    fenced: bool = False
    """The node's keeper holds the attempt's fence on its disk, as last reported."""
    silent_since: float | None = None
    """Monotonic time of its machine's last beat, once another machine has its node's name."""
    silent_at: str | None = None
    """The same as RFC 3339 UTC."""
    running_since: float | None = None
    """Monotonic receipt of the first report to this leader that it runs."""
    rank: int | None = None
    """Of one member of a gang's attempt, on its own node; None for every other attempt."""
    is_prepared: bool = False
    """As last reported: a member's container is made, and it waits for the others."""
    members: list["Attempt"] = field(default_factory=list)
    """By rank, of a gang's attempt as a whole, which holds nothing itself: its own fields tell of
    the whole, its node is that of rank 0. Of older attempts some may be left out."""
    meeting: Meeting | None = None
    """Of a gang's attempt as a whole."""
    may_start: bool = False
    """Of a gang's attempt as a whole: each of its members was prepared, so all of them start."""
    ended_by: int | None = None
    """Rank of the member whose end is that of the whole; None while none has failed."""

    @property
    def parts(self) -> list["Attempt"]:
        """What is on nodes: a gang's members, or the attempt itself."""
        return self.members or [self]


class Hold(NamedTuple):
    """Who keeps a queued job from starting, and since when (RFC 3339 UTC)."""

    by: str
    since: str


class Awaited(NamedTuple):
    """A job of the same tenant that must end first, and how: succeeded, failed or just ended."""

    job: str
    when: str


class StopTasks(NamedTuple):
    """An order to end all tasks of an array, those that never started included."""

    reason: str
    actor: str | None
    message: str


@dataclass(slots=True)
class Array:
    """What was made of an array's tasks so far. A task is handed out when it becomes a job of its
    own; before that this is all there is of it."""

    tasks: Tasks
    next: int = 0
    """Position of the first that was not handed out."""
    ahead: list[int] = field(default_factory=list)
    """Positions behind it that were handed out before their turn, sorted."""
    ended: dict[str, int] = field(default_factory=dict)
    """How many are over, by final state."""
    worst: tuple[str, int | None, str] | None = None
    """(reason, exit code, words) of the end with the largest exit code, the first of them."""
    stop: StopTasks | None = None

    @property
    def left(self) -> int:
        """How many are still to be handed out."""
        return 0 if self.stop is not None else len(self.tasks) - self.next - len(self.ahead)

    def is_left(self, position: int) -> bool:
        return self.stop is None and position >= self.next and position not in self.ahead

    def take(self, position: int) -> None:
        """One that is left is handed out."""
        insort(self.ahead, position)
        while self.ahead and self.ahead[0] == self.next:
            del self.ahead[0]
            self.next += 1


@dataclass(slots=True)
class Job:
    tenant: str
    id: str
    user: str
    user_verified: bool
    packed_spec: bytes
    """The normalised spec in msgpack, a sixth of what it takes as a dictionary."""
    name: str | None
    spec_sha256: str
    shape: Shape
    priority: int
    submitted_at: str
    submit_seq: int
    state: JobState = JobState.QUEUED
    reason: str | None = None
    exit_code: int | None = None
    message: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    events: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    not_charged: int = 0
    image: str = ""
    fence_s: float | None = None
    """How long after its node's last lease an attempt is ended there; None: it goes on."""
    not_before: str | None = None
    """When it, or its next attempt, may start, RFC 3339 UTC."""
    deadline: str | None = None
    """When it has ended or is ended, RFC 3339 UTC."""
    is_preemptible: bool = False
    """May be stopped for a job of higher priority."""
    hold: Hold | None = None
    """Set until somebody releases it."""
    after: tuple[Awaited, ...] = ()
    """What it still waits for of what its spec names."""
    array: Array | None = None
    """Set for an array, which never runs itself."""
    age_seq: int | None = None
    """A task's age: that of its array and its place there. None: `submit_seq` is its age."""

    @property
    def spec(self) -> dict[str, Any]:
        """The normalised spec, unpacked anew each time: changing it changes nothing."""
        return fast_codec.decode_own(self.packed_spec)

    @property
    def key(self) -> JobKey:
        return (self.tenant, self.id)

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def next_number(self) -> int:
        """Of its next attempt: above all that are known, which need not be all that were."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def queued_at(self) -> str:
        """Since when a queued job waits: its submission, or the end of its last attempt."""
        last = self.last
        return (last.ended_at if last else None) or self.submitted_at

    @property
    def order(self) -> Order:
        age = self.submit_seq if self.age_seq is None else self.age_seq
        return (-self.priority, age, self.tenant, self.id)


class Cordon(NamedTuple):
    """Why an operator keeps new work off a GPU, and since when (RFC 3339 UTC)."""

    reason: str | None
    since: str


class Failure(NamedTuple):
    """One job's failure in the row of those that ended on a node through no fault of the job."""

    mono: float
    at: str
    job: JobKey
    image: str
    is_about_image: bool
    """Its image may be to blame as well."""
    has_run: bool


@dataclass(slots=True)
class Aside:
    """Why and until when a node takes no work that failed job after job."""

    reason: str
    message: str
    since: str
    until: str
    backoff_s: float
    due: float = 0.0
    """`until` on this leader's monotonic clock."""
    is_open: bool = False
    """True once the back-off is over: one job may try the node."""
    trial: AttemptRef | None = None

    @property
    def takes_work(self) -> bool:
        return self.is_open and self.trial is None


@dataclass(slots=True)
class ImageRecord:
    """How the starts of one image went of late, as this leader saw them."""

    failed_on: dict[str, float] = field(default_factory=dict)
    """Monotonic time by node, since it last started anywhere."""
    has_started: bool = False
    present_on: dict[str, None] = field(default_factory=dict)
    """Nodes that have it, since an attempt ran there of late; the latest last."""
    held_since: str | None = None
    """Since when its jobs wait; None: they do not."""
    next_try: str = ""
    """About when the next of them may try, RFC 3339 UTC."""
    due: float = 0.0
    """The same on the monotonic clock."""
    backoff_s: float = 0.0
    has_tried: bool = False
    """True once the hold was over and a job of the image was let go."""
    waiting: list[Order] = field(default_factory=list)
    """A heap of jobs that wait for it; those that ended or were cancelled are still in it."""


@dataclass(slots=True)
class Gpu:
    """One device of a node with its ledger: `free_milli` is 1000 minus the sum of `grants`."""

    facts: GpuFacts
    sample: GpuSample | None = None
    free_milli: int = WHOLE_GPU_MILLI
    grants: dict[AttemptRef, int] = field(default_factory=dict)
    """milli-GPU by (tenant, job, attempt)."""
    shared_mib: int = 0
    """GPU memory that the shares among them hold."""
    cordon: Cordon | None = None


@dataclass(slots=True)
class Node:
    """A host with an agent, and everything that is granted on it."""

    name: str
    machine_id: str
    boot_id: str
    facts: NodeFacts
    generation: int
    state: NodeState = NodeState.UNREADY
    scheduling: Scheduling = Scheduling.OPEN
    scheduling_reason: str | None = None
    drain_deadline_at: str | None = None
    """When a drain ends what still runs, RFC 3339 UTC; None: never."""
    cordons: dict[str, Cordon] = field(default_factory=dict)
    """Cordoned GPUs by UUID, those included that are absent now."""
    instance: str = ""
    started_ns: int = 0
    seq: int = -1
    last_beat: float = 0.0
    """Monotonic receipt of the last accepted beat."""
    last_beat_at: str | None = None
    is_proven: bool = False
    """True once this leader's wanted document is stored on the agent's disk."""
    is_stopping: bool = False
    is_adopting: bool = False
    sample_age_s: float | None = None
    reasons: list[NodeReason] = field(default_factory=list)
    rival: str | None = None
    """Machine id that beats under the same name and was refused."""
    rival_beat: float = 0.0
    """Monotonic receipt of its last beat."""
    former_boot_id: str | None = None
    """The boot before this one, as far as this leader has seen it: its beats are late ones."""
    gpus: dict[str, Gpu] = field(default_factory=dict)
    samples: list[GpuSample] | None = field(default=None, compare=False)
    """Those of the last beat, which its GPUs have; None where that is not certain."""
    cpu_milli_used: int = 0
    memory_mib_used: int = 0
    document_kib_used: int = 0
    revision: int = 0
    """Grows whenever the wanted set changes; starts afresh with each token."""
    attempts: dict[AttemptRef, tuple[Job, Attempt]] = field(default_factory=dict)
    refused: set[AttemptRef] = field(default_factory=set)
    """Attempts that its agent reports and nobody wants: told to stop by name."""
    failures: list[Failure] = field(default_factory=list)
    """What failed here one after another of late; this leader's own count."""
    aside: Aside | None = None
    forgotten_by: str | None = None
    """The operator who said that it is gone; it leaves once its attempts are ended."""
    told_in: int | None = None
    """The yard's generation in which it has told all that it runs."""
    given_up_in: int | None = None
    """The yard's generation in which nothing waits for that any more, since it was silent."""
    masks: dict[Mask, frozenset[str] | None] = field(default_factory=dict, compare=False)
    """What `filters.matching` found for this inventory."""
    gpu_counts: tuple[int, ...] | None = field(default=None, compare=False)
    """What `yard_counts` found of its GPUs; None from when the planner has looked at a change."""
