"""Policies that others published, to compare with: FGD, best fit, dot product and spread.

Scores are whole numbers from 0 to 100 as their authors have them, larger is better there, and equal
ones are decided by the first node's name: of FGD that rounding is part of the result. Formulas as
in Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), and its simulator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing.kinds import Kind
from gpuyard_coordinator.core.packing.rows import Ints
from gpuyard_coordinator.core.packing.scoring import RESTS
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_LARGEST_CPU_MILLI: Final = 128_000
_LARGEST_GPU_MILLI: Final = 8000
_TYPICAL: Final = 0.95
"""Part of all submissions that FGD's typical tasks make up."""


@dataclass(slots=True)
class Fgd:
    """Fragmentation gradient descent: the GPUs' milli that typical tasks cannot use grow least.

    Its sums are, for each task, the devices that it may use and the milli of the others, then R.
    """

    tasks: list[tuple[Shape, float]]
    """Typical tasks and their part of them."""
    _cpu_milli: Floats = field(init=False)
    _gpus: Floats = field(init=False)
    _weights: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._cpu_milli = np.array([float(task.cpu_milli) for task, _ in self.tasks])
        self._gpus = np.array([float(max(task.gpus, task.is_share)) for task, _ in self.tasks])
        self._weights = np.array([part for _, part in self.tasks])

    @classmethod
    def of(cls, mix: Mix, fleet: Mapping[Kind, int]) -> "Fgd":
        tasks, covered = list[tuple[Shape, int]](), 0
        total = sum(count for _, count in mix.most_common())
        for task, count in mix.most_common():
            if covered >= _TYPICAL * total:
                break
            covered += count
            tasks.append((task, count))
        return cls([(task, count / covered) for task, count in tasks])

    @property
    def width(self) -> int:
        return 2 * len(self.tasks) + 1

    def parts(self, kind: Kind) -> Floats:
        count = len(self.tasks)
        parts = np.zeros((len(RESTS), 2 * count + 1))
        for column, (task, _) in enumerate(self.tasks):
            size = kind.size_of(task)
            is_used = (size <= RESTS) & (size > 0)
            parts[:, column] = is_used
            parts[:, count + column] = np.where(is_used, 0, RESTS)
        parts[:, -1] = RESTS
        return parts

    def of_devices(self, sums: Floats) -> tuple[Bools, Floats, Floats]:
        count = len(self.tasks)
        fits = (sums[:, :count] >= self._gpus) & (self._gpus > 0)
        return fits, sums[:, count:-1].copy(), sums[:, -1:].copy()

    def of_cpus(self, cpu_milli: Floats) -> Bools:
        enough: Bools = cpu_milli[:, np.newaxis] >= self._cpu_milli
        return enough

    def scores(
        self, of_devices: tuple[Bools, Floats, Floats], of_cpus: Bools, amount: Ints
    ) -> Floats:
        fits, useless, left = of_devices
        fits = fits & of_cpus[amount]
        fragments = np.where(fits, useless, left) @ self._weights
        grown = (fragments[:-1] - fragments[-1]) / 1000
        return _negative(100 / (1 + np.exp(grown)))


@dataclass(slots=True)
class _OfLeft:
    """Formulas of R and of the CPUs left alone; among a node's devices the tightest."""

    @property
    def width(self) -> int:
        return 1

    def parts(self, kind: Kind) -> Floats:
        return RESTS[:, np.newaxis].astype(np.float64)

    def of_devices(self, sums: Floats) -> Floats:
        return sums[:, 0].copy()

    def of_cpus(self, cpu_milli: Floats) -> Floats:
        return cpu_milli


@dataclass(slots=True)
class LeastLeft(_OfLeft):
    """Best fit: the node with the least CPUs and GPUs left."""

    def scores(self, of_devices: Floats, of_cpus: Floats, amount: Ints) -> Floats:
        cpus = of_cpus[amount[:-1]] / _LARGEST_CPU_MILLI
        left = cpus + of_devices[:-1] / _LARGEST_GPU_MILLI
        return _negative(100 * (1 - 0.5 * left))


@dataclass(slots=True)
class DotProduct(_OfLeft):
    """The node whose CPUs and GPUs left are least like what the job asks for."""

    def scores(self, of_devices: Floats, of_cpus: Floats, amount: Ints) -> Floats:
        cpus = of_cpus[amount[-1]] * (of_cpus[amount[-1]] - of_cpus[amount[:-1]])
        gpus = of_devices[-1] * (of_devices[-1] - of_devices[:-1])
        product = cpus / _LARGEST_CPU_MILLI**2 + gpus / _LARGEST_GPU_MILLI**2
        return _negative(100 * (1 - 0.5 * product))


@dataclass(slots=True)
class Spread:
    """The node with the most GPUs left, and there the emptiest device."""

    @property
    def width(self) -> int:
        return 2

    def parts(self, kind: Kind) -> Floats:
        return np.stack((RESTS, RESTS**2 / WHOLE_GPU_MILLI), axis=1).astype(np.float64)

    def of_devices(self, sums: Floats) -> Floats:
        return sums.copy()

    def of_cpus(self, cpu_milli: Floats) -> None:
        """CPUs do not matter."""

    def scores(self, of_devices: Floats, of_cpus: None, amount: Ints) -> Floats:
        evenness = of_devices[:-1, 1] - of_devices[-1, 1]
        return _negative(1000 * of_devices[-1, 0] - evenness)


def _negative(scores: Floats) -> Floats:
    """Whole scores of which the largest is best, as those of which the lowest is."""
    return np.negative(np.floor(scores))
