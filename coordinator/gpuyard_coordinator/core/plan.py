"""One cycle of planning: from the queue and the placer to placements and words for the rest.

Numbered as in the design: (1) events were applied before; (3) order; (4) filters and (5) packing
behind the placer; (8) the caller commits by applying the events returned. A plan right after its
commit is empty: shapes that were refused are not asked again until room grew.
"""

import heapq
from dataclasses import dataclass, field

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.events import Assigned, StillQueued
from gpuyard_coordinator.core.explain import explain
from gpuyard_coordinator.core.packing import Placer
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
    _explained: dict[Shape, tuple[float, str, str]] = field(default_factory=dict)

    def plan(self, limit: int) -> Plan:
        """At most `limit` placements, in queue order; a shape that does not fit is passed over."""
        self._look_at_changes()
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
        if self.placer.take_growth():
            self._open = set(cluster.queue.by_shape)
        else:
            self._open |= cluster.queue.fresh
        cluster.queue.fresh.clear()

    def _place(self, order: Order, shape: Shape, plan: Plan) -> bool:
        placement = self.placer.place(shape)
        if placement is None:
            self._open.discard(shape)
            return False
        _, _, tenant, job = order
        plan.placements.append(Assigned(tenant, job, placement.node, placement.gpus))
        return True

    def _explain(self, shape: Shape, now: Now) -> tuple[str, str]:
        kept = self._explained.get(shape)
        if kept is None or now.mono - kept[0] > EXPLANATION_KEPT_S:
            if len(self._explained) > 1000:
                self._explained.clear()
            code, message = explain(self.cluster, shape)
            kept = self._explained[shape] = (now.mono, str(code), message)
        return kept[1], kept[2]
