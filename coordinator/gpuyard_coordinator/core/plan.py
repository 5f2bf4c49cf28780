"""One cycle of planning: from the queue and the placer to placements and words for the rest.

Numbered as in the design: (1) events were applied before; (2) quota; (3) order; (4) filters and
(5) packing behind the placer; (8) the caller commits by applying the events returned. A plan right
after its commit is empty: shapes that were refused are not asked again until room grew.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final

from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.events import Assigned, StillQueued
from gpuyard_coordinator.core.explain import RecentWords, Words
from gpuyard_coordinator.core.packing import Placement, Placer
from gpuyard_coordinator.core.state import Now, Order, Shape

UNEXPLAINED: Final = "it waits; ask for its reasons with gpuyard why"
"""What a job is told that came among more unlike ones than one turn can explain."""


@dataclass(slots=True)
class Plan:
    placements: list[Assigned] = field(default_factory=list)
    is_partial: bool = False
    """The limit was met: plan again after this one is committed."""


@dataclass(slots=True)
class Planner:
    cluster: Cluster
    placer: Placer
    _open: set[Shape] = field(default_factory=set)
    """Shapes that may fit; the others wait for room to grow."""
    _planned: dict[str, Use] = field(default_factory=dict)
    """What this plan adds to each tenant's use."""
    _recent: RecentWords = field(default_factory=RecentWords)

    @property
    def is_behind(self) -> bool:
        """True while jobs wait that no plan has looked at, or that the last one was cut short of."""
        return bool(self._open or self.cluster.queue.fresh)

    def plan(self, limit: int) -> Plan:
        """At most `limit` placements, in queue order; a shape that does not fit is passed over."""
        self._look_at_changes()
        self._planned.clear()
        queue, plan = self.cluster.queue, Plan()
        heads = [
            (orders[0], 0, shape)
            for shape in self._open
            if (orders := queue.by_shape.get(shape)) is not None
        ]
        heapq.heapify(heads)
        while heads:
            if len(plan.placements) == limit:
                plan.is_partial = True
                return plan
            order, index, shape = heads[0]
            if not self._place(order, shape, plan):
                heapq.heappop(heads)
                continue
            orders = queue.by_shape[shape]
            if index + 1 < len(orders):
                heapq.heapreplace(heads, (orders[index + 1], index + 1, shape))
            else:
                heapq.heappop(heads)
        self._open.clear()
        return plan

    def explain_new(self, keys: list[tuple[str, str]], now: Now) -> list[StillQueued]:
        """Words for jobs that came or came back in this turn and still wait, in queue order."""
        jobs = [job for key in keys if (job := self.cluster.jobs.get(key)) is not None]
        waiting, words = [], Words(self.cluster)
        for job in sorted(jobs, key=lambda job: job.order):
            if self.cluster.queue.position(job) is not None:
                found = self._recent.of(job.shape, words, now.mono)
                code, message = found or (str(VerdictCode.WAITING_TURN), UNEXPLAINED)
                waiting.append(StillQueued(job.tenant, job.id, code, message))
        return waiting

    def _look_at_changes(self) -> None:
        cluster = self.cluster
        for name in cluster.nodes_changed:
            node = cluster.nodes.get(name)
            if node is None:
                self.placer.node_removed(name)
            else:
                self.placer.node_changed(node)
        cluster.nodes_changed.clear()
        eased, cluster.tenants_eased = cluster.tenants_eased, set()
        if self.placer.take_growth():
            self._open = set(cluster.queue.by_shape)
        else:
            self._open |= cluster.queue.fresh
            if eased:
                self._open |= {s for s in cluster.queue.by_shape if s.tenant in eased}
        cluster.queue.fresh.clear()

    def _place(self, order: Order, shape: Shape, plan: Plan) -> bool:
        placement = self._within_limits(shape)
        if placement is None:
            self._open.discard(shape)
            return False
        _, _, tenant, job = order
        plan.placements.append(Assigned(tenant, job, placement.node, placement.gpus))
        return True

    def _within_limits(self, shape: Shape) -> Placement | None:
        """A reserved place that keeps the tenant within its limits, or None."""
        document = self.cluster.tenants.get(shape.tenant)
        if document is None:
            return self.placer.place(shape)
        use = self._use_with_plan(shape.tenant)
        if quota.limit_hit(shape.tenant, document, use, quota.least_ask(shape)) is not None:
            return None
        placement = self.placer.place(shape, quota.left(document, use))
        if placement is not None:
            node = self.cluster.nodes[placement.node]
            ask = quota.ask_of(node, shape, placement.gpus)
            planned = self._planned.setdefault(shape.tenant, Use())
            planned.milli += ask.milli
            planned.gpu_memory_mib += ask.gpu_memory_mib
            planned.running_jobs += 1
        return placement

    def _use_with_plan(self, tenant: str) -> Use:
        held, planned = self.cluster.use_of(tenant), self._planned.get(tenant, Use())
        return Use(
            milli=held.milli + planned.milli,
            gpu_memory_mib=held.gpu_memory_mib + planned.gpu_memory_mib,
            running_jobs=held.running_jobs + planned.running_jobs,
        )

    def preview(self, shape: Shape) -> Placement | None:
        """Where one more job of a shape would go now; nothing is kept of it."""
        self._look_at_changes()
        self._planned.clear()
        placement = self._within_limits(shape)
        if placement is not None:
            self.placer.release(shape, placement)
        self._planned.clear()
        return placement
