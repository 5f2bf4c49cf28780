"""The public traces of the packing benchmark, read as nodes and shapes of the yard.

Format of the "openb" lists: Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). A model in
`gpu_spec` is a line of `models`, a part of a GPU a share by compute. The lists say nothing of GPU
memory, so each GPU gets an equal one, which then binds nothing.
"""

import csv
import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from gpuyard.model.node import GpuFacts, GpuSample, NodeFacts
from gpuyard.model.states import NodeState
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu, Node, Shape

NODES: Final = "openb_node_list_gpu_node.csv"
_GPU_MIB: Final = 16_000


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a trace."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class BadTrace(Exception):
    """A file is missing or is no trace; the text says which and why."""


def read_machines(folder: Path) -> list[Machine]:
    rows = _rows(folder, NODES, ("cpu_milli", "memory_mib", "gpu", "model"))
    return [
        Machine(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in rows
    ]


def read_tasks(folder: Path, name: str) -> list[Shape]:
    """The tasks of one list, as `default` or `gpushare40`, in its order."""
    columns = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    shapes = [_shape(row) for row in _rows(folder, f"openb_pod_list_{name}.csv", columns)]
    alike: dict[Shape, Shape] = {}
    return [alike.setdefault(shape, shape) for shape in shapes]


def demand_milli(shape: Shape) -> int:
    if shape.share_core_percent is not None:
        return round(shape.share_core_percent * WHOLE_GPU_MILLI / 100)
    return shape.gpus * WHOLE_GPU_MILLI


def make_nodes(machines: Sequence[Machine], seed: int) -> list[Node]:
    """Nodes under names whose order is a random one: the order that breaks ties."""
    numbers = list(range(len(machines)))
    random.Random(seed).shuffle(numbers)
    return [_node(f"n{n:05d}", machine) for n, machine in zip(numbers, machines, strict=True)]


def made_up_tasks(count: int, seed: int) -> list[Shape]:
    """A list in the manner of a public one, made up: many shares, few large jobs."""
    rng = random.Random(seed)
    kinds = [(cpus, part, 0, 30) for cpus in (2, 4, 6) for part in (16, 33, 46, 55, 81)]
    kinds += [(cpus, 0, 1, 70) for cpus in (4, 8, 10, 12, 16)] + [(32, 0, 2, 10), (88, 0, 8, 3)]
    kinds += [(cpus, 0, 0, 30) for cpus in (1, 4)]
    weights = [weight for *_, weight in kinds]
    shapes = [
        Shape(
            gpus=gpus,
            share_core_percent=float(part) if part else None,
            cpu_milli=1000 * cpus,
            memory_mib=2048 * cpus,
        )
        for cpus, part, gpus, _ in kinds
    ]
    return rng.choices(shapes, weights, k=count)


def _rows(folder: Path, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
            rows = list(csv.DictReader(text.splitlines()))
            missing = [column for column in columns if not rows or rows[0].get(column) is None]
            if missing:
                raise BadTrace(f"{path} has no column {missing[0]}")
            return rows
    raise BadTrace(f"{folder} has no {name} or {name}.gz")


def _shape(row: dict[str, str]) -> Shape:
    gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
    is_share = gpus == 1 and milli < WHOLE_GPU_MILLI
    spec = row.get("gpu_spec") or ""
    return Shape(
        gpus=0 if is_share else gpus,
        share_core_percent=milli * 100 / WHOLE_GPU_MILLI if is_share else None,
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        models=tuple(spec.split("|")) if spec and gpus else None,
    )


def _node(name: str, machine: Machine) -> Node:
    facts = [_gpu_facts(name, index, machine.model) for index in range(machine.gpus)]
    return Node(
        name=name,
        machine_id=name,
        boot_id=name,
        facts=cast(
            NodeFacts,
            {
                "labels": {},
                "driver_version": None,
                "cpus": machine.cpu_milli / 1000,
                "memory_mib": machine.memory_mib,
                "gpus": facts,
                "links": [],
            },
        ),
        generation=1,
        state=NodeState.READY,
        is_proven=True,
        sample_age_s=0.0,
        gpus={facts["uuid"]: Gpu(facts, _sample(facts["uuid"])) for facts in facts},
    )


def _gpu_facts(node: str, index: int, model: str) -> GpuFacts:
    facts: dict[str, Any] = {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "memory_total_mib": _GPU_MIB,
        "mig": None,
        "labels": {"gpu-name": model},
    }
    return cast(GpuFacts, facts)


def _sample(uuid: str) -> GpuSample:
    sample: dict[str, Any] = {
        "uuid": uuid,
        "memory_used_mib": 0,
        "memory_foreign_mib": 0,
        "health": {"state": "healthy", "reason": None, "since": None},
        "foreign": [],
    }
    return cast(GpuSample, sample)
