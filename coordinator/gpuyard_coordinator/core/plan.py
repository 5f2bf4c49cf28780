"""One cycle of planning: from the queue and the placer to placements and words for the rest.

Numbered as in the design: (1) events were applied before; (2) quota; (3) order; (4) filters and (5)
packing behind the placer; (6) preemption and (7) reservations for whoever comes first and cannot
start; (8) the caller commits by applying the events returned. A plan right after its commit is
empty: shapes that were refused are not asked again until room grew, a reservation ended or time is
up.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpuyard.model.ids import JobKey
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import adoption, fairshare, gang_places, growth, images, quota
from gpuyard_coordinator.core.clearing import Planned
from gpuyard_coordinator.core.cluster import Cluster, Use
from gpuyard_coordinator.core.events import Assigned, Preempted, StillQueued
from gpuyard_coordinator.core.explain import RecentWords, Words
from gpuyard_coordinator.core.ordering import Place, Turns
from gpuyard_coordinator.core.packing import Placement, Placer
from gpuyard_coordinator.core.repricing import Repricing
from gpuyard_coordinator.core.reservations import Reservation
from gpuyard_coordinator.core.reserving import Reserving
from gpuyard_coordinator.core.shapes import Shape, read_shape, shape_document, without_nodes
from gpuyard_coordinator.core.state import Job, Now, Order

UNEXPLAINED: Final = "it waits; ask for its reasons with gpuyard why"
"""What a job is told that came among more unlike ones than one turn can explain."""
_NEVER: Final = Now(0.0, "")
_LAST: Final = (0, 0, 1 << 63, 1 << 63, "")
"""The place of one that is only tried: after all that wait."""


@dataclass(slots=True)
class Plan:
    placements: list[Assigned] = field(default_factory=list)
    preemptions: list[Preempted] = field(default_factory=list)
    is_partial: bool = False
    """The limit was met: plan again after this one is committed."""

    @property
    def events(self) -> list[Assigned | Preempted]:
        """What to apply, in order."""
        return [*self.preemptions, *self.placements]


@dataclass(slots=True)
class Planner:
    cluster: Cluster
    placer: Placer
    _open: set[Shape] = field(default_factory=set)
    """Shapes that may fit; the others wait for room to grow."""
    _held_back: dict[Shape, frozenset[str]] = field(default_factory=dict)
    """Of the others those that keep off reserved nodes, and off which."""
    _last_order: list[tuple[str, int, int]] = field(default_factory=list)
    """Of tenants, when those that are held back were looked at last."""
    _planned: dict[str, Use] = field(default_factory=dict)
    """The use of each tenant that this plan gives something, with that."""
    _standings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of tenants that were asked for, in this plan and since each was given something."""
    _on_nodes: dict[str, list[Planned]] = field(default_factory=dict)
    """What it places, by node."""
    _ports: Counter[str] = field(default_factory=Counter)
    """At which gangs meet that it places, counted by address."""
    _fleet: fairshare.Fleet = field(default_factory=fairshare.Fleet)
    _is_new_inventory: bool = False
    _looked_at: set[str] = field(default_factory=set)
    """Nodes that changed since the last plan."""
    has_looked: bool = False
    """Whether the last plan asked for any job; else it changed nothing that a later one goes by."""
    _now: Now = _NEVER
    _recent: RecentWords = field(default_factory=RecentWords)
    _reserving: Reserving = field(init=False)
    repricing: Repricing = field(init=False)
    """For whoever has time between plans."""

    def __post_init__(self) -> None:
        self.repricing = Repricing(self.cluster, self.placer)
        self._reserving = Reserving(self.cluster, self._comes_first)

    @property
    def is_behind(self) -> bool:
        """True while jobs wait that no plan has looked at, or that the last one left out."""
        return not self.cluster.untold and bool(self._open or self.cluster.queue.fresh)

    def plan(self, limit: int, now: Now) -> Plan:
        """At most `limit` placements and preemptions, in queue order; a shape that does not fit is
        passed over. Nothing while nodes have yet to tell what they run, after a restore."""
        self.has_looked = False
        if self.cluster.untold:
            return Plan()
        self._begin(now)
        self.has_looked = bool(self._open)
        plan, turns = Plan(), Turns(self.cluster.queue, self._place_of)
        while True:
            given = len(plan.placements)
            self._walk(turns, plan, limit)
            if plan.is_partial or not self._open_anew(has_given=len(plan.placements) > given):
                break
        return plan

    def explain_new(self, keys: list[tuple[str, str]], now: Now) -> list[StillQueued]:
        """Words for jobs that came or came back in this turn and still wait, in queue order."""
        jobs = [job for key in keys if (job := self.cluster.jobs.get(key)) is not None]
        waiting, words = [], Words(self.cluster)
        for job in sorted(jobs, key=lambda job: job.order):
            if self.cluster.queue.position(job) is not None:
                found = self._recent.of(job.shape, words, now.mono)
                code, message = found or (str(VerdictCode.WAITING_TURN), UNEXPLAINED)
                if verdict := adoption.verdict(self.cluster, job):
                    code, message = verdict["code"], verdict["message"]
                held = self.cluster.reservations.by_job.get(job.key)
                message = f"{message}; {held.text}" if held is not None else message
                waiting.append(StillQueued(job.tenant, job.id, code, message))
        return waiting

    def preview(self, shape: Shape) -> list[Placement]:
        """Where one more job of a shape would go now, after all that wait, each member of a gang;
        empty where it would not, and nothing is kept of it."""
        self._look_at_changes()
        self._planned.clear()
        self._standings.clear()
        self._ports.clear()
        masked = self._masked(shape, ("", ""), _LAST)
        placements = self._within_limits(masked)
        for placement in placements:
            self.placer.release(masked, placement)
        self._planned.clear()
        return placements

    def _begin(self, now: Now) -> None:
        self._now = now
        self._look_at_changes()
        changed, self._looked_at = self._looked_at, set()
        new = self._is_new_inventory
        self._open |= self._reserving.begin(now, changed, is_new_inventory=new)
        self._is_new_inventory = False
        self._planned.clear()
        self._standings.clear()
        self._ports.clear()
        self._on_nodes.clear()
        self._let_pass(has_ended=self.cluster.reservations.take_ends())

    def _open_anew(self, *, has_given: bool) -> bool:
        """After a walk: opens the shapes for which it changed more than the room on nodes. This
        comes to an end, since each time a job was given its place or a node went to one who comes
        before."""
        if has_given:
            self._open |= self._reserving.review(self._on_nodes, self._is_over, self._now)
        has_ended = self.cluster.reservations.take_ends()
        if has_ended or has_given:
            self._let_pass(has_ended=has_ended)
        return bool(self._open)

    def _let_pass(self, *, has_ended: bool) -> None:
        """Opens those that kept off a node whose reservation ended, or that come before it now:
        what a tenant is given moves its jobs back, and time moves all."""
        order, before = self._order_of_tenants(), self._last_order
        self._last_order = order
        # Of several that were given something two may have changed places and back since a look.
        is_as_before = order == before and len(self._planned) < 2
        if is_as_before and not has_ended:
            return
        by_shape = self.cluster.queue.by_shape
        for shape, nodes in list(self._held_back.items()):
            orders = by_shape.get(shape)
            if orders is None:
                del self._held_back[shape]
            elif not self._is_kept_off(shape, nodes, orders[0]):
                del self._held_back[shape]
                self._open.add(shape)

    def _order_of_tenants(self) -> list[tuple[str, int, int]]:
        """What decides who of two tenants comes first, of those who keep others off or are kept
        off: each one's priority and its place among them, which several may share."""
        tenants = {shape.tenant for shape in self._held_back}
        tenants |= self.cluster.reservations.waiting.keys()
        standings = {tenant: self._standing(tenant) for tenant in tenants}
        places = {each: place for place, each in enumerate(sorted(set(standings.values())))}
        return sorted((name, each[0], places[each]) for name, each in standings.items())

    def _is_kept_off(self, shape: Shape, nodes: frozenset[str], first: Order) -> bool:
        """True while each of these nodes is for others than the first job of a shape."""
        place, job, now = self._place_of(first), first[2:], self._now.mono
        keeps_off = self.cluster.reservations.keeps_off
        return all(
            keeps_off(node, job, shape, now, lambda held: self._is_before(held, place))
            for node in nodes
        )

    def _walk(self, turns: Turns, plan: Plan, limit: int) -> None:
        """Gives each whose turn it is its place, until nobody is left who may have one."""
        turns.open(self._open)
        while (first := turns.first()) is not None:
            if len(plan.placements) + len(plan.preemptions) >= limit:
                plan.is_partial = True
                return
            order, shape = first
            if self._place(order, shape, plan):
                turns.give()
            elif self._help(order, plan):
                turns.advance()
            else:
                self._open.discard(shape)
                turns.close()
        self._open.clear()

    def _look_at_changes(self) -> None:
        cluster = self.cluster
        self.placer.price(cluster.priced)
        # Sorted, since the placer numbers kinds of GPUs as it sees them: equal in every process.
        for name in sorted(cluster.nodes_changed):
            node = cluster.nodes.get(name)
            if node is None:
                self.placer.node_removed(name)
            else:
                self.placer.node_changed(node)
                node.gpu_counts = None
            self._is_new_inventory |= self._fleet.count(name, node)
        self._looked_at |= cluster.nodes_changed
        changed = cluster.nodes_changed.copy()
        cluster.nodes_changed.clear()
        eased, cluster.tenants_eased = cluster.tenants_eased, set()
        if self.placer.take_growth():
            self._open |= self._for_growth(changed)
        self._open |= cluster.queue.fresh
        if eased:
            self._open |= {s for s in cluster.queue.by_shape if s.tenant in eased}
        cluster.queue.fresh.clear()
        cluster.queue.moved.clear()
        cluster.images_moved.clear()

    def memory(self) -> dict[str, Any]:
        """What the next plan goes by and no document has, after a plan that was not cut short."""
        return {
            "held_back": [
                [shape_document(shape), sorted(nodes)] for shape, nodes in self._held_back.items()
            ],
            "fresh": [shape_document(shape) for shape in self.cluster.queue.fresh],
            "reserving": self._reserving.memory(),
            "placer": self.placer.memory(),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Goes on as the planner did of which this is the `memory`, with the same cluster."""
        self.placer.price(self.cluster.priced)
        self.placer.recall(memory["placer"])
        self._reserving.recall(memory["reserving"])
        self._look_at_changes()
        self._open.clear()
        self._is_new_inventory = False
        self._held_back = {
            read_shape(shape): frozenset(nodes) for shape, nodes in memory["held_back"]
        }
        self.cluster.queue.fresh |= {read_shape(shape) for shape in memory["fresh"]}

    def _for_growth(self, changed: Collection[str]) -> set[Shape]:
        """Shapes that may fit on a node with more room, and all of tenants without a reservation:
        of these the first that cannot start gets one."""
        cluster = self.cluster
        nodes = [node for name in changed if (node := cluster.nodes.get(name)) is not None]
        waiting, shapes = cluster.reservations.waiting, cluster.queue.by_shape
        served = [s for s in shapes if s.tenant in waiting and s.nodes == 1]
        return growth.may_fit(nodes, served) | (shapes.keys() - served)

    def _standing(self, tenant: str) -> tuple[int, int]:
        """(priority, how much it has had for its weight), with what the plan gives it."""
        known = self._standings.get(tenant)
        if known is not None:
            return known
        document = self.cluster.tenants.get(tenant)
        history = fairshare.history_of(self.cluster, tenant, self._now)
        held = fairshare.amounts(self._use_with_plan(tenant))
        weight = fairshare.weight_of(document)
        share = fairshare.standing(held, history, self._fleet.whole, weight)
        self._standings[tenant] = standing = fairshare.priority_of(document), share
        return standing

    def _place(self, order: Order, shape: Shape, plan: Plan) -> bool:
        _, _, tenant, id = order
        job = self.cluster.jobs[tenant, id]
        masked = shape
        if self.cluster.reservations.by_node:
            masked = self._masked(shape, job.key, self._place_of(order))
        placements = self._within_limits(masked, images.present_on(self.cluster, job.image))
        if not placements:
            if masked is not shape:
                self._held_back[shape] = masked.excluded - shape.excluded
            return False
        nodes = [placement.node for placement in placements]
        self._reserving.placed(job, nodes, self._on_nodes, self._now)
        first, *others = placements
        plan.placements.append(Assigned(tenant, id, first.node, first.gpus, tuple(others)))
        return True

    def _help(self, order: Order, plan: Plan) -> bool:
        """Stops others for a job that has no place, or keeps a node for it; True where more of its
        shape may be helped so."""
        _, _, tenant, id = order
        job = self.cluster.jobs[tenant, id]
        if self._is_over(job.shape):
            return False
        goes_on, preempted = self._reserving.blocked(job, self._on_nodes, self._now)
        plan.preemptions += preempted
        return goes_on

    def _masked(self, shape: Shape, job: JobKey, place: Place) -> Shape:
        """The shape, kept off nodes that are reserved for those who come before."""
        reservations = self.cluster.reservations
        if not reservations.by_node:
            return shape
        kept_off = reservations.kept_off(
            job, shape, self._now.mono, lambda held: self._is_before(held, place)
        )
        return without_nodes(shape, shape.excluded | kept_off)

    def _comes_first(self, held: Reservation, job: Job) -> bool:
        return self._is_before(held, self._place_of(job.order))

    def _is_before(self, held: Reservation, place: Place) -> bool:
        if held.is_claim:
            return held.rank >= (-place[0], -place[1])
        return self._place_of(held.order) < place

    def _place_of(self, order: Order) -> Place:
        negative, sequence, tenant, id = order
        priority, standing = self._standing(tenant)
        return (-priority, negative, standing, sequence, id)

    def _within_limits(self, shape: Shape, having: Collection[str] = ()) -> list[Placement]:
        """A reserved place that keeps the tenant within its limits, of a gang one for each member;
        empty where there is none."""
        if self._is_over(shape):
            return []
        document = self.cluster.tenants.get(shape.tenant)
        left = None if document is None else quota.left(document, self._use_with_plan(shape.tenant))
        if shape.nodes == 1:
            placement = self.placer.place(shape, left, having)
            found = [] if placement is None else [placement]
        else:
            found = gang_places.place(self.cluster, self.placer, shape, left, self._ports, having)
        if found:
            self._note(shape, found)
        return found

    def _is_over(self, shape: Shape) -> bool:
        """True where the tenant's limits keep the shape waiting wherever it might go."""
        document = self.cluster.tenants.get(shape.tenant)
        if document is None:
            return False
        use = self._use_with_plan(shape.tenant)
        return quota.limit_hit(shape.tenant, document, use, quota.least_ask(shape)) is not None

    def _note(self, shape: Shape, placements: list[Placement]) -> None:
        """Adds what the plan has just placed for one job to what it uses."""
        self._standings.pop(shape.tenant, None)
        planned = self._planned.get(shape.tenant)
        if planned is None:
            planned = self._planned[shape.tenant] = replace(self.cluster.use_of(shape.tenant))
        planned.running_jobs += 1
        for placement in placements:
            ask = quota.ask_of(self.cluster.nodes[placement.node], shape, placement.gpus)
            planned.milli += ask.milli
            planned.gpu_memory_mib += ask.gpu_memory_mib
            planned.cpu_milli += shape.cpu_milli
            planned.memory_mib += shape.memory_mib
            self._on_nodes.setdefault(placement.node, []).append(Planned(shape, placement.gpus))

    def _use_with_plan(self, tenant: str) -> Use:
        return self._planned.get(tenant) or self.cluster.use_of(tenant)
