"""What is played: machines, and jobs that come at a time and last for one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log
from random import Random
from typing import Any, Final, cast

from gpuyard.errors import GpuyardError
from gpuyard.model import mig
from gpuyard.model.node import GpuFacts, NodeFacts, gpu_labels, is_mig_instance, node_labels
from gpuyard.model.states import NodeState
from gpuyard_coordinator.core.conditions import measured
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu, Node

_STEP: Final = 1.25
"""Between two time limits that are given to jobs."""
_GANG_PORTS: Final = (29400, 30399)
"""More than a node has gangs."""
MOST_GPUS: Final = 255
"""Of one machine; what says more is a mistake."""
LEAST_S: Final = 1.0
"""How long a job lasts at least; its time limit is whole seconds."""


class BadInput(GpuyardError):
    """A file or an option that cannot be played; one line that says where and why."""


@dataclass(frozen=True, slots=True)
class Card:
    """A model of GPU."""

    name: str
    memory_mib: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    cpus: float
    memory_mib: int
    cards: tuple[Card, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    driver_version: str | None = None
    cuda_version: str | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job: when it comes, whose it is, what it asks for (normalised), how long it runs."""

    at_s: float
    tenant: str
    spec: Mapping[str, Any]
    lasts_s: float


@dataclass(slots=True)
class Workload:
    name: str
    machines: list[Machine] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    """By time."""
    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Documents in their kept form."""
    nodes: list[Node] = field(default_factory=list)
    """Of a record, instead of machines."""
    warm_up: int = 0
    """The first arrivals, whose waits are not counted."""
    left_out: int = 0
    """Jobs of the source that never ran."""

    @property
    def gpus(self) -> int:
        held = sum(len(machine.cards) for machine in self.machines)
        known = (gpu for node in self.nodes for gpu in node.facts["gpus"])
        return held + sum(not is_mig_instance(gpu) for gpu in known)


def demand_milli(spec: Mapping[str, Any], whole: int) -> int:
    """milli-GPUs that a job asks for; `whole` are a node's GPUs, for one that asks for all. A share
    by memory counts by its compute, if it says any, else as half a GPU: its size is the node's."""
    return (spec.get("nodes") or 1) * _demand_of_one(spec.get("gpus") or {}, whole)


def _demand_of_one(gpus: Mapping[str, Any], whole: int) -> int:
    if gpus.get("all"):
        return whole * WHOLE_GPU_MILLI
    if gpus.get("core_percent") is not None:
        return round(float(gpus["core_percent"]) * WHOLE_GPU_MILLI / 100)
    if gpus.get("memory_mib") is not None:
        return WHOLE_GPU_MILLI // 2
    count: int = len(gpus.get("ids") or ()) or gpus.get("count") or 0
    profile = gpus.get("mig")
    return count * (WHOLE_GPU_MILLI if profile is None else mig.milli_of(profile))


def at_speed(workload: Workload, speed: float) -> Workload:
    """Everything comes `speed` times as fast, and lasts as long as it did."""
    arrivals = [replace(each, at_s=each.at_s / speed) for each in workload.arrivals]
    return replace(workload, arrivals=arrivals)


def at_load(
    workload: Workload, *, percent: float, mean_runtime_s: float, jobs: int, seed: int
) -> Workload:
    """Jobs drawn from the workload's with replacement. They come at random (Poisson), last at
    random (exponential), and ask for `percent` of all GPUs on the average. As many as are there on
    the average come at once at the start, beside `jobs`, and count as warm-up.

    Raises BadInput where that cannot be.
    """
    chance, known = Random(seed), workload.arrivals
    largest = max((len(machine.cards) for machine in workload.machines), default=0)
    mean_milli = sum(demand_milli(each.spec, largest) for each in known) / max(1, len(known))
    if not mean_milli or not workload.gpus:
        raise BadInput(f"{workload.name}: --load needs jobs and machines with GPUs")
    rate = percent / 100 * workload.gpus * WHOLE_GPU_MILLI / (mean_milli * mean_runtime_s)
    arrivals, at_s, warm_up = list[Arrival](), 0.0, round(rate * mean_runtime_s)
    for number in range(warm_up + jobs):
        at_s += chance.expovariate(rate) if number >= warm_up else 0.0
        lasts_s = max(LEAST_S, chance.expovariate(1 / mean_runtime_s))
        arrivals.append(replace(chance.choice(known), at_s=at_s, lasts_s=lasts_s))
    return replace(workload, arrivals=arrivals, warm_up=warm_up)


def with_limits(workload: Workload, factor: float) -> Workload:
    """Every job without a time limit gets one, `factor` times as long as it lasts, rounded up by at
    most a quarter: many jobs share few limits, as where people choose them."""

    def limited(each: Arrival) -> Arrival:
        if each.spec.get("max_runtime"):
            return each
        steps = ceil(log(each.lasts_s * factor) / log(_STEP))
        seconds = ceil(_STEP ** max(0, steps))
        return replace(each, spec={**each.spec, "max_runtime": f"{seconds}s"})

    return replace(workload, arrivals=[limited(each) for each in workload.arrivals])


def nodes_of(machines: Iterable[Machine]) -> list[Node]:
    """The machines as nodes that are well and empty."""
    return [_node(machine) for machine in machines]


def _node(machine: Machine) -> Node:
    gpus = [_gpu_facts(machine.name, index, card) for index, card in enumerate(machine.cards)]
    facts: dict[str, Any] = {
        "labels": node_labels(
            gpus=gpus,
            driver_version=machine.driver_version,
            cuda_version=machine.cuda_version,
            gpu_injection="none",
            own=machine.labels,
        ),
        "driver_version": machine.driver_version,
        "cuda_version": machine.cuda_version,
        "docker_version": None,
        "agent_version": "",
        "runtime": "simulated",
        "gpu_injection": "none",
        "sharing": "none",
        "cpus": machine.cpus,
        "memory_mib": machine.memory_mib,
        "gpus": gpus,
        "links": [],
        "missing": [],
        "address": machine.name,
        "gang_ports": [*_GANG_PORTS],
    }
    return well_node(machine.name, cast(NodeFacts, facts))


def well_node(name: str, facts: NodeFacts) -> Node:
    """A node that takes work and holds none."""
    return Node(
        name=name,
        machine_id=name,
        boot_id=name,
        facts=facts,
        generation=1,
        state=NodeState.READY,
        is_proven=True,
        sample_age_s=0.0,
        gpus={each["uuid"]: Gpu(each, measured(each["uuid"])) for each in facts["gpus"]},
    )


def _gpu_facts(node: str, index: int, card: Card) -> GpuFacts:
    known = {
        "name": card.name,
        "memory_total_mib": card.memory_mib,
        "compute_capability": card.compute_capability,
    }
    return {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "minor": index,
        "name": card.name,
        "compute_capability": card.compute_capability,
        "memory_total_mib": card.memory_mib,
        "memory_reserved_mib": None,
        "pci_bus_id": None,
        "mig": None,
        "labels": gpu_labels(known),
        "missing": [],
    }


def sorted_by_time(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return sorted(arrivals, key=lambda each: each.at_s)
