"""The potential of `pricing` as arrays over its terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.pricing import COPY, SCORE_UNIT, Pricing, fullness
from gpuyard_coordinator.core.packing.rows import Ints
from gpuyard_coordinator.core.packing.scoring import RESTS

Floats = NDArray[np.float64]
_NO_LIMIT: Final = 2.0**40


class _OfDevices(NamedTuple):
    copies: Floats
    """By way and term, by GPUs alone, in 1/1024."""
    value: Floats
    """By way: the linear terms."""
    unfed: Floats
    """By term on CPUs and way: its units without any."""
    bonus: int
    """What scores gain whichever way, in units."""


class _OfCpus(NamedTuple):
    copies: Floats
    """By amount and term, by CPUs alone, in 1/1024."""
    fed: Floats
    """By term on CPUs and amount: the units that they feed."""


@dataclass(slots=True)
class Potential:
    """A `Formula`. Its sums are copies of each term in 1/1024, then R, then the linear terms."""

    pricing: Pricing
    _weights: Floats = field(init=False)
    _cpus_per_part: Floats = field(init=False)
    """milli-CPU of 1/1024 copy, or of a whole one where parts are cut off."""
    _units_of_milli: Floats = field(init=False)
    _units_of_cpu: Floats = field(init=False)
    """By term on CPUs, as columns."""
    _no_limit: Floats = field(init=False)
    _first_several: int = field(init=False)
    """Terms from here on ask for several GPUs."""
    _first_cut: int = field(init=False)
    """Terms from here on count whole copies alone."""
    _several: Floats = field(init=False)

    def __post_init__(self) -> None:
        terms, fed = self.pricing.terms, self.pricing.fed
        self._weights = np.array([float(term.weight) for term in terms])
        parts = [(term.cpu_milli or 1) / (COPY if term.is_uncut else 1) for term in terms]
        self._cpus_per_part = np.array(parts)
        self._units_of_milli = np.array([[units] for units, _ in fed]).reshape(-1, 1)
        self._units_of_cpu = np.array([[units] for _, units in fed]).reshape(-1, 1)
        self._no_limit = np.array([0.0 if term.cpu_milli else _NO_LIMIT for term in terms])
        self._several = np.array([float(COPY * term.gpus) for term in terms if term.gpus > 1])
        self._first_several = len(terms) - len(self._several)
        self._first_cut = sum(term.is_uncut for term in terms)

    @classmethod
    def of(cls, mix: Mix, fleet: Mapping[Kind, int]) -> "Potential":
        return cls(Pricing.of(mix, fleet))

    @property
    def width(self) -> int:
        return len(self._weights) + 2

    def parts(self, kind: Kind) -> Floats:
        parts = np.zeros((len(RESTS), len(self._weights) + 2))
        for column, term in enumerate(self.pricing.terms):
            if size := kind.size_of(term.request):
                parts[:, column] = RESTS // size * COPY
        parts[:, -2] = RESTS
        parts[:, -1] = self.pricing.rest_values(kind)
        return parts

    def of_devices(self, sums: Floats) -> _OfDevices:
        copies = sums[:, :-2].copy()
        several = copies[:, self._first_several :]
        np.floor(several / self._several, out=several)
        several *= COPY
        bonus = fullness(int(sums[-1, -2])) + SCORE_UNIT // 2
        return _OfDevices(copies, sums[:, -1].copy(), self._units_of_milli * sums[:, -2], bonus)

    def of_cpus(self, cpu_milli: Floats) -> _OfCpus:
        copies = np.floor(cpu_milli[:, np.newaxis] / self._cpus_per_part)
        copies[:, self._first_cut :] *= COPY
        return _OfCpus(copies + self._no_limit, np.floor(self._units_of_cpu * cpu_milli))

    def scores(self, of_devices: _OfDevices, of_cpus: _OfCpus, amount: Ints) -> Floats:
        copies = of_cpus.copies.take(amount, axis=0)
        np.minimum(copies, of_devices.copies, out=copies)
        value = of_devices.value - copies @ self._weights
        unfed = of_devices.unfed - of_cpus.fed.take(amount, axis=1)
        value += np.add.reduce(np.maximum(unfed, 0.0, out=unfed), axis=0)
        scores = value[:-1] - (value[-1] - of_devices.bonus)
        scores *= 1 / SCORE_UNIT
        floored: Floats = np.floor(scores, out=scores)
        return floored
