"""Nodes and jobs for tests of packing alone, everything that does not matter left at a default."""

from collections.abc import Mapping
from typing import Any, cast

from gpuyard.model.node import GpuSample, NodeFacts
from gpuyard.model.states import NodeState
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Gpu, Node, Settings
from tests.support.agents import Card, devices

SETTINGS = Settings()


def node(
    name: str = "a",
    cards: list[Card] | None = None,
    *,
    cpus: float | None = 96,
    memory_mib: int | None = 400_000,
    labels: Mapping[str, str] | None = None,
) -> Node:
    """A node that is well and empty."""
    facts = devices(name, cards or [])
    known: dict[str, Any] = {
        "labels": dict(labels or {}),
        "driver_version": None,
        "cpus": cpus,
        "memory_mib": memory_mib,
        "gpus": facts,
        "links": [],
    }
    return Node(
        name=name,
        machine_id=name,
        boot_id=name,
        facts=cast(NodeFacts, known),
        generation=1,
        state=NodeState.READY,
        is_proven=True,
        sample_age_s=0.0,
        gpus={gpu["uuid"]: Gpu(gpu, _sample(gpu["uuid"])) for gpu in facts},
    )


def share(percent: float, **shape: Any) -> Shape:
    return Shape(share_core_percent=percent, **shape)


def _sample(uuid: str) -> GpuSample:
    sample: dict[str, Any] = {
        "uuid": uuid,
        "memory_used_mib": 0,
        "memory_foreign_mib": 0,
        "health": {"state": "healthy", "reason": None, "since": None},
        "foreign": [],
    }
    return cast(GpuSample, sample)
