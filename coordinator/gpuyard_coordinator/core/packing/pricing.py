"""The potential of a node: what the rest of it is worth to the mix, as integer coefficients.

    PHI =  12  * sum_i (r_i - u(r_i))                              a rest, priced by the LP
         +  1  * sum_m p_m (R - g_m min(k_m, C / c_m))             filled with copies of task m
         +  3  * max(0, R - C / 0.8 kappa)
         + 0.5 * max(0, R - C / 1.1 kappa)                         GPUs that the CPUs cannot feed
         -  4  * sigma(kind) * R                                   scarce kinds are kept
         +  w  * sum_m q_m (R - g_m floor(min(F / n_m, C / c_m)))  room for several whole GPUs

C is the CPU left in milli, r_i the rest of GPU i, R their sum, F the GPUs free as a whole, and of
task m c_m its CPUs, n_m its GPUs, s_m milli each, g_m = n_m s_m, and k_m its copies by GPUs alone:
sum floor(r_i / s_m), or floor(F / n_m) where it asks for whole ones. The best place is the one of
which PHI after, minus PHI before, plus 0.0025 R is least. Weights and terms are the PFS-C policy
of a study on the traces of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), but for w:
5 where whole nodes are scarce, 2.5 as a rule and 1.25 where there are plenty (`Headroom`), since a
node broken up costs most where few are left.

All coefficients are integers in units of 2**-22 milli, and a score is in 1/16 milli: sums are then
exact in any order, in Python's integers as in 64-bit floats, and decisions can be replayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.prices import worth_of_rests
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

UNIT: Final = 2**22
"""One milli-GPU in the potential."""
SCORE_UNIT: Final = 2**18
"""1/16 milli: what scores are rounded to."""
COPY: Final = 1024
"""One copy of a task; fractions of copies are cut off below."""
_PARTS: Final = 4096
"""What the shares of the typical tasks add up to."""
_COVERED: Final = 0.95
"""Typical tasks are the most frequent ones that make up this part of all submissions."""
_WORTH, _SCARCE = 12, 4.0
_SEVERAL: Final = {Headroom.LOW: 5.0, Headroom.MIDDLE: 2.5, Headroom.HIGH: 1.25}
_FED: Final = ((3.0, 0.8), (0.5, 1.1))
_ALL: Final = 2**22
_USUAL_GPUS: Final = 8
"""What `gpus: all` stands for."""
_FULL: Final = 0.0025
"""Of R before: among equals the fuller node."""


@dataclass(frozen=True, slots=True)
class Term:
    """One task of the mix in the potential: `weight` times its copies is subtracted."""

    request: Shape
    gpus: int
    """Whole GPUs of a copy; 0 for a share."""
    weight: int
    """In units per 1/1024 copy."""
    is_uncut: bool
    """True where CPUs for a part of a copy count as that part of one."""

    @property
    def cpu_milli(self) -> int:
        return self.request.cpu_milli

    def most_by_cpu(self, cpu_milli: int) -> int | None:
        """1/1024 copies that CPUs allow; None where it asks for none."""
        if not self.cpu_milli:
            return None
        if self.is_uncut:
            return COPY * cpu_milli // self.cpu_milli
        return cpu_milli // self.cpu_milli * COPY


@dataclass(frozen=True, slots=True)
class Pricing:
    """The potential for one mix on one fleet; unchanging."""

    terms: tuple[Term, ...]
    """Those of whole copies alone last, and of the others those of several GPUs: both last ones are
    then in one piece."""
    worth: tuple[int, ...]
    """u(r) in units, by r."""
    milli_weight: int
    """What each milli left costs in the terms' R, in units."""
    fed: tuple[tuple[float, float], ...]
    """(units per milli left, units per milli-CPU left) of the two terms on CPUs."""
    constrained: tuple[tuple[Shape, float], ...]
    """(request, scarcity that it adds to each kind it may use)."""

    @classmethod
    def of(cls, mix: Mix, fleet: Mapping[Kind, int]) -> "Pricing":
        """`fleet` is the number of devices of each kind."""
        tasks = [
            _Task(request, count, _USUAL_GPUS if request.all_gpus else request.gpus, fleet)
            for request, count in mix.most_common()
        ]
        on_gpus = [task for task in tasks if task.milli]
        fill, several = _typical(tasks), [task for task in on_gpus if task.gpus > 1]
        shares = _largest_remainder([task.count for task in fill], _PARTS)
        total, weight = sum(task.count * task.milli for task in on_gpus), _SEVERAL[mix.headroom]
        parts = [round(_PARTS * task.count * task.milli / total) for task in several]
        terms = [
            Term(task.request, task.gpus, part * task.milli, True)
            for task, part in zip(fill, shares, strict=True)
        ]
        terms += [
            Term(task.request, task.gpus, round(weight * part * task.milli), False)
            for task, part in zip(several, parts, strict=True)
        ]
        milli_weight = sum(shares) * COPY + round(weight * sum(parts) * COPY)
        return cls(
            terms=tuple(sorted(terms, key=lambda term: (not term.is_uncut, term.gpus > 1))),
            worth=_worth(on_gpus),
            milli_weight=milli_weight,
            fed=_fed(on_gpus),
            constrained=tuple(_constrained(on_gpus, fleet, total)),
        )

    def scarcity_of(self, kind: Kind) -> float:
        """Demand that may use only some kinds, per device of this one; 0 where nothing does."""
        return sum(part for request, part in self.constrained if kind.size_of(request))

    def rest_values(self, kind: Kind) -> list[int]:
        """`rest_value` of 0..1000 milli."""
        weight = self._milli_weight_on(kind)
        return [self._rest_value(weight, milli) for milli in range(WHOLE_GPU_MILLI + 1)]

    def rest_value(self, kind: Kind, milli: int) -> int:
        """What a rest of a GPU of this kind adds by itself, in units."""
        return self._rest_value(self._milli_weight_on(kind), milli)

    def _milli_weight_on(self, kind: Kind) -> int:
        return self.milli_weight - round(_SCARCE * self.scarcity_of(kind) * UNIT)

    def _rest_value(self, weight: int, milli: int) -> int:
        return _WORTH * (milli * UNIT - self.worth[milli]) + weight * milli


def size_of_all(row: Shape, gpus: int) -> int:
    """What a score has against a node of so many GPUs for a job that takes all of them, in the
    score's unit: more than any potential, so that the smallest node is taken."""
    return _ALL * gpus if row.all_gpus else 0


def fullness(milli: int) -> int:
    """What a score has in favour of the fuller node, in units; `milli` is left on it before."""
    return round(_FULL * UNIT) * milli


@dataclass(slots=True)
class _Task:
    """A request with its size on this fleet."""

    request: Shape
    count: int
    gpus: int
    fleet: Mapping[Kind, int]
    sizes: dict[int, float] = field(init=False)
    """Pieces by milli per GPU; a share by memory has another size on each kind."""
    milli: int = field(init=False)
    """g_m, the mean over the kinds that it may use; 0 for none."""

    def __post_init__(self) -> None:
        request = self.request
        if not request.is_share:
            self.sizes = {WHOLE_GPU_MILLI: float(self.gpus)} if self.gpus else {}
            self.milli = self.gpus * WHOLE_GPU_MILLI
            return
        devices: dict[int, int] = {}
        for kind, count in self.fleet.items():
            if size := kind.size_of(request):
                devices[size] = devices.get(size, 0) + count
        total = sum(devices.values())
        self.sizes = {size: count / total for size, count in devices.items() if total}
        self.milli = round(sum(size * part for size, part in self.sizes.items()))


def _typical(tasks: Sequence[_Task]) -> list[_Task]:
    """The most frequent tasks that cover most submissions, less those without GPUs."""
    total, covered, typical = sum(task.count for task in tasks), 0, list[_Task]()
    for task in tasks:
        if covered >= _COVERED * total:
            break
        covered += task.count
        if task.milli:
            typical.append(task)
    return typical


def _largest_remainder(counts: Sequence[int], parts: int) -> list[int]:
    """Whole parts in proportion to the counts, which add up exactly."""
    total = sum(counts)
    if not total:
        return []
    shares = [count * parts // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(counts[i] * parts % total), i))
    for i in by_remainder[: parts - sum(shares)]:
        shares[i] += 1
    return shares


def _worth(tasks: Sequence[_Task]) -> tuple[int, ...]:
    demand: dict[int, float] = {}
    for task in tasks:
        for size, pieces in task.sizes.items():
            demand[size] = demand.get(size, 0.0) + pieces * task.count
    return tuple(round(value * 16) * (UNIT // 16) for value in worth_of_rests(demand))


def _fed(tasks: Sequence[_Task]) -> tuple[tuple[float, float], ...]:
    cpus = sum(task.count * task.request.cpu_milli for task in tasks)
    milli = sum(task.count * task.milli for task in tasks)
    if not cpus or not milli:
        return ()
    return tuple((w * UNIT, w * UNIT * milli / (part * cpus)) for w, part in _FED)


def _constrained(
    tasks: Sequence[_Task], fleet: Mapping[Kind, int], total: int
) -> list[tuple[Shape, float]]:
    """A set of kinds that a task is bound to has its demand spread over them by their number."""
    devices = sum(fleet.values())
    found = []
    for task in tasks:
        if not task.request.where and task.request.models is None:
            continue
        usable = sum(count for kind, count in fleet.items() if kind.size_of(task.request))
        if 0 < usable < devices:
            part = task.count * task.milli / total
            found.append((task.request, part * devices / usable))
    return found
