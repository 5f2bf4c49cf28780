"""Where each waiting job stands in line, across tenants.

The line is the order in which the planner would give all that wait their places, one after another,
were there room for each: by priority, then by what the tenant has had for its weight, which grows
with each of its jobs before, then by age. Time moves it, as shares decay and jobs end.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpuyard_coordinator.core import fairshare, quota
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.history import Amounts
from gpuyard_coordinator.core.ordering import Place
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Now, Order

_KEPT_PER_ENTRY_S: Final = 100e-6
"""To form the line takes some 3 us for each waiting job and node: kept so long, a thirtieth of a
core at most goes into it, however many ask."""


@dataclass(slots=True)
class Lineup:
    """The line as it was a moment ago: a second where 10,000 jobs wait, and as the number is."""

    cluster: Cluster
    _positions: dict[Order, int] = field(default_factory=dict)
    _until: float = -inf

    def position(self, job: Job, now: float) -> int | None:
        """1 for whoever is next; None for a job that does not wait for room. `now` is monotonic.

        A job that came after the line was formed is told its place by priority and age.
        """
        by_age = self.cluster.queue.position(job)
        if by_age is None:
            return None
        if now >= self._until:
            self._form(now)
        return self._positions.get(job.order, by_age)

    def _form(self, now: float) -> None:
        line = _line(self.cluster, Now(now, ""))
        self._positions = {order: number for number, (_, order) in enumerate(line, 1)}
        self._until = now + (len(line) + len(self.cluster.nodes)) * _KEPT_PER_ENTRY_S


def _line(cluster: Cluster, now: Now) -> list[tuple[Place, Order]]:
    jobs: defaultdict[str, list[tuple[Order, Amounts]]] = defaultdict(list)
    for shape, orders in cluster.queue.by_shape.items():
        adds = _least(shape)
        jobs[shape.tenant] += [(order, adds) for order in orders]
    fleet = fairshare.whole(cluster)
    line: list[tuple[Place, Order]] = []
    for tenant, waiting in jobs.items():
        document = cluster.tenants.get(tenant)
        weight, rank = fairshare.weight_of(document), -fairshare.priority_of(document)
        past = fairshare.past_share(fairshare.history_of(cluster, tenant, now), fleet)
        gpus, cpus, memory = fairshare.amounts(cluster.use.get(tenant) or Use())
        for order, adds in sorted(waiting):
            negative, sequence, _, id = order
            share = (past + fairshare.dominant((gpus, cpus, memory), fleet)) // weight
            line.append(((rank, negative, share, sequence, id), order))
            gpus, cpus, memory = gpus + adds[0], cpus + adds[1], memory + adds[2]
    line.sort()
    return line


def _least(shape: Shape) -> Amounts:
    return (quota.least_ask(shape).milli, shape.cpu_milli, shape.memory_mib)
