"""What placing goes by of a node that no document says: what its beats told, and its trial.

Taken from a node and given to another one as plain values, for records of decisions.
"""

from typing import Any, Final, cast

from gpuyard.model.node import GpuSample
from gpuyard.model.states import GpuHealth, NodeState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.state import Gpu, Node, Settings

NodeCondition = list[Any]
"""State, whether it is proven, stopping, adopting, measured; [whether a trial may begin, the trial]
where it is put aside; and by UUID what keeps jobs off a GPU."""
_HEALTHY: Final = str(GpuHealth.HEALTHY)
_FOREIGN_MIB: Final = 1 << 40
_FAULTS: Final = (VerdictCode.GPU_DIRTY, VerdictCode.GPU_UNHEALTHY, VerdictCode.FOREIGN_MEMORY)


def condition_of(node: Node, settings: Settings) -> NodeCondition:
    aside = node.aside
    return [
        str(node.state),
        node.is_proven,
        node.is_stopping,
        node.is_adopting,
        filters.is_sampled(node),
        None if aside is None else [aside.is_open, aside.trial],
        {uuid: str(code) for uuid, gpu in node.gpus.items() if (code := _fault(gpu, settings))},
    ]


def take_condition(node: Node, condition: NodeCondition) -> None:
    """Makes `node` as that one was, as far as placing goes by it."""
    state, proven, stopping, adopting, sampled, aside, faults = condition
    node.state = NodeState(state)
    node.is_proven, node.is_stopping, node.is_adopting = proven, stopping, adopting
    node.sample_age_s = 0.0 if sampled else None
    if node.aside is not None and aside is not None:
        node.aside.is_open = aside[0]
        node.aside.trial = None if aside[1] is None else (*aside[1],)
    node.samples = None
    for uuid, gpu in node.gpus.items():
        gpu.sample = measured(uuid, faults.get(uuid))


def measured(uuid: str, fault: str | None = None) -> GpuSample | None:
    """A sample for which `filters.gpu_block` finds this fault."""
    if fault == VerdictCode.GPU_UNHEALTHY:
        return None
    health = GpuHealth.DIRTY if fault == VerdictCode.GPU_DIRTY else GpuHealth.HEALTHY
    sample: dict[str, Any] = {
        "uuid": uuid,
        "memory_used_mib": 0,
        "memory_free_mib": None,
        "memory_foreign_mib": _FOREIGN_MIB if fault == VerdictCode.FOREIGN_MEMORY else 0,
        "utilization_percent": None,
        "temperature_c": None,
        "power_w": None,
        "health": {"state": str(health), "reason": None, "since": None},
        "foreign": [],
        "missing": [],
    }
    return cast(GpuSample, sample)


def _fault(gpu: Gpu, settings: Settings) -> VerdictCode | None:
    """What was measured; what a GPU is, is among its facts. One that is well is seen at a glance:
    all of a node's are looked at whenever one of them is granted."""
    sample = gpu.sample
    if sample is None:
        return VerdictCode.GPU_UNHEALTHY if gpu.facts["mig"] is None else None
    if sample["memory_foreign_mib"] == 0 and sample["health"]["state"] == _HEALTHY:
        return None
    fault = filters.gpu_block(gpu, settings)
    return fault if fault in _FAULTS else None
