"""All scores of a state at once.

A device adds its part to every sum over devices, so that a place's sums are those before, less the
part of the device taken, plus that of its rest: look-ups in a table by kind and rest. What a policy
makes of the sums is its `Formula`; the yard's own is the potential of `pricing`, the same to the
last bit as `plain` gives it one by one: all its numbers are whole and below 2**53, so that 64-bit
floats hold them exactly and no order of adding matters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.pricing import size_of_all
from gpuyard_coordinator.core.packing.rows import Bools, Ints, Rows, WholeFits
from gpuyard_coordinator.core.packing.states import INFEASIBLE, Catalogue, Device, Key
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

Floats = NDArray[np.float64]
RESTS: Final = np.arange(WHOLE_GPU_MILLI + 1)
"""What may be left of a GPU, in milli."""
BYTES_KEPT: Final = 2**27
"""Of what is remembered of sets of devices, and as much of scores."""
CPUS_KEPT: Final = 2048
"""Amounts of CPUs left that are remembered."""
_CHOICES: Final = 1024
"""Above the number of devices of a node."""


class Formula(Protocol):
    """A policy's score of placing a job on a node, as a function of sums over its devices and of
    the CPUs left, each prepared by itself since either is seen again with another other."""

    @property
    def width(self) -> int:
        """How many sums."""

    def parts(self, kind: Kind) -> Floats:
        """By rest of 0..1000 milli: what such a device adds to each sum."""

    def of_devices(self, sums: Floats) -> Any:
        """What depends on devices alone; one row of sums for each way to place a job and a last one
        for the node before."""

    def of_cpus(self, cpu_milli: Floats) -> Any:
        """What depends on the CPUs left alone, for each amount that may be taken; negative ones are
        never looked at."""

    def scores(self, of_devices: Any, of_cpus: Any, amount: Ints) -> Floats:
        """Whole numbers for each way but the last, lower is better; a new array. `amount` is the
        index of the CPUs that each takes."""


Policy = Callable[[Mix, Mapping[Kind, int]], Formula]
"""A formula for a mix of jobs and a fleet, the number of devices of each kind."""
Scores = tuple[NDArray[np.int32], NDArray[np.int16]]
"""By row: the score, and the index in the key of the device that a share takes."""


class _Ways(NamedTuple):
    """All ways to place the rows on some devices, by row, and last no job at all; CPUs aside."""

    number: int
    of_devices: Any
    """What the formula made of their sums."""
    amount: Ints
    """By way: index of the CPUs that it takes."""
    choice: Floats
    """By way, without the last: the index in the key of the device that a share takes."""
    rows: Ints
    """That have ways."""
    first: Ints
    """By these: the first of their ways."""


@dataclass(slots=True)
class Scorer:
    """Scores of the rows known so far; rows are added at the end, never changed. What depends on
    devices alone is remembered, since far fewer sets of devices occur than states."""

    formula: Formula
    catalogue: Catalogue
    rows: list[Shape] = field(default_factory=list)
    _jobs: Rows = field(init=False)
    _amounts: Floats = field(init=False)
    """CPUs that rows ask for, none at all first, then sorted."""
    _infeasible: NDArray[np.int32] = field(init=False)
    _none: NDArray[np.int16] = field(init=False)
    _parts: Floats = field(init=False)
    """By kind and rest, 1001 rows a kind."""
    _ways: dict[tuple[int, tuple[Device, ...]], _Ways] = field(default_factory=dict)
    _ways_bytes: int = 0
    _cpus: dict[int, tuple[Bools | None, Any]] = field(default_factory=dict)
    """By CPUs left: which amounts are more, if any are, and what the formula makes of it."""
    _scores: dict[tuple[int, int], Scores] = field(default_factory=dict)
    """By number of ways and CPUs left."""

    def __post_init__(self) -> None:
        self._parts = np.zeros((0, self.formula.width))
        self._arrange()

    def add(self, rows: Iterable[Shape]) -> None:
        self.rows += rows
        self._arrange()

    def clear(self) -> None:
        """Forgets all rows."""
        self.rows.clear()
        self._arrange()

    def score(self, key: Key) -> Scores:
        """Of each row, lower is better, and `INFEASIBLE` where it does not fit; to be read only."""
        if key.gpus < 0:
            return self._infeasible, self._none
        ways = self._ways_on(key)
        known = self._scores.get((ways.number, key.cpu_milli))
        if known is None:
            if len(self._scores) * 6 * len(self.rows) > BYTES_KEPT:
                self._scores.clear()
            known = self._scores[ways.number, key.cpu_milli] = self._score(ways, key)
        return known

    def alike(self) -> list[int]:
        """By kind: the first one that neither a row nor a price tells from it."""
        self._learn_kinds()
        first: dict[tuple[object, bytes], int] = {}
        found = []
        for kind in range(len(self.catalogue.kinds)):
            parts = self._parts[kind * len(RESTS) : (kind + 1) * len(RESTS)]
            look = self._jobs.grants_on(kind), parts.tobytes()
            found.append(first.setdefault(look, kind))
        return found

    def _score(self, ways: _Ways, key: Key) -> Scores:
        scores, choices = self._infeasible.copy(), self._none.copy()
        if not len(ways.rows):
            return scores, choices
        too_much, of_cpus = self._cpus_of(key.cpu_milli)
        found = self.formula.scores(ways.of_devices, of_cpus, ways.amount)
        if too_much is not None:
            found[too_much[ways.amount[:-1]]] = INFEASIBLE
        # Score and choice in one number: the least has the best score and of such the first device.
        found *= _CHOICES
        found += ways.choice
        best = np.minimum.reduceat(found, ways.first).astype(np.int64)
        scores[ways.rows] = best >> 10
        choices[ways.rows] = best & _CHOICES - 1
        for row in self._jobs.alls:
            if scores[row] < INFEASIBLE:
                scores[row] += size_of_all(self.rows[row], key.gpus)
        return scores, choices

    def _arrange(self) -> None:
        self._jobs = Rows(self.catalogue, self.rows)
        self._amounts = np.unique(np.append(self._jobs.cpu_milli, 0.0))
        self._infeasible = np.full(len(self.rows), INFEASIBLE, dtype=np.int32)
        self._none = np.zeros(len(self.rows), dtype=np.int16)
        self._forget()
        self._cpus.clear()

    def _forget(self) -> None:
        self._ways.clear()
        self._scores.clear()
        self._ways_bytes = 0

    def _cpus_of(self, cpu_milli: int) -> tuple[Bools | None, Any]:
        known = self._cpus.get(cpu_milli)
        if known is None:
            if len(self._cpus) >= CPUS_KEPT:
                self._cpus.clear()
            left = cpu_milli - self._amounts
            known = left < 0 if left[-1] < 0 else None, self.formula.of_cpus(left)
            self._cpus[cpu_milli] = known
        return known

    def _ways_on(self, key: Key) -> _Ways:
        ways = self._ways.get(key[1:])
        if ways is None:
            if self._ways_bytes > BYTES_KEPT:
                self._forget()
            ways = self._ways[key[1:]] = self._find_ways(key.gpus, key.devices)
        return ways

    def _find_ways(self, gpus: int, devices: tuple[Device, ...]) -> _Ways:
        self._learn_kinds()
        jobs, parts, unlike = self._jobs, self._parts, list(dict.fromkeys(devices))
        shares, wholes = jobs.fitting_shares(unlike), jobs.fitting_wholes(gpus, devices)
        split, totals = len(shares.share), parts[_places(devices)].sum(axis=0)
        row = np.concatenate((jobs.shares[shares.share], jobs.wholes[wholes.whole]))
        sums, choice = np.empty((len(row) + 1, len(totals))), np.zeros(len(row))
        if split:
            empty = _places([Device(device.kind, 0) for device in unlike])
            sums[:split] = parts[empty[shares.device] + shares.rest]
            sums[:split] += (totals - parts[_places(unlike)])[shares.device]
            indices = np.array([devices.index(device) for device in unlike], dtype=np.float64)
            choice[:split] = indices[shares.device]
        sums[split:-1] = totals - self._freed(wholes)
        sums[-1] = totals
        order = row.argsort(kind="stable")
        by_row = row[order]
        first = (
            np.append(True, by_row[1:] != by_row[:-1]).nonzero()[0]
            if len(row)
            else np.zeros(0, dtype=np.intp)
        )
        self._ways_bytes += sums.nbytes
        return _Ways(
            number=len(self._ways),
            of_devices=self.formula.of_devices(sums[np.append(order, len(row))]),
            amount=np.append(self._amounts.searchsorted(jobs.cpu_milli[by_row]), 0),
            choice=choice[order],
            rows=by_row[first],
            first=first,
        )

    def _freed(self, wholes: WholeFits) -> Floats:
        """By fit: the parts of the devices that it takes."""
        freed = np.zeros((len(wholes.whole), self.formula.width))
        if wholes.kind is not None:
            part = self._parts[wholes.kind * len(RESTS) + WHOLE_GPU_MILLI]
            np.multiply(wholes.asked[:, np.newaxis], part, out=freed)
        for parts, taken in zip(freed, wholes.taken, strict=False):
            self._parts[_places(taken)].sum(axis=0, out=parts)
        return freed

    def _learn_kinds(self) -> None:
        known = len(self._parts) // len(RESTS)
        fresh = [self.formula.parts(kind) for kind in self.catalogue.kinds[known:]]
        if fresh:
            self._parts = np.concatenate((self._parts, *fresh))


def _places(devices: Sequence[Device]) -> Ints:
    """Where devices are in a table by kind and rest."""
    return np.array([d.kind * len(RESTS) + d.milli for d in devices], dtype=np.intp)
