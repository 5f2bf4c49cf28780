"""The yard as the leader holds it: one mutable `Cluster`, written by `apply` alone."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from gpuyard.messages import JobDocument, Token
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core.ordering import Queue
from gpuyard_coordinator.core.state import Job, Node, Settings

RECENTLY_DONE_KEPT: Final = 20_000


@dataclass(slots=True)
class Use:
    """What a tenant's live jobs hold."""

    milli: int = 0
    gpu_memory_mib: int = 0
    running_jobs: int = 0


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
    recently_done: OrderedDict[JobKey, JobDocument] = field(default_factory=OrderedDict)
    """Jobs that ended of late: a look-up made before their end must not be believed."""
    next_submit_seq: int = 1
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Documents that operators wrote, in their kept form; a tenant without one is not limited."""
    use: dict[str, Use] = field(default_factory=dict)
    """What live jobs hold, by tenant; derived, never stored."""
    tenants_eased: set[str] = field(default_factory=set)
    """Tenants whose limits may bind less since the planner last looked."""
    unreadable: list[str] = field(default_factory=list)
    """Stored documents that recovery could not understand."""
    nodes_changed: set[str] = field(default_factory=set)
    """Nodes whose room changed since the planner last looked."""

    def use_of(self, tenant: str) -> Use:
        return self.use.setdefault(tenant, Use())

    def remember_done(self, document: JobDocument) -> None:
        key = (document["tenant"], document["id"])
        self.recently_done[key] = document
        self.recently_done.move_to_end(key)
        while len(self.recently_done) > RECENTLY_DONE_KEPT:
            self.recently_done.popitem(last=False)
