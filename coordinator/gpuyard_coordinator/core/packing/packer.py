"""The yard's placer: a job goes where the nodes are then worth most to the mix of jobs.

What a node is worth is `pricing`'s potential, for a mix of jobs that is known. The scores of all
requests on all nodes are kept (`table`); of equal ones a node that is known to have the image is
taken, then the first by name, within it the best linked GPUs, then those of the lowest index. Where
single devices or their cost decide (`prefer`, GPUs by id, a limit that binds), nodes are looked at
one by one, best score first, whatever images they have.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core import ledger, quota, selection
from gpuyard_coordinator.core.headroom import PLACED_BETWEEN, Headroom
from gpuyard_coordinator.core.mix import Mix, request_of
from gpuyard_coordinator.core.packing.fleet import Fleet, Member, mask_of
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.placer import Placement
from gpuyard_coordinator.core.packing.potential import Potential
from gpuyard_coordinator.core.packing.scoring import Policy, Scorer
from gpuyard_coordinator.core.packing.states import INFEASIBLE, Key, Step
from gpuyard_coordinator.core.packing.table import Table
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Node, Settings

Scores = NDArray[np.int32]
_INFEASIBLE: Final = np.int32(INFEASIBLE)
FLEET_MOVED: Final = 0.1
"""Part of the GPUs that must have come or gone for prices to be made anew."""
EXPECTED: Final = 512
"""Requests of the mix that are scored before they come."""
ASKS_KEPT: Final = 8192
_PIECE: Final = 64
"""Nodes that are scored at once ahead of new prices."""


@dataclass(slots=True)
class _Ask:
    """What of a shape the table and the walk go by."""

    row: Shape
    mask: Shape
    is_of_devices: bool
    """True where single devices decide, so that scores tell only where to look first."""
    most: quota.Ask | None
    """What it adds to its tenant's use at most, wherever it goes; None where nobody can tell."""
    number: int = -1
    """Of the row in the table."""
    age: int = -1
    """The table's, for which the number is good."""


class _Prepared(NamedTuple):
    """Scores that were worked out for a mix on a fleet."""

    mix: Mix
    devices: dict[Kind, int]
    scorer: Scorer


@dataclass(slots=True)
class Packer:
    settings: Settings
    mix: Mix = field(default_factory=Mix.prior)
    """What prices go by; never changed, but by `price` for another one."""
    policy: Policy = Potential.of
    follows_headroom: bool = True
    """False for a policy that does not go by the mix's."""
    _fleet: Fleet = field(init=False)
    _table: Table | None = None
    _is_priced: bool = False
    _prepared: _Prepared | None = None
    _priced_devices: dict[Kind, int] = field(default_factory=dict)
    _asks: dict[Shape, _Ask] = field(default_factory=dict)
    _last: tuple[Shape, _Ask] = field(init=False)
    """What was asked for last: equal jobs come in runs, and a shape is slow to look up."""
    _kinds_asked: int = 0
    """Kinds that `_asks` knows of."""
    _grew: bool = False

    def __post_init__(self) -> None:
        self._fleet = Fleet(self.settings)
        self._last = (Shape(), _ask(Shape(), ()))

    def node_changed(self, node: Node) -> None:
        member, has_grown = self._fleet.look_at(node)
        self._grew = self._grew or has_grown
        if self._table is not None and self._fleet.is_sorted:
            self._table.set(member.number, self._key(member))

    def node_removed(self, name: str) -> None:
        self._fleet.drop(name)

    def take_growth(self) -> bool:
        grew, self._grew = self._grew, False
        return grew

    def price(self, mix: Mix) -> None:
        if mix is not self.mix:
            is_other = mix.headroom is not self.mix.headroom
            self._is_priced = self._is_priced and not is_other and mix.counts == self.mix.counts
            self.mix = mix
            if is_other:
                self._fleet.booked = 0

    def prepare(self, mix: Mix) -> Iterator[None]:
        table, devices = self._settled(), self._devices()
        scorer = Scorer(self.policy(mix, devices), self._fleet.catalogue)
        yield
        scorer.add(table.rows_with(_expected(mix)))
        alike = scorer.alike()
        for number, member in enumerate(self._fleet.ordered):
            if number % _PIECE == 0:
                yield
            scorer.score(member.key(alike))
        self._prepared = _Prepared(mix, devices, scorer)

    def headroom(self, priced: Mix) -> Headroom:
        was, fleet = priced.headroom, self._fleet
        if not self.follows_headroom or fleet.booked < PLACED_BETWEEN:
            return was
        return fleet.headroom(was)

    def memory(self) -> dict[str, Any]:
        catalogue, devices = self._fleet.catalogue, self._priced_devices
        return {
            "kinds": [kind.document() for kind in catalogue.kinds],
            "guests": [None if guests is None else [*guests] for guests in catalogue.guests],
            "devices": [[kind.document(), count] for kind, count in devices.items()],
            "is_priced": self._is_priced,
            "is_laid_out": self._table is not None,
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        catalogue = self._fleet.catalogue
        catalogue.recall([Kind.of(kind) for kind in memory["kinds"]], memory["guests"])
        self._priced_devices = {Kind.of(kind): count for kind, count in memory["devices"]}
        self._is_priced = memory["is_priced"]
        if memory["is_laid_out"]:
            scorer = Scorer(self.policy(self.mix, self._priced_devices), catalogue)
            self._table = Table(catalogue, scorer)
            self._table.expect(_expected(self.mix))

    def settle(self) -> None:
        """Takes in what changed now and not in the next `place`: nodes, and prices that are due."""
        self._settled()

    def place(
        self, shape: Shape, left: quota.Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
        table, ask = self._settled(), self._ask(shape)
        row = ask.number if ask.age == table.age else self._row(table, ask)
        is_bound = left is not None and (ask.most is None or not left.takes(ask.most))
        if ask.is_of_devices or is_bound:
            return self._walk(table.scores(row), ask.mask, shape, left)
        member = self._best(table, row, ask.mask, shape)
        if member is None:
            return None
        if having and member.name not in having:
            member = self._having(table.scores(row), member, ask.mask, shape, having)
        step = table.step(row, member.number)
        uuids = tuple(member.find(step.taken))
        if shape.share_mib is not None and not _has_memory(member, shape, uuids[0]):
            return self._walk(table.scores(row), ask.mask, shape, left)
        self._fleet.book(member, shape, uuids, -1)
        self._take(table, member, step)
        return Placement(member.name, uuids)

    def has_places(self, shape: Shape) -> bool:
        table, ask = self._settled(), self._ask(shape)
        row = ask.number if ask.age == table.age else self._row(table, ask)
        scores = self._open_to(table.scores(row), ask.mask, shape)
        return int((scores < INFEASIBLE).sum()) >= shape.nodes

    def release(self, shape: Shape, placement: Placement) -> None:
        table, member = self._settled(), self._fleet.members[placement.node]
        self._fleet.book(member, shape, placement.gpus, 1)
        table.set(member.number, self._key(member))

    def _take(self, table: Table, member: Member, step: Step) -> None:
        """A step tells neither of memory that shares leave nor of a trial."""
        if step.is_certain and member.room is not None and member.room.node.aside is None:
            table.take(member.number, step.state)
        else:
            table.set(member.number, self._key(member))

    def _best(self, table: Table, row: int, mask: Shape, shape: Shape) -> Member | None:
        """The best node that a job fits, of equal ones the first. Most often it is the best by its
        score alone, or else by score and memory, so the rest is looked at for these first."""
        fleet = self._fleet
        if not fleet.ordered:
            return None
        number, score = table.best(row)
        if score >= INFEASIBLE:
            return None
        member = fleet.ordered[number]
        if self._takes(member, mask, shape):
            return member
        scores = table.scores(row)
        if fleet.memory_mib[number] < shape.memory_mib:
            scores = np.where(fleet.memory_mib >= shape.memory_mib, scores, _INFEASIBLE)
            number = int(scores.argmin())
            if scores[number] >= INFEASIBLE:
                return None
            if self._takes(fleet.ordered[number], mask, shape):
                return fleet.ordered[number]
        scores = self._open_to(scores, mask, shape)
        number = int(scores.argmin())
        return fleet.ordered[number] if scores[number] < INFEASIBLE else None

    def _having(
        self, scores: Scores, best: Member, mask: Shape, shape: Shape, having: Collection[str]
    ) -> Member:
        """The first of those nodes that is as good as the best one, if any is."""
        least, found = scores.item(best.number), best
        for name in having:
            member = self._fleet.members.get(name)
            if member is None or scores.item(member.number) != least:
                continue
            is_first = found is best or member.number < found.number
            if is_first and self._takes(member, mask, shape):
                found = member
        return found

    def _takes(self, member: Member, mask: Shape, shape: Shape) -> bool:
        """Whether all that is not in the scores lets a job onto a node."""
        room = member.room
        return (
            room is not None
            and (room.memory_mib or 0) >= shape.memory_mib
            and room.document_kib >= shape.document_kib
            and (shape.node is None or shape.node == member.name)
            and member.name not in shape.excluded
            and not self._fleet.blocked(mask)[member.number]
        )

    def _open_to(self, scores: Scores, mask: Shape, shape: Shape) -> Scores:
        """The scores of those nodes alone that `_takes` lets through."""
        fleet = self._fleet
        is_open = ~fleet.blocked(mask)
        is_open &= fleet.memory_mib >= shape.memory_mib
        is_open &= fleet.document_kib >= shape.document_kib
        for name in shape.excluded & fleet.members.keys():
            is_open[fleet.members[name].number] = False
        if shape.node is not None:
            named = fleet.members.get(shape.node)
            is_named = np.zeros_like(is_open)
            if named is not None:
                is_named[named.number] = True
            is_open &= is_named
        return np.where(is_open, scores, _INFEASIBLE)

    def _walk(
        self, scores: Scores, mask: Shape, shape: Shape, left: quota.Left | None
    ) -> Placement | None:
        """Node by node, best score first: the one that is liked best, where it has preferences."""
        best: tuple[int, Member, tuple[str, ...]] | None = None
        for member in self._by_score(self._open_to(scores, mask, shape)):
            chosen = member.room.choose(shape, left) if member.room else None
            if chosen is None or member.room is None:
                continue
            liked = selection.preference(member.room.node, shape, chosen) if shape.prefer else 0
            if best is None or liked > best[0]:
                best = (liked, member, tuple(chosen))
            if liked == len(shape.prefer):
                break
        if best is None:
            return None
        _, member, uuids = best
        self._fleet.book(member, shape, uuids, -1)
        self._settled().set(member.number, self._key(member))
        return Placement(member.name, uuids)

    def _by_score(self, scores: Scores) -> Iterator[Member]:
        for number in scores.argsort(kind="stable").tolist():
            if scores[number] >= INFEASIBLE:
                return
            yield self._fleet.ordered[number]

    def _ask(self, shape: Shape) -> _Ask:
        kinds = self._fleet.catalogue.kinds
        if shape is self._last[0] and len(kinds) == self._kinds_asked:
            return self._last[1]
        ask = self._asks.get(shape)
        if ask is None or len(kinds) != self._kinds_asked:
            if len(self._asks) >= ASKS_KEPT or len(kinds) != self._kinds_asked:
                self._kinds_asked = len(kinds)
                self._asks.clear()
            ask = self._asks[shape] = _ask(shape, kinds)
        self._last = (shape, ask)
        return ask

    def _settled(self) -> Table:
        """The table, after nodes that came or went are in it and prices that are due are made."""
        fleet = self._fleet
        is_new = not fleet.is_sorted
        if is_new:
            fleet.sort()
        table = self._table
        if table is None or is_new or not self._is_priced:
            table = self._price(table)
        if is_new:
            self._lay_out(table)
        return table

    def _row(self, table: Table, ask: _Ask) -> int:
        """The number of the row in the table, which has it from here on."""
        if ask.age != table.age:
            number = table.number(ask.row)
            if number is None:
                number = table.add(ask.row)
                if table.scorer.alike() != self._fleet.catalogue.alike:
                    self._lay_out(table)
            ask.number, ask.age = number, table.age
        return ask.number

    def _lay_out(self, table: Table) -> None:
        self._fleet.catalogue.alike = table.scorer.alike()
        table.lay_out(self._key(member) for member in self._fleet.ordered)

    def _key(self, member: Member) -> Key:
        return member.key(self._fleet.catalogue.alike)

    def _price(self, table: Table | None) -> Table:
        """Prices where the mix is another one, or where the fleet became one."""
        devices = self._devices()
        moved = sum(abs(devices.get(k, 0) - n) for k, n in self._priced_devices.items())
        moved += sum(n for kind, n in devices.items() if kind not in self._priced_devices)
        is_same_fleet = moved <= FLEET_MOVED * sum(self._priced_devices.values())
        if table is not None and is_same_fleet and self._is_priced:
            return table
        self._is_priced, self._priced_devices = True, devices
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.mix == self.mix and ready.devices == devices:
            scorer = ready.scorer
        else:
            scorer = Scorer(self.policy(self.mix, devices), self._fleet.catalogue)
        if table is None:
            self._table = table = Table(self._fleet.catalogue, scorer)
        else:
            table.rescore(scorer)
        table.expect(_expected(self.mix))
        self._lay_out(table)
        return table

    def _devices(self) -> dict[Kind, int]:
        """How many there are of each kind, in an order that does not tell how they came: it is the
        one in which prices add them up."""
        counts = [(kind, count) for kind, count in self._fleet.devices.items() if count > 0]
        return dict(sorted(counts, key=lambda entry: _place_of(entry[0])))


def _place_of(kind: Kind) -> tuple[object, ...]:
    return kind.labels, kind.memory_mib or 0, kind.profile is not None, kind.profile or ""


def _expected(mix: Mix) -> list[Shape]:
    return [request for request, _ in mix.most_common()[:EXPECTED]]


def _ask(shape: Shape, kinds: Sequence[Kind]) -> _Ask:
    row = request_of(shape)
    if shape.wants_gpus:
        row = replace(row, tolerate=shape.tolerate)
    if shape.is_share:
        is_open = shape.is_shared_across_tenants
        row = replace(row, tenant=shape.tenant, is_shared_across_tenants=is_open)
    names_devices = any(line.key == "gpu-uuid" for line in shape.where)
    is_of_devices = bool(shape.gpu_ids or shape.prefer or names_devices)
    return _Ask(row, mask_of(shape), is_of_devices, _most(shape, kinds))


def _most(shape: Shape, kinds: Sequence[Kind]) -> quota.Ask | None:
    if shape.all_gpus or shape.names_instances:
        return None
    count = len(shape.gpu_ids) or shape.gpus or int(shape.is_share)
    milli = mib = 0
    for kind in kinds:
        size, memory = kind.grant_of(shape)
        milli = max(milli, size)
        mib = max(mib, memory if shape.is_share else kind.memory_mib or 0) if size else mib
    asked = quota.least_ask(shape).milli if shape.mig is not None else count * milli
    return quota.Ask(asked, count * mib)


def _has_memory(member: Member, shape: Shape, uuid: str) -> bool:
    room = member.room
    granted = ledger.grant(room.node.gpus[uuid], shape) if room else None
    return bool(
        room and granted and ledger.has_room(granted, room.free_milli[uuid], room.free_mib[uuid])
    )
