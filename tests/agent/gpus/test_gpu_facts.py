"""A node's facts and labels from a reading."""

from typing import Any

from gpuyard.model.node import NodeFacts
from gpuyard_agent.gpus.facts import node_facts
from tests.agent.gpus.definitions import H200, RTX_4090, make_definition, probe_once


def facts_with(*gpus: dict[str, Any], **changes: Any) -> NodeFacts:
    given: dict[str, Any] = {
        "runtime": "docker",
        "gpu_injection": "toolkit",
        "docker_version": "27.1.0",
        "agent_version": "0.1.0",
        "own_labels": {"zone": "a"},
        "cpus": 64.0,
        "memory_mib": 524288,
    }
    definition = make_definition(*gpus, driver_version="535.183.01", cuda_version="12.2")
    return node_facts(probe_once(definition), **{**given, **changes})


def test_labels_of_a_node_of_4090s() -> None:
    assert facts_with({**RTX_4090, "count": 8})["labels"] == {
        "zone": "a",
        "gpu-name": "NVIDIA-GeForce-RTX-4090",
        "gpu-memory": "24GB",
        "gpu-count": "8",
        "compute-capability": "8.9",
        "gpu-driver-version": "535",
        "gpu-cuda-version": "12.2",
        "gpu-runtime": "nvidia",
        "runtime": "docker",
    }


def test_the_memory_label_of_an_h200() -> None:
    assert facts_with(H200)["labels"]["gpu-memory"] == "141GB"


def test_labels_of_a_mixed_node() -> None:
    labels = facts_with({**RTX_4090, "count": 2}, H200)["labels"]
    assert labels["gpu-name"] == "mixed"
    assert labels["gpu-count.NVIDIA-GeForce-RTX-4090"] == "2"
    assert labels["gpu-count.NVIDIA-H200"] == "1"
    assert "gpu-memory" not in labels
    assert labels["gpu-count"] == "3"


def test_what_the_host_does_not_tell_is_missing() -> None:
    facts = facts_with(H200, docker_version=None, cpus=None)
    assert facts["missing"] == ["cpus", "docker_version"]
    assert facts["cpus"] is None


def test_a_runtime_without_an_engine_misses_no_docker_version() -> None:
    assert facts_with(H200, runtime="simulated", docker_version=None)["missing"] == []
