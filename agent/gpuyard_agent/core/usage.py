"""What an attempt used: GPU-seconds it held, how busy its GPUs were, the most memory they held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuyard.messages import AttemptUsage, GrantedGpu
from gpuyard.model.node import GpuSample


@dataclass(frozen=True, slots=True)
class Measured:
    """What the samples of an attempt's GPUs add up to; journaled, so that a restart goes on."""

    utilization_sum: float = 0.0
    utilization_count: int = 0
    memory_peak_mib: int | None = None


@dataclass(slots=True)
class UsageMeter:
    """Accumulates over samples. A GPU that could not be measured adds nothing, never 0."""

    milli: int
    """Sum over the granted GPUs; 1000 is a whole one."""
    started: float
    """On the boot clock."""
    measured: Measured = Measured()

    def sample(self, samples: Mapping[str, GpuSample], gpus: Iterable[GrantedGpu]) -> None:
        """Takes one reading of the attempt's GPUs in; `samples` is by UUID."""
        busy, count, memory = 0.0, 0, None
        for gpu in gpus:
            seen = samples.get(gpu["uuid"])
            if seen is None:
                continue
            if seen["utilization_percent"] is not None:
                busy, count = busy + seen["utilization_percent"], count + 1
            if seen["memory_used_mib"] is not None:
                own = seen["memory_used_mib"] - (seen["memory_foreign_mib"] or 0)
                memory = (memory or 0) + max(0, own)
        before = self.measured
        peaks = [peak for peak in (before.memory_peak_mib, memory) if peak is not None]
        self.measured = Measured(
            before.utilization_sum + busy,
            before.utilization_count + count,
            max(peaks, default=None),
        )

    def total(self, now: float) -> AttemptUsage:
        """Everything from the start to `now`."""
        measured = self.measured
        count = measured.utilization_count
        mean = round(measured.utilization_sum / count, 1) if count else None
        return {
            "gpu_seconds": round(max(0.0, now - self.started) * self.milli / 1000, 3),
            "utilization_mean_percent": mean,
            "memory_peak_mib": measured.memory_peak_mib,
        }


def milli_of(gpus: Iterable[GrantedGpu]) -> int:
    return sum(gpu["milli"] for gpu in gpus)
