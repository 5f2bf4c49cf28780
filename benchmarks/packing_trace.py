"""The traces of the packing benchmark as nodes and shapes of the yard: the public lists, and one
that is made up.

The lists are read as `gpuyard simulate` reads them. A model that a task asks for is a line of
`models` here, a part of a GPU a share by compute.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node
from gpuyard_coordinator.simulate import openb, workload
from gpuyard_coordinator.simulate.openb import Pod
from gpuyard_coordinator.simulate.workload import BadInput, Card

__all__ = ["BadInput", "Machine", "made_up_tasks", "make_nodes", "read_machines", "read_tasks"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a trace."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


def read_machines(folder: Path) -> list[Machine]:
    return [
        Machine(
            round(each.cpus * 1000),
            each.memory_mib,
            len(each.cards),
            each.cards[0].name if each.cards else "",
        )
        for each in openb.read_machines(folder)
    ]


def read_tasks(folder: Path, name: str) -> list[Shape]:
    """The tasks of one list, as `default` or `gpushare40`, in its order."""
    shapes = [_shape(pod) for pod in openb.read_pods(folder / f"openb_pod_list_{name}.csv")]
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
    return workload.nodes_of(
        workload.Machine(
            name=f"n{number:05d}",
            cpus=machine.cpu_milli / 1000,
            memory_mib=machine.memory_mib,
            cards=(Card(machine.model, openb.GPU_MIB),) * machine.gpus,
        )
        for number, machine in zip(numbers, machines, strict=True)
    )


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


def _shape(pod: Pod) -> Shape:
    return Shape(
        gpus=0 if pod.is_share else pod.gpus,
        share_core_percent=pod.gpu_milli * 100 / WHOLE_GPU_MILLI if pod.is_share else None,
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
        models=pod.models or None,
    )
