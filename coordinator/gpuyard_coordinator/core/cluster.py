"""The yard as the leader holds it: one mutable `Cluster`, written by `apply` alone."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from gpuyard.messages import Token
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.deadlines import Deadlines
from gpuyard_coordinator.core.history import History
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.ordering import Queue
from gpuyard_coordinator.core.recently_done import RecentlyDone
from gpuyard_coordinator.core.reservations import Reservations
from gpuyard_coordinator.core.state import AttemptRef, ImageRecord, Job, Node, Now, Settings


@dataclass(slots=True)
class Use:
    """What a tenant's live jobs hold."""

    milli: int = 0
    gpu_memory_mib: int = 0
    running_jobs: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0


@dataclass(slots=True)
class LiveTasks:
    """Tasks of one array that live, in the order in which they came."""

    fresh: dict[JobKey, None] = field(default_factory=dict)
    """Without an attempt yet."""
    begun: dict[JobKey, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.begun)


@dataclass(slots=True)
class Cluster:
    yard: str
    token: Token
    settings: Settings = field(default_factory=Settings)
    jobs: dict[JobKey, Job] = field(default_factory=dict)
    """Jobs that are not over."""
    nodes: dict[str, Node] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    beat_order: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Names of nodes, the one that beat longest ago first."""
    recently_done: RecentlyDone = field(default_factory=RecentlyDone)
    """Jobs that ended of late: a look-up made before their end must not be believed."""
    next_submit_seq: int = 1
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Documents that operators wrote, in their kept form; a tenant without one is not limited."""
    use: dict[str, Use] = field(default_factory=dict)
    """What live jobs hold, by tenant; derived, never stored."""
    gang_ports: dict[str, set[int]] = field(default_factory=dict)
    """Ports at which gangs meet, by the address; derived, never stored."""
    history: dict[str, History] = field(default_factory=dict)
    """What each tenant held of late, up to the last change of it."""
    clock_zero_ms: int = 0
    """When the monotonic clock of this leader read 0, in milliseconds since 1970."""
    wall_zero_ms: int = 0
    """The same by what the wall clock says now, which may have been set since."""
    reservations: Reservations = field(default_factory=Reservations)
    """Nodes whose room is kept for a waiting job; the planner's own, derived, never stored."""
    tenants_eased: set[str] = field(default_factory=set)
    """Tenants whose limits may bind less since the planner last looked."""
    unreadable: list[str] = field(default_factory=list)
    """Stored documents that recovery could not understand."""
    mix: Mix = field(default_factory=Mix.prior)
    """What is submitted of late."""
    priced: Mix = field(default_factory=Mix.prior)
    """The copy of it that the placer goes by; replaced as a whole, and stored then."""
    nodes_changed: set[str] = field(default_factory=set)
    """Nodes whose room changed since the planner last looked."""
    fences: Deadlines[tuple[str, AttemptRef]] = field(default_factory=Deadlines)
    """When attempts on silent nodes may be proven over by their fences."""
    delays: Deadlines[JobKey] = field(default_factory=Deadlines)
    """When jobs have waited long enough for a time of theirs."""
    deadlines: Deadlines[JobKey] = field(default_factory=Deadlines)
    """When jobs are to have ended."""
    dependants: dict[JobKey, dict[JobKey, None]] = field(default_factory=dict)
    """Jobs that wait for an end, by the job whose end it is."""
    ended_awaited: dict[JobKey, str] = field(default_factory=dict)
    """Final states of jobs whose dependants are still to be told."""
    tasks: dict[JobKey, LiveTasks] = field(default_factory=dict)
    """Of arrays, those that are handed out and not over."""
    arrays_due: dict[JobKey, bool] = field(default_factory=dict)
    """Arrays that may have tasks to hand out, or an end; True: tasks are to be ended."""
    images: OrderedDict[str, ImageRecord] = field(default_factory=OrderedDict)
    """The images started of late, the one used longest ago first."""
    images_moved: set[str] = field(default_factory=set)
    """Those of which other nodes are known to have them than when the planner last looked."""
    images_held: set[str] = field(default_factory=set)
    """Those whose jobs wait, since they failed on several nodes."""
    aside: set[str] = field(default_factory=set)
    """Nodes that are put aside."""
    draining: set[str] = field(default_factory=set)
    """Nodes whose drain has a deadline."""
    forgetting: set[str] = field(default_factory=set)
    """Nodes whose attempts are being ended on an operator's word."""
    revision_retired: int = 0
    """The highest revision of a wanted document that this leader told a node since forgotten. A
    node that joins starts above it: its agent may be a forgotten one, and refuses what is older."""
    shrank: bool = False
    """A node went or changed: jobs may be kept off the only nodes that are left to them."""
    untold: set[str] = field(default_factory=set)
    """Nodes of before a restore that have not told yet what they run: no job starts meanwhile."""
    began_at: str = ""
    """When this leader took over, RFC 3339 UTC."""

    def clock_ms(self, now: Now) -> int:
        """Milliseconds since 1970, as this leader's wall clock would say had nobody set it."""
        return self.clock_zero_ms + int(now.mono * 1000)

    def use_of(self, tenant: str) -> Use:
        return self.use.setdefault(tenant, Use())
