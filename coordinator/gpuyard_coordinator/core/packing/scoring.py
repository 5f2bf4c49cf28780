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
from gpuyard_coordinator.core.packing.rows import Ints, Rows
from gpuyard_coordinator.core.packing.states import INFEASIBLE, Catalogue, Device, Key
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Shape

Floats = NDArray[np.float64]
RESTS: Final = np.arange(WHOLE_GPU_MILLI + 1)
"""What may be left of a GPU, in milli."""
WAYS_KEPT: Final = 2048
"""Sets of devices remembered."""


class Formula(Protocol):
    """A policy's score of placing a job on a node, as a function of sums over its devices."""

    @property
    def width(self) -> int:
        """How many sums."""

    def parts(self, kind: Kind) -> Floats:
        """By rest of 0..1000 milli: what such a device adds to each sum."""

    def prepare(self, sums: Floats) -> Any:
        """What depends on devices alone, for `scores`; one row of sums for each way to place a job
        and a last one for the node before."""

    def scores(self, prepared: Any, cpu_milli: Floats) -> Floats:
        """Whole numbers for each way but the last, lower is better; `cpu_milli` is left then."""


Policy = Callable[[Mix, Mapping[Kind, int]], Formula]
"""A formula for a mix of jobs and a fleet, the number of devices of each kind."""


class _Ways(NamedTuple):
    """All ways to place the rows on some devices, and last no job at all; CPUs aside."""

    prepared: Any
    """What the formula made of their sums."""
    cpu_milli: Floats
    """By way: CPUs that it takes."""
    row: Ints
    """By way, without the last."""
    shares: int
    """How many ways are those of shares; they come first."""
    where: tuple[Ints, Ints]
    """Of each way of a share: index of the device and of the share."""
    choices: NDArray[np.int16]
    """By device: its index in the key."""


@dataclass(slots=True)
class Scorer:
    """Scores of the rows known so far; rows are added at the end, never changed. What depends on
    devices alone is remembered, since far fewer sets of devices occur than states."""

    formula: Formula
    catalogue: Catalogue
    rows: list[Shape] = field(default_factory=list)
    _jobs: Rows = field(init=False)
    _infeasible: NDArray[np.int32] = field(init=False)
    _none: NDArray[np.int16] = field(init=False)
    _parts: Floats = field(init=False)
    """By kind and rest, 1001 rows a kind."""
    _ways: dict[tuple[int, tuple[Device, ...]], _Ways] = field(default_factory=dict)

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

    def score(self, key: Key) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """(score, index in the key of the device that a share takes), by row; lower is better, and
        `INFEASIBLE` where it does not fit."""
        scores, choices = self._infeasible.copy(), self._none.copy()
        if key.gpus < 0:
            return scores, choices
        ways = self._ways_on(key)
        left = key.cpu_milli - ways.cpu_milli
        found = self.formula.scores(ways.prepared, left)
        found[left[:-1] < 0] = INFEASIBLE
        split = ways.shares
        scores[ways.row[split:]] = found[split:]
        for row in self._jobs.alls:
            if scores[row] < INFEASIBLE:
                scores[row] += size_of_all(self.rows[row], key.gpus)
        if split:
            shares = self._jobs.shares
            dense = np.full((len(ways.choices), len(shares)), INFEASIBLE, dtype=np.int32)
            dense[ways.where] = found[:split]
            scores[shares] = dense.min(axis=0)
            choices[shares] = ways.choices[dense.argmin(axis=0)]
        return scores, choices

    def _arrange(self) -> None:
        self._jobs = Rows(self.catalogue, self.rows)
        self._infeasible = np.full(len(self.rows), INFEASIBLE, dtype=np.int32)
        self._none = np.zeros(len(self.rows), dtype=np.int16)
        self._ways.clear()

    def _ways_on(self, key: Key) -> _Ways:
        ways = self._ways.get(key[1:])
        if ways is None:
            if len(self._ways) >= WAYS_KEPT:
                self._ways.clear()
            ways = self._ways[key[1:]] = self._find_ways(key.gpus, key.devices)
        return ways

    def _find_ways(self, gpus: int, devices: tuple[Device, ...]) -> _Ways:
        jobs, parts = self._jobs, self._parts_of_all()
        unlike = list(dict.fromkeys(devices))
        shares, (wholes, taken) = jobs.fitting_shares(unlike), jobs.fitting_wholes(gpus, devices)
        split, totals = len(shares.share), parts[_places(devices)].sum(axis=0)
        sums = np.empty((split + len(wholes) + 1, len(totals)))
        if split:
            empty = _places([Device(device.kind, 0) for device in unlike])
            sums[:split] = parts[empty[shares.device] + shares.rest]
            sums[:split] += (totals - parts[_places(unlike)])[shares.device]
        freed = {each: parts[_places(each)].sum(axis=0) for each in set(taken)}
        for way, each in enumerate(taken, split):
            sums[way] = totals - freed[each]
        sums[-1] = totals
        row = np.concatenate((jobs.shares[shares.share], jobs.wholes[wholes]))
        return _Ways(
            prepared=self.formula.prepare(sums),
            cpu_milli=np.append(jobs.cpu_milli[row], 0.0),
            row=row,
            shares=split,
            where=(shares.device, shares.share),
            choices=np.array([devices.index(device) for device in unlike], dtype=np.int16),
        )

    def _parts_of_all(self) -> Floats:
        known = len(self._parts) // len(RESTS)
        fresh = [self.formula.parts(kind) for kind in self.catalogue.kinds[known:]]
        if fresh:
            self._parts = np.concatenate((self._parts, *fresh))
        return self._parts


def _places(devices: Sequence[Device]) -> Ints:
    """Where devices are in a table by kind and rest."""
    return np.array([d.kind * len(RESTS) + d.milli for d in devices], dtype=np.intp)
