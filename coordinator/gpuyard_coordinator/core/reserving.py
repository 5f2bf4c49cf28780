"""What is done for a job that comes first and cannot start: others are stopped for it, or a node is
kept for it. Part of a plan; what it decides is in the cluster's reservations and the plan's events.

A search looks at many nodes, so searches are rationed by time, and an impossible shape is searched
for once until the inventory changes. A job that nothing could be done for is looked at again after
`LOOK_AGAIN_S`, since time alone may change that.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core import backfill, explain, filters, gang_room, preemption
from gpuyard_coordinator.core.clearing import Planned, Site, suffices
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.deadlines import Deadlines
from gpuyard_coordinator.core.events import Preempted
from gpuyard_coordinator.core.fairshare import rank_of
from gpuyard_coordinator.core.moments import later, seconds_until
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.reservations import Reservation
from gpuyard_coordinator.core.shapes import Shape, read_shape, shape_document
from gpuyard_coordinator.core.state import Job, Node, Now

LOOK_AGAIN_S: Final = 5.0
OVERDUE_S: Final = 60.0
"""A reservation is thought over so long after its job should have started."""
COOL_DOWN_S: Final = 60.0
"""No job is stopped for one again so soon after a claim of it came to nothing."""
MOST_WAITING: Final = 32
"""Reservations beside claims, of a tenant each: each is asked about at each placement."""
MOST_NODES: Final = 256
"""Nodes looked at for one job; in a larger yard the next search goes on behind them."""
_NODES_PER_S: Final = 2_500
"""At some 40 us for a node with eight jobs a tenth of a core."""
_ASKS_PER_NODE: Final = 8
"""Only to ask whether a node could ever hold a shape costs an eighth of it."""
_BURST_S: Final = 1.0
_PLAIN: Final = (
    *("job", "order", "rank", "node", "others"),
    *("start", "start_at", "until", "is_claim"),
)
"""Of a reservation all but its shape."""
Harm = tuple[Rank, int]
OnNodes = Mapping[str, Sequence[Planned]]
"""What the plan has placed so far, by node."""


@dataclass(slots=True)
class Reserving:
    cluster: Cluster
    comes_first: Callable[[Reservation, Job], bool]
    """True if who holds it comes before a job, as the order is now."""
    _later: Deadlines[JobKey] = field(default_factory=Deadlines)
    """Jobs that are looked at again."""
    _cooling: dict[JobKey, float] = field(default_factory=dict)
    """Until when no job is stopped for these, monotonic."""
    _impossible: set[Shape] = field(default_factory=set)
    _busy_until: float = 0.0
    """Searches done so far would take until then at the rate that is allowed."""
    _next_node: int = 0
    """Where the next search begins."""
    _yielding: set[str] = field(default_factory=set)
    """Nodes with a job that may be stopped or is asked to end: elsewhere nothing is claimed."""
    _nodes: dict[Shape, list[Node]] = field(default_factory=dict)
    """Nodes that take work and might hold a shape, of this plan."""
    _doomed: set[JobKey] = field(default_factory=set)
    """Jobs that this plan stops."""
    _overtaken: set[Shape] = field(default_factory=set)
    """Of claims that ended for want of room since shapes were last told; to be looked at."""
    _by_harm: dict[tuple[Shape, Rank], list[tuple[Harm, str]]] = field(default_factory=dict)
    """A heap of nodes on which jobs might be stopped, of this plan; no harm is less than told."""

    def begin(self, now: Now, changed: AbstractSet[str], *, is_new_inventory: bool) -> set[Shape]:
        """Before a plan: ends what is over; the shapes that have to be looked at for that.
        `changed` are the nodes that are not as they were at the last plan."""
        self._nodes.clear()
        self._doomed.clear()
        self._by_harm.clear()
        for name in changed:
            self._look_at(name)
        if is_new_inventory:
            self._impossible.clear()
        self._cooling = {key: end for key, end in self._cooling.items() if end > now.mono}
        opened, self._overtaken = self._overtaken, set()
        for held in list(self.cluster.reservations.by_job.values()):
            if not self._holds(held, changed, now):
                self._end(held, now)
                opened.add(held.shape)
        while (key := self._later.take(now.mono)) is not None:
            job = self.cluster.jobs.get(key)
            if job is not None and self.cluster.queue.position(job) is not None:
                opened.add(job.shape)
        return opened

    def memory(self) -> dict[str, Any]:
        """All that outlasts a plan, the reservations among it."""
        held = self.cluster.reservations.by_job.values()
        return {
            "reservations": [
                {
                    **{name: getattr(each, name) for name in _PLAIN},
                    "shape": shape_document(each.shape),
                }
                for each in held
            ],
            "later": [[*key, due] for key, due in self._later.items()],
            "cooling": [[*key, end] for key, end in self._cooling.items()],
            "impossible": [shape_document(shape) for shape in self._impossible],
            "busy_until": self._busy_until,
            "next_node": self._next_node,
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Takes up the `memory` of another one."""
        for each in memory["reservations"]:
            kept = each | {"job": tuple(each["job"]), "order": tuple(each["order"])}
            kept["others"] = tuple(each["others"])
            kept |= {"rank": Rank(*each["rank"]), "shape": read_shape(each["shape"])}
            self.cluster.reservations.add(Reservation(**kept))
        for tenant, id, due in memory["later"]:
            self._later.file((tenant, id), due)
        self._cooling = {(tenant, id): end for tenant, id, end in memory["cooling"]}
        self._impossible = {read_shape(shape) for shape in memory["impossible"]}
        self._busy_until, self._next_node = memory["busy_until"], memory["next_node"]

    def placed(self, job: Job, nodes: Iterable[str], planned: OnNodes, now: Now) -> None:
        """What was kept for a job that has its place now is for others again. A claim of one who
        comes after it, and whose room it took, has come to nothing."""
        own = self.cluster.reservations.drop(job.key)
        kept = own.nodes if own is not None else ()
        for node in nodes:
            if node not in kept:
                self._end_overtaken(node, job.shape, planned, now)

    def review(self, planned: OnNodes, is_over: Callable[[Shape], bool], now: Now) -> set[Shape]:
        """Ends what the plan so far leaves no use for, as the begin of the next one would: its
        tenant is at a limit now, or its node takes no more work. The shapes to be looked at."""
        ended = [
            held
            for held in self.cluster.reservations.by_job.values()
            if is_over(held.shape) or any(self._is_tried(node, planned) for node in held.nodes)
        ]
        for held in ended:
            self._end(held, now)
        overtaken, self._overtaken = self._overtaken, set()
        return overtaken.union(held.shape for held in ended)

    def blocked(self, job: Job, planned: OnNodes, now: Now) -> tuple[bool, list[Preempted]]:
        """What is done for a job that has no place.

        True where others of its shape may still be helped, since room is being made for this one.
        """
        held = self.cluster.reservations.by_job.get(job.key)
        if held is not None:
            return held.is_claim, []
        may_claim, may_reserve = self._may_claim(job), self._may_reserve(job)
        nodes = self._candidates(job.shape, now) if may_claim or may_reserve else None
        if nodes:
            rank = rank_of(self.cluster, job)
            claim = self._room_by_ends(job, rank, nodes, planned, now) if may_claim else None
            if claim is not None:
                self._keep(job, rank, claim.nodes, claim.start, now, is_claim=True)
                self._doomed.update(victim.key for victim in claim.victims)
                return True, [_preempted(victim, job) for victim in claim.victims]
            if may_reserve:
                self._reserve(job, rank, self._sites(nodes, job, planned), now)
        is_possible = job.shape not in self._impossible
        if job.key not in self.cluster.reservations.by_job and is_possible:
            self._later.file(job.key, now.mono + LOOK_AGAIN_S)
        return False, []

    def _look_at(self, name: str) -> None:
        node = self.cluster.nodes.get(name)
        held = node.attempts.values() if node is not None else ()
        if any(job.is_preemptible or attempt.stop is not None for job, attempt in held):
            self._yielding.add(name)
        else:
            self._yielding.discard(name)

    def _may_claim(self, job: Job) -> bool:
        return bool(self._yielding) and job.key not in self._cooling

    def _may_reserve(self, job: Job) -> bool:
        waiting = self.cluster.reservations.waiting
        other = waiting.get(job.tenant)
        if other is None:
            return len(waiting) < MOST_WAITING
        return not self.comes_first(other, job)

    def _holds(self, held: Reservation, changed: AbstractSet[str], now: Now) -> bool:
        job = self.cluster.jobs.get(held.job)
        if job is None or now.mono >= held.until or job.shape != held.shape:
            return False
        if self.cluster.queue.position(job) is None:
            return False
        if not all(self._is_able(name, held.shape) for name in held.nodes if name in changed):
            return False
        return explain.limit_anywhere(self.cluster, held.shape) is None

    def _end_overtaken(self, node: str, shape: Shape, planned: OnNodes, now: Now) -> None:
        """Of several claims those that were made last go first."""
        for held in reversed(self.cluster.reservations.touched(node, shape, now.mono)):
            if held.is_claim and not self._has_room(held, node, planned):
                self._end(held, now)
                self._overtaken.add(held.shape)

    def _has_room(self, held: Reservation, node: str, planned: OnNodes) -> bool:
        """Whether a claim still has its place on a node once what stops there has ended."""
        job = self.cluster.jobs[held.job]
        with self.cluster.reservations.set_aside(held.job):
            site = self._site(self.cluster.nodes[node], job, planned)
        return site is not None and suffices(site, held.shape, site.stopping)

    def _is_able(self, name: str, shape: Shape) -> bool:
        node = self.cluster.nodes.get(name)
        if node is None or filters.node_block(node, shape.tolerate) is not None:
            return False
        return filters.could_hold(node, shape) is not None

    def _is_tried(self, name: str, planned: OnNodes) -> bool:
        """True for a node that was put aside and has its one job for a trial by this plan."""
        return name in planned and self.cluster.nodes[name].aside is not None

    def _end(self, held: Reservation, now: Now) -> None:
        self.cluster.reservations.drop(held.job)
        if held.is_claim:
            self._cooling[held.job] = now.mono + COOL_DOWN_S

    def _candidates(self, shape: Shape, now: Now) -> list[Node] | None:
        """None where another search must wait; empty where none takes it."""
        if shape in self._nodes:
            return self._nodes[shape]
        if shape in self._impossible:
            return []
        if self._busy_until > now.mono + _BURST_S:
            return None
        nodes = list(self.cluster.nodes.values())
        first = self._next_node % len(nodes) if nodes else 0
        found, possible, looks = list[Node](), 0, 0
        for node in chain(nodes[first:], nodes[:first]):
            looks += 1
            # The quicker question first: of a new leader's nodes hardly any takes work yet.
            is_open = filters.node_block(node, shape.tolerate) is None
            is_known = possible >= shape.nodes
            if (is_known and not is_open) or filters.could_hold(node, shape) is None:
                continue
            possible += 1
            if is_open:
                found.append(node)
            if len(found) == MOST_NODES:
                break
        self._next_node = first + looks
        cost = max(len(found), looks // _ASKS_PER_NODE)
        self._busy_until = max(self._busy_until, now.mono) + cost / _NODES_PER_S
        if possible < shape.nodes:
            self._impossible.add(shape)
            found = []
        self._nodes[shape] = found
        return found

    def _sites(self, nodes: Iterable[Node], job: Job, planned: OnNodes) -> list[Site]:
        sites = (self._site(node, job, planned) for node in nodes)
        return [site for site in sites if site is not None]

    def _site(self, node: Node, job: Job, planned: OnNodes) -> Site | None:
        """None for a node that waits for one who comes before."""
        held_here = self.cluster.reservations.by_node.get(node.name, ())
        before = [held for held in held_here if self.comes_first(held, job)]
        if not all(held.is_claim for held in before):
            return None
        promised = [held.shape for held in before]
        return Site(self.cluster, node, planned.get(node.name, ()), promised, self._doomed)

    def _room_by_ends(
        self, job: Job, rank: Rank, nodes: Sequence[Node], planned: OnNodes, now: Now
    ) -> gang_room.Room | None:
        """By stopping jobs of lower rank."""
        yielding = [node for node in nodes if node.name in self._yielding]
        if yielding and job.shape.nodes > 1:
            return gang_room.claim(job.shape, rank, self._sites(nodes, job, planned), now)
        claim = self._claim(job, rank, yielding, planned, now)
        return None if claim is None else gang_room.Room((claim.node,), claim.start, claim.victims)

    def _claim(
        self, job: Job, rank: Rank, nodes: Sequence[Node], planned: OnNodes, now: Now
    ) -> preemption.Claim | None:
        """Of the node whose jobs' ends do the least harm."""
        shape = job.shape
        if (shape, rank) not in self._by_harm:
            sites = self._sites(nodes, job, planned)
            found = (preemption.choice(site, shape, rank, now) for site in sites)
            heap = [(each.harm, each.site.node.name) for each in found if each is not None]
            heapq.heapify(heap)
            self._by_harm[shape, rank] = heap
        heap = self._by_harm[shape, rank]
        while heap:
            harm, name = heap[0]
            site = self._site(self.cluster.nodes[name], job, planned)
            choice = preemption.choice(site, shape, rank, now) if site is not None else None
            if choice is not None and choice.harm > harm:
                heapq.heapreplace(heap, (choice.harm, name))
            elif choice is not None and (claim := preemption.claim(choice, shape, now)):
                return claim
            else:
                heapq.heappop(heap)
        return None

    def _reserve(self, job: Job, rank: Rank, sites: Sequence[Site], now: Now) -> None:
        """Keeps the node where it can start first, or, after a long wait, one as its jobs end."""
        room: gang_room.Room | None = None
        if job.shape.nodes > 1:
            room = gang_room.earliest(job.shape, sites, now)
        elif (prospect := backfill.earliest(job.shape, sites, now)) is not None:
            room = gang_room.Room((prospect.node,), prospect.start)
        if room is None or (room.start == inf and not self._is_starving(job, now)):
            return
        if (other := self.cluster.reservations.waiting.get(job.tenant)) is not None:
            self._end(other, now)
        self._keep(job, rank, room.nodes, room.start, now)

    def _is_starving(self, job: Job, now: Now) -> bool:
        waited_s = seconds_until(job.queued_at, now.at)
        return waited_s >= self.cluster.settings.starvation_after_s

    def _keep(
        self,
        job: Job,
        rank: Rank,
        nodes: tuple[str, ...],
        start: float,
        now: Now,
        *,
        is_claim: bool = False,
    ) -> None:
        """Whoever has one of them and comes later gives it up."""
        reservations = self.cluster.reservations
        present = {held.job: held for node in nodes for held in reservations.by_node.get(node, ())}
        for held in present.values():
            if not self.comes_first(held, job):
                self._end(held, now)
                self._later.file(held.job, now.mono + LOOK_AGAIN_S)
        is_known = start != inf
        patience_s = max(self.cluster.settings.starvation_after_s, OVERDUE_S)
        reservations.add(
            Reservation(
                job=job.key,
                shape=job.shape,
                order=job.order,
                rank=rank,
                node=nodes[0],
                others=nodes[1:],
                start=start if is_known else None,
                start_at=later(now.at, start - now.mono) if is_known else None,
                until=start + OVERDUE_S if is_known else now.mono + patience_s,
                is_claim=is_claim,
            )
        )


def _preempted(victim: Job, by: Job) -> Preempted:
    return Preempted(victim.tenant, victim.id, by.tenant, by.id)
