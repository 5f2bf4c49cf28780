"""Where a job goes: the placer that the yard uses, and best fit to compare it with."""

from gpuyard_coordinator.core.packing.best_fit import BestFit
from gpuyard_coordinator.core.packing.packer import Packer
from gpuyard_coordinator.core.packing.placer import Placement, Placer

__all__ = ["BestFit", "Packer", "Placement", "Placer"]
