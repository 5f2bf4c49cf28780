"""Every body that crosses the bus or is stored on it, as typed plain dictionaries.

Rules: `v` is 1 in every body; fields are only ever added; unknown fields are ignored on read; a
change that breaks a reader is a new kind. Times are RFC 3339 UTC with `Z` unless a name says
otherwise. Doors that read what others wrote validate against these types.
"""

from typing import Any, Final, Literal, NotRequired

from gpuyard._typing import TypedDict
from gpuyard.model.node import GpuSample, NodeFacts, NodeReason
from gpuyard.model.verdicts import Verdict

VERSION: Final = 1
MAX_SPEC_BYTES: Final = 64 * 1024
MAX_LOG_CHUNK_BYTES: Final = 64 * 1024
MAX_WANTED_BYTES: Final = 768 * 1024

STALE_INVENTORY: Final = "stale inventory"
"""How the message of a refused start begins whose decision was made on an outdated inventory: it
is planned again at no charge."""

POLICY_REFUSED: Final = "the node's policy does not allow"
"""How the message of a start begins that its node's policy refuses: another node may allow it."""

RUNTIME_REFUSED: Final = "the node's runtime cannot do that"
"""How the message of a start begins that a bare process cannot honour: another node's runtime
may."""

Token = tuple[int, int]
"""The fencing token: (yard generation, sequence of leader.epoch); compared in that order."""


class GrantedGpu(TypedDict):
    """What an attempt holds of one GPU; 1000 milli is the whole of it."""

    uuid: str
    milli: int
    memory_mib: int | None
    core_percent: int | None


class StopOrder(TypedDict):
    """How to end an attempt: `signal` first, SIGKILL after `grace_s`."""

    reason: str
    signal: str
    grace_s: float


class GangPlace(TypedDict):
    """What one member of a gang is told of the gang; it meets the others at (`address`, `port`),
    where rank 0 is."""

    rank: int
    size: int
    address: str
    port: int
    may_start: bool
    """False: the container is made and not started, since others are not as far yet."""


class WantedEntry(TypedDict):
    """One attempt that a node shall run, or stop where `stop` is not None.

    It is for (`machine_id`, `boot_id`) alone: an agent on another machine or boot starts nothing.
    """

    tenant: str
    job: str
    attempt: int
    user: str
    name: str | None
    machine_id: str
    boot_id: str
    generation: int
    """Inventory generation the decision was made on; an agent refuses a stale one."""
    gpus: list[GrantedGpu]
    spec: dict[str, Any]
    """The normalised JobSpec."""
    spec_sha256: str
    stop: StopOrder | None
    fence_s: NotRequired[float | None]
    """The attempt must be over this long after the last renewal of the node's lease, whatever else
    works (`on_partition: stop_after`); None or absent: it goes on while the bus is away."""
    gang: NotRequired[GangPlace]
    """The attempt is one member of a gang."""


class WantedDocument(TypedDict):
    """The whole wanted set of one node; (token, revision) orders documents."""

    v: int
    yard: str
    node: str
    token: list[int]
    revision: int
    entries: list[WantedEntry]


class Applied(TypedDict):
    """Which wanted document is stored on the agent's disk."""

    token: list[int]
    revision: int


class AttemptUsage(TypedDict):
    gpu_seconds: float
    utilization_mean_percent: float | None
    memory_peak_mib: int | None


class PullProgress(TypedDict):
    """Bytes of the layers known so far; `total_bytes` grows while layers are discovered."""

    done_bytes: int
    total_bytes: int


class AttemptReport(TypedDict):
    """What an agent knows of one attempt, from the moment it accepted it."""

    tenant: str
    job: str
    attempt: int
    state: Literal["accepted", "preparing", "running", "stopping", "ended"]
    container_id: str | None
    image_digest: str | None
    started_at: str | None
    ended_at: str | None
    reason: str | None
    exit_code: int | None
    message: str | None
    pull: PullProgress | None
    usage: AttemptUsage | None
    log_chunks: int
    """Log chunks published so far, the end markers included."""
    unexpected: bool
    """True for a container of ours that no wanted document names."""
    fenced: NotRequired[bool]
    """True while the keeper holds the attempt's fence on its disk: time alone proves its end."""
    prepared: NotRequired[bool]
    """True while a gang's member has its container made and waits for the others."""
    wanted: NotRequired[WantedEntry | None]
    """What it was started from, told while the node adopts and no document of the yard's new
    generation names it; None: known, and told with a later beat, since not all fit one message."""


class Beat(TypedDict):
    """A node's whole picture, every `beat_s` and at once on change, with a reply subject.

    Order is (boot_id, started_ns, seq), never wall clock.
    """

    v: int
    yard: str | None
    """The yard the agent's disk belongs to; None before its first document."""
    node: str
    machine_id: str
    boot_id: str
    instance: str
    """A random id per agent process and node."""
    started_ns: int
    """Start of that process on the boot clock."""
    seq: int
    ts: str
    applied: Applied | None
    adopting: bool
    generation: int
    facts: NodeFacts
    sample_age_s: float | None
    samples: list[GpuSample]
    reasons: list[NodeReason]
    attempts: list[AttemptReport]
    stopping: bool
    """The agent is shutting down for good (`gpuyard down`): its attempts are being stopped."""
    self_stop: NotRequired[bool]
    """True while the host's keeper answers, which ends fenced attempts without the agent."""


class BeatReply(TypedDict):
    """The leader's answer; `wanted` is the whole document where the agent's is older."""

    v: int
    yard: str
    token: list[int]
    lease_s: float
    status: Literal["ok", "duplicate_name"]
    message: str | None
    wanted: WantedDocument | None
    log_chunks: dict[str, int]
    """Chunks stored per attempt, keyed `<tenant>/<job>/<attempt>`."""


class LogChunk(TypedDict):
    """A piece of one stream of an attempt. `n` counts over both streams from 0."""

    v: int
    attempt: int
    n: int
    stream: Literal[1, 2]
    offset: int
    """Bytes of this stream before this chunk, those cut included."""
    at: str
    data: bytes
    lost_bytes: int
    """Bytes cut right before this chunk, because of the job's log limit."""
    end: bool
    """True on the last chunk of the attempt (one for both streams)."""


class StoredPiece(TypedDict):
    stream: Literal[1, 2]
    offset: int
    data: bytes


class LogsReply(TypedDict):
    """What an agent still has from there on; `end` is True where nothing more will come."""

    v: int
    pieces: list[StoredPiece]
    end: bool
    message: str | None
    """Why there is nothing, where that is so."""


class Event(TypedDict):
    """One state change of a job; `seq` counts within the job from 1."""

    v: int
    seq: int
    at: str
    tenant: str
    job: str
    attempt: int | None
    kind: str
    state: str
    node: str | None
    reason: str | None
    message: str | None
    actor: str | None
    data: dict[str, Any]


class AuditRecord(TypedDict):
    """Who did what; the last six names are those that auditors ask for."""

    v: int
    actor: str
    before: Any
    after: Any
    user: str
    namespace: str
    gpu_request: dict[str, Any] | None
    actual_usage: dict[str, Any] | None
    timestamp: str
    action: str


class AttemptDocument(TypedDict):
    """One try of a job, as stored and as shown."""

    attempt: int
    node: str
    machine_id: str
    boot_id: str
    generation: int
    state: str
    reason: str | None
    exit_code: int | None
    message: str | None
    assigned_at: str
    started_at: str | None
    ended_at: str | None
    container_id: str | None
    image_digest: str | None
    gpus: list[GrantedGpu]
    next_allowed_because: str | None
    usage: AttemptUsage | None
    log_chunks: int
    stop: StopOrder | None
    stop_requested_at: str | None
    fenced: NotRequired[bool]
    members: NotRequired[list["AttemptDocument"]]
    """Of a gang's attempt, by rank; what it holds is in theirs. The other keys tell of the whole,
    and `node` is that of rank 0."""
    meeting: NotRequired[list[Any] | None]
    """(address, port) where a gang's members meet."""
    may_start: NotRequired[bool]
    """Every member of the gang was prepared: all of them start."""
    ended_by: NotRequired[int | None]
    """Rank of the member whose end is that of the whole gang; None where none has failed."""
    rank: NotRequired[int]
    """Of one member of a gang."""


class ArrayDocument(TypedDict):
    """What was made of an array's tasks so far; the spec says which there are."""

    next: int
    """Position of the first that was not handed out."""
    ahead: list[int]
    """Positions behind it that were."""
    ended: dict[str, int]
    """How many are over, by final state; those that never will start are among them."""
    worst: list[Any] | None
    """[reason, exit code, words] of the end with the largest exit code."""
    stop: list[Any] | None
    """[reason, actor, message] once all are to end."""


class JobDocument(TypedDict):
    """A job as stored at `job.<tenant>.<id>`, and at `done.<tenant>.<id>` once it is over."""

    v: int
    id: str
    tenant: str
    user: str
    user_verified: bool
    spec: dict[str, Any]
    spec_sha256: str
    state: str
    reason: str | None
    exit_code: int | None
    message: str | None
    verdict: Verdict | None
    submitted_at: str
    submit_seq: int
    """Order of acceptance in the yard; breaks ties of age."""
    started_at: str | None
    ended_at: str | None
    events: int
    """Events emitted so far; the next one has this number plus 1."""
    attempts: list[AttemptDocument]
    not_charged: int
    """Attempts that ended before the container started and cost the job nothing."""
    avoid: NotRequired[list[str]]
    """Nodes that failed the job and that it is kept off."""
    not_before: NotRequired[str | None]
    """A retry waits until then; None or absent where nothing is waited for."""
    hold: NotRequired[list[str] | None]
    """[by, since] while somebody keeps it from starting."""
    after: NotRequired[list[list[str]]]
    """[job, when] of each that it still waits for, of those that its spec names."""
    array: NotRequired[ArrayDocument | None]
    """Set for an array."""
    age_seq: NotRequired[int | None]
    """A task's age in the queue, where that is not its own `submit_seq`."""


class NodeDocument(TypedDict):
    """What is kept of a node at `node.<node>` across leaders."""

    v: int
    name: str
    machine_id: str
    boot_id: str
    scheduling: str
    scheduling_reason: str | None
    drain_deadline_at: NotRequired[str | None]
    cordons: NotRequired[dict[str, list[str | None]]]
    """(reason, since) by UUID of each cordoned GPU."""
    aside: NotRequired["PutAside | None"]
    """Set where job after job failed on the node."""
    forgotten_by: NotRequired[str | None]
    """The operator who said that the node is gone, while its attempts are being ended."""
    told_in: NotRequired[int | None]
    """The yard's generation in which the node has told all that it runs: one that is older was
    before a restore."""
    given_up_in: NotRequired[int | None]
    """The yard's generation in which nothing waits for that any more, since it was silent."""
    facts: NodeFacts
    generation: int
    last_beat_at: str | None


class PutAside(TypedDict):
    """A node that takes no work since it failed job after job, until a trial goes well."""

    reason: str
    """End reason of the last failure."""
    message: str
    since: str
    until: str
    """When one job may try it."""
    backoff_s: float
    """How long that was put off; the next failure doubles it."""
    trial: list[str | int] | None
    """(tenant, job, attempt) of the job that tries it."""


class OutRecord(TypedDict):
    """Effects of one commit that are still to be published, in order."""

    v: int
    messages: list["OutMessage"]


class OutMessage(TypedDict):
    subject: str
    body: dict[str, Any]


class ErrorBody(TypedDict):
    code: str
    message: str
    field: str | None
    hint: str | None
    errors: NotRequired[list[dict[str, Any]]]


class ErrorReply(TypedDict):
    v: int
    error: ErrorBody


class Page(TypedDict):
    """The reply of a list operation; `next` is the cursor of the next page or None."""

    v: int
    items: list[Any]
    next: str | None
