"""A node's facts put together from a reading of its GPUs and what the agent knows of the host."""

from collections.abc import Mapping

from gpuyard.model.node import (
    GpuInjection,
    NodeFacts,
    ProbeResult,
    RuntimeName,
    node_labels,
)


def node_facts(
    probe_result: ProbeResult,
    *,
    runtime: RuntimeName,
    gpu_injection: GpuInjection,
    docker_version: str | None,
    agent_version: str,
    own_labels: Mapping[str, str],
    cpus: float | None,
    memory_mib: int | None,
    address: str | None = None,
    gang_ports: tuple[int, int] = (29500, 29999),
) -> NodeFacts:
    """The facts that a node publishes; what is unknown is None and named in `missing`."""
    missing = list(probe_result["missing"])
    host: dict[str, object] = {"cpus": cpus, "memory_mib": memory_mib}
    if runtime == "docker":
        host["docker_version"] = docker_version
    missing += [name for name, value in host.items() if value is None]
    return {
        "labels": node_labels(
            gpus=probe_result["gpus"],
            driver_version=probe_result["driver_version"],
            cuda_version=probe_result["cuda_version"],
            gpu_injection=gpu_injection,
            own={"runtime": runtime, **own_labels},
        ),
        "driver_version": probe_result["driver_version"],
        "cuda_version": probe_result["cuda_version"],
        "docker_version": docker_version,
        "agent_version": agent_version,
        "runtime": runtime,
        "gpu_injection": gpu_injection,
        "sharing": "none",
        "cpus": cpus,
        "memory_mib": memory_mib,
        "gpus": probe_result["gpus"],
        "links": probe_result["links"],
        "missing": missing,
        "address": address,
        "gang_ports": [*gang_ports],
    }
