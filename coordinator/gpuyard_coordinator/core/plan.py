"""One cycle of planning: from the queue and the placer to placements and words for the rest.

Numbered as in the design: (1) events were applied before; (3) order; (4) filters and (5) packing
behind the placer; (8) the caller commits by applying the events returned. A plan right after its
commit is empty: shapes that were refused are not asked again until room grew.
"""

import heapq
from dataclasses import dataclass, field

from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.events import Assigned, StillQueued
from gpuyard_coordinator.core.explain import explain
from gpuyard_coordinator.core.ledger import memory_of
from gpuyard_coordinator.core.packing import Placement, Placer, size_of
from gpuyard_coordinator.core.state import Now, Order, Shape

EXPLANATION_KEPT_S = 1.0
"""A burst of equal jobs on a full yard is explained once in this time, not once per job."""


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
    _explained: dict[Shape, tuple[float, str, str]] = field(default_factory=dict)

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
        waiting = []
        for job in sorted(jobs, key=lambda job: job.order):
            if self.cluster.queue.position(job) is not None:
                code, message = self._explain(job.shape, now)
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
        if self._limit_hit(shape, quota.least_ask(shape)) is not None:
            return None
        placement = self.placer.place(shape)
        if placement is None:
            return None
        ask = self.ask_of(shape, placement)
        if self._limit_hit(shape, ask) is not None:
            self.placer.release(shape, placement)
            return None
        planned = self._planned.setdefault(shape.tenant, Use())
        planned.milli += ask.milli
        planned.gpu_memory_mib += ask.gpu_memory_mib
        planned.running_jobs += 1
        return placement

    def ask_of(self, shape: Shape, placement: Placement) -> quota.Ask:
        """What a placement adds to its tenant's use."""
        node = self.cluster.nodes[placement.node]
        grants = size_of(node, shape, placement)
        memory = sum(memory_of(node, granted) for granted in grants)
        return quota.Ask(sum(granted["milli"] for granted in grants), memory)

    def _limit_hit(self, shape: Shape, ask: quota.Ask) -> quota.LimitHit | None:
        document = self.cluster.tenants.get(shape.tenant)
        if document is None:
            return None
        held, planned = self.cluster.use_of(shape.tenant), self._planned.get(shape.tenant, Use())
        use = Use(
            milli=held.milli + planned.milli,
            gpu_memory_mib=held.gpu_memory_mib + planned.gpu_memory_mib,
            running_jobs=held.running_jobs + planned.running_jobs,
        )
        return quota.limit_hit(shape.tenant, document, use, ask)

    def preview(self, shape: Shape) -> Placement | None:
        """Where one more job of a shape would go now; nothing is kept of it."""
        self._look_at_changes()
        self._planned.clear()
        placement = self._within_limits(shape)
        if placement is not None:
            self.placer.release(shape, placement)
        return placement

    def _explain(self, shape: Shape, now: Now) -> tuple[str, str]:
        kept = self._explained.get(shape)
        if kept is None or now.mono - kept[0] > EXPLANATION_KEPT_S:
            if len(self._explained) > 1000:
                self._explained.clear()
            code, message = explain(self.cluster, shape)
            kept = self._explained[shape] = (now.mono, str(code), message)
        return kept[1], kept[2]
