"""Where a job goes: the placer that the yard uses."""

from gpuyard_coordinator.core.packing.packer import Packer
from gpuyard_coordinator.core.packing.placer import Placement, Placer

__all__ = ["Packer", "Placement", "Placer"]
