"""A yard in memory, filled by the coordinator's own core: each node runs one job per GPU."""

from typing import Any, Final

from gpuyard.messages import Beat
from gpuyard.model.intake import parse_spec
from gpuyard.model.job import spec_digest
from gpuyard.model.node import GpuFacts, GpuSample, NodeFacts, gpu_labels, node_labels
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import NodeBeat, Submitted
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import Now

GPUS: Final = 8
_AT: Final = "2026-01-01T00:00:00.000Z"
_TOKEN: Final = (1, 1)


def filled_cluster(nodes: int) -> Cluster:
    """`nodes` nodes of 8 GPUs with a running job on each GPU."""
    cluster = Cluster(yard="bench0", token=_TOKEN)
    planner = Planner(cluster, Packer(cluster.settings))
    now = Now(100.0, _AT)
    for number in range(nodes):
        apply(cluster, NodeBeat(beat(f"node-{number}")), now, Effects())
    for number in range(nodes * GPUS):
        apply(cluster, submitted(number), now, Effects())
    plan = planner.plan(nodes * GPUS, now)
    for placement in plan.placements:
        apply(cluster, placement, now, Effects())
    if len(plan.placements) != nodes * GPUS:
        raise RuntimeError(f"{len(plan.placements)} of {nodes * GPUS} jobs were placed")
    return cluster


def submitted(number: int) -> Submitted:
    spec = parse_spec(
        {
            "name": f"train-{number}",
            "image": "pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime",
            "command": ["python", "train.py", "--seed", str(number)],
            "gpus": 1,
            "env": {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "8"},
            "memory_mib": 32768,
            "max_runtime": "4h",
        }
    ).normalised()
    return Submitted(
        tenant="team-a",
        user="alice",
        user_verified=False,
        id=f"{number:016d}",
        spec=spec,
        spec_sha256=spec_digest(spec),
        sequence=number + 1,
    )


def beat(node: str) -> Beat:
    return {
        "v": 1,
        "yard": "bench0",
        "node": node,
        "machine_id": f"machine-of-{node}",
        "boot_id": "boot-1",
        "instance": f"instance-of-{node}",
        "started_ns": 1,
        "seq": 1,
        "ts": _AT,
        "applied": {"token": list(_TOKEN), "revision": 1},
        "adopting": False,
        "generation": 1,
        "facts": _facts(node),
        "sample_age_s": 0.1,
        "samples": [_sample(_uuid(node, index)) for index in range(GPUS)],
        "reasons": [],
        "attempts": [],
        "stopping": False,
    }


def _facts(node: str) -> NodeFacts:
    gpus = [_gpu(node, index) for index in range(GPUS)]
    return {
        "labels": node_labels(
            gpus=gpus,
            driver_version="550.54.15",
            cuda_version="12.4",
            gpu_injection="toolkit",
            own={"zone": "a"},
        ),
        "driver_version": "550.54.15",
        "cuda_version": "12.4",
        "docker_version": "28.2.2",
        "agent_version": "0.1.0",
        "runtime": "docker",
        "gpu_injection": "toolkit",
        "sharing": "none",
        "cpus": 128.0,
        "memory_mib": 1024 * 1024,
        "gpus": gpus,
        "links": [],
        "missing": [],
    }


def _uuid(node: str, index: int) -> str:
    number = int(node.rpartition("-")[2])
    return f"GPU-{number:08x}-0000-4000-8000-{index:012x}"


def _gpu(node: str, index: int) -> GpuFacts:
    known: dict[str, Any] = {
        "name": "NVIDIA A100-SXM4-80GB",
        "compute_capability": "8.0",
        "memory_total_mib": 81920,
    }
    return {
        "uuid": _uuid(node, index),
        "index": index,
        "minor": index,
        "name": known["name"],
        "compute_capability": known["compute_capability"],
        "memory_total_mib": known["memory_total_mib"],
        "memory_reserved_mib": 600,
        "pci_bus_id": f"00000000:{index:02X}:00.0",
        "mig": None,
        "labels": gpu_labels(known),
        "missing": [],
    }


def _sample(uuid: str) -> GpuSample:
    return {
        "uuid": uuid,
        "memory_used_mib": 600,
        "memory_free_mib": 81320,
        "memory_foreign_mib": 0,
        "utilization_percent": 0,
        "temperature_c": 40,
        "power_w": 60.0,
        "health": {"state": "healthy", "reason": None, "since": None},
        "foreign": [],
        "missing": [],
    }
