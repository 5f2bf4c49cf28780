"""What an attempt used: GPU-seconds it held, how busy its GPUs were, the most memory they held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuyard.messages import AttemptUsage, GrantedGpu
from gpuyard.model.node import GpuSample


@dataclass(slots=True)
class UsageMeter:
    """Accumulates over samples. A GPU that could not be measured adds nothing, never 0."""

    milli: int
    """Sum over the granted GPUs; 1000 is a whole one."""
    started: float
    """On the boot clock."""
    _utilization_sum: float = 0.0
    _utilization_count: int = 0
    _memory_peak: int | None = None

    def sample(self, samples: Mapping[str, GpuSample], gpus: Iterable[GrantedGpu]) -> None:
        """Takes one reading of the attempt's GPUs in; `samples` is by UUID."""
        memory: int | None = None
        for gpu in gpus:
            seen = samples.get(gpu["uuid"])
            if seen is None:
                continue
            if seen["utilization_percent"] is not None:
                self._utilization_sum += seen["utilization_percent"]
                self._utilization_count += 1
            if seen["memory_used_mib"] is not None:
                own = seen["memory_used_mib"] - (seen["memory_foreign_mib"] or 0)
                memory = (memory or 0) + max(0, own)
        if memory is not None:
            self._memory_peak = max(memory, self._memory_peak or 0)

    def total(self, now: float) -> AttemptUsage:
        """Everything from the start to `now`."""
        count = self._utilization_count
        mean = round(self._utilization_sum / count, 1) if count else None
        return {
            "gpu_seconds": round(max(0.0, now - self.started) * self.milli / 1000, 3),
            "utilization_mean_percent": mean,
            "memory_peak_mib": self._memory_peak,
        }


def milli_of(gpus: Iterable[GrantedGpu]) -> int:
    return sum(gpu["milli"] for gpu in gpus)
