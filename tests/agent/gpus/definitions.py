"""Builders of simulated nodes: a test names what it is about, the rest is a usual node."""

from typing import Any

from gpuyard.model.node import GpuFacts, GpuSample, ProbeResult
from gpuyard_agent.gpus.fleet import SimulatedNode, parse_fleet
from gpuyard_agent.gpus.history import GpuHistory
from gpuyard_agent.gpus.probe import ProbeContext, probe
from gpuyard_agent.gpus.processes import OwnProcesses
from gpuyard_agent.gpus.simulated_node import NodeDefinition
from gpuyard_agent.gpus.simulation import SimulatedNvml

RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "memory_mib": 24564,
    "compute_capability": "8.9",
}
H200 = {
    "name": "NVIDIA H200",
    "memory_mib": 143771,
    "reserved_mib": 615,
    "compute_capability": "9.0",
}
NOBODY = OwnProcesses()


class Clock:
    """Seconds that move only when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_node(*gpus: dict[str, Any], **fields: Any) -> SimulatedNode:
    entry = {"name": "n0", "gpus": list(gpus) or [{**RTX_4090, "count": 2}], **fields}
    return parse_fleet({"nodes": [entry]})[0]


def make_definition(*gpus: dict[str, Any], **fields: Any) -> NodeDefinition:
    return make_node(*gpus, **fields).definition()


def probe_once(
    definition: NodeDefinition, *, at_s: float = 0.0, own: OwnProcesses = NOBODY
) -> ProbeResult:
    nvml = SimulatedNvml(definition, clock=lambda: at_s)
    reading = probe(nvml, ProbeContext(nvml, own=own))
    return GpuHistory(utc_now=lambda: "t").accept(reading, links_asked=True)


def facts_of(result: ProbeResult, index: int) -> GpuFacts:
    return next(gpu for gpu in result["gpus"] if gpu["index"] == index)


def sample_of(result: ProbeResult, index: int) -> GpuSample:
    uuid = facts_of(result, index)["uuid"]
    return next(sample for sample in result["samples"] if sample["uuid"] == uuid)


def health_of(result: ProbeResult, index: int) -> tuple[str, str | None]:
    health = sample_of(result, index)["health"]
    return health["state"], health["reason"]
