"""What a node publishes: facts that change rarely, samples that change at every beat, labels.

Unknown is None and the field's name stands in `missing`; it is never guessed as 0. These are the
typed forms of plain dictionaries, so that an agent needs no validation library to build them.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NotRequired

from gpuyard._typing import TypedDict

RuntimeName = Literal["docker", "process", "simulated"]
GpuInjection = Literal["toolkit", "cdi", "device-nodes", "none"]
LinkKind = Literal["nvlink", "pcie", "numa", "system"]


class MigFacts(TypedDict):
    """Of an instance its profile and the UUID of the GPU that it is part of; of a GPU in MIG mode
    both are None, and it takes no work itself."""

    profile: str | None
    """As `1g.10gb`; None also where the driver does not tell it."""
    parent: str | None


class GpuFacts(TypedDict):
    """One schedulable device. Everything but `uuid` and `index` may be None."""

    uuid: str
    index: int
    """For display; that of a MIG instance is its GPU's."""
    minor: int | None
    """N of /dev/nvidiaN; taken from the driver, never from the index. MIG instances have none."""
    name: str | None
    compute_capability: str | None
    memory_total_mib: int | None
    memory_reserved_mib: int | None
    pci_bus_id: str | None
    mig: MigFacts | None
    labels: dict[str, str]
    missing: list[str]


class GpuLink(TypedDict):
    """How two GPUs of one node reach each other, best first: nvlink, pcie, numa, system."""

    a: str
    b: str
    kind: LinkKind
    links: int | None
    """Active NVLink lanes where the kind is nvlink."""


class NodeFacts(TypedDict):
    """What a node is; published whole, with a number that grows when any of it changes."""

    labels: dict[str, str]
    driver_version: str | None
    cuda_version: str | None
    """The highest CUDA version that the driver supports, as `12.2`."""
    docker_version: str | None
    agent_version: str
    runtime: RuntimeName
    gpu_injection: GpuInjection
    sharing: Literal["none", "mps"]
    cpus: float | None
    memory_mib: int | None
    gpus: list[GpuFacts]
    links: list[GpuLink]
    missing: list[str]
    address: NotRequired[str | None]
    """Under which other nodes reach this one; without it the node takes no member of a gang."""
    gang_ports: NotRequired[list[int]]
    """(first, last) of the ports at which gangs may meet here."""


class ForeignProcess(TypedDict):
    """A process that holds a GPU and belongs to no attempt of this yard."""

    pid: int
    user: str | None
    container: str | None
    """Name or short id of its container; None for a bare process."""
    memory_mib: int | None


class Health(TypedDict):
    state: str
    """healthy, unhealthy, dirty or lost."""
    reason: str | None
    since: str | None


class GpuSample(TypedDict):
    """What one GPU measured last; `memory_foreign_mib` is the sum over `foreign`."""

    uuid: str
    memory_used_mib: int | None
    memory_free_mib: int | None
    memory_foreign_mib: int | None
    utilization_percent: int | None
    temperature_c: int | None
    power_w: float | None
    health: Health
    foreign: list[ForeignProcess]
    missing: list[str]


NO_FACTS: Final[NodeFacts] = {
    "labels": {},
    "driver_version": None,
    "cuda_version": None,
    "docker_version": None,
    "agent_version": "",
    "runtime": "docker",
    "gpu_injection": "none",
    "sharing": "none",
    "cpus": None,
    "memory_mib": None,
    "gpus": [],
    "links": [],
    "missing": [],
}
"""Of a node that nothing is known of, and in place of facts that are looked at elsewhere."""


class NodeReason(TypedDict):
    """Why a node, or one GPU of it, takes no work. `code` is one of `NODE_REASONS`."""

    code: str
    message: str
    gpu: str | None
    since: str | None


NODE_REASONS: Final[dict[str, str]] = {
    "docker_unreachable": "the Docker Engine does not answer",
    "docker_permission": "the agent may not use the Docker socket",
    "gpu_sample_stale": "the GPUs have not been sampled for a while",
    "nvml_unavailable": "the NVIDIA driver's management library cannot be used",
    "driver_mismatch": "the driver and its user libraries differ in version",
    "toolkit_missing": "the engine cannot hand GPUs to containers",
    "gpu_lost": "a GPU fell off the bus",
    "gpu_unhealthy": "a GPU reports a fault",
    "gpu_dirty": "memory of an ended job is still held on a GPU",
    "duplicate_name": "another machine beats under this node's name",
    "adopting": "attempts are being taken over after a restart",
    "disk_low": "the Docker root is short of space",
    "failing": "job after job failed on it; one at a time tries it again",
    "mig_needs_toolkit": (
        "MIG instances reach containers by the NVIDIA Container Toolkit or CDI alone"
    ),
}
"""The registry of reason codes, shared by agent, coordinator and diagnosis."""


class ProbeResult(TypedDict):
    """One reading of all GPUs of a node."""

    driver_version: str | None
    cuda_version: str | None
    gpus: list[GpuFacts]
    links: list[GpuLink]
    samples: list[GpuSample]
    missing: list[str]
    error: NotRequired[str | None]
    """Why nothing could be read, where that is so."""
    error_code: NotRequired[str | None]
    """The matching key of `NODE_REASONS`."""


def is_mig_instance(gpu: GpuFacts) -> bool:
    mig = gpu["mig"]
    return mig is not None and mig["parent"] is not None


def label_value(text: str) -> str:
    """Text as a label's value: characters outside [A-Za-z0-9._-] become hyphens, at most 63."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text.strip())[:63].strip("-._")


def memory_label(total_mib: int) -> str:
    """GiB rounded up, printed with GB as the field does: 24,564 MiB is 24GB, 143,771 is 141GB."""
    return f"{math.ceil(total_mib / 1024)}GB"


def gpu_labels(gpu: Mapping[str, object]) -> dict[str, str]:
    """The labels of one GPU; a fact that is missing has no label."""
    labels: dict[str, str] = {}
    name, memory = gpu.get("name"), gpu.get("memory_total_mib")
    if isinstance(name, str) and name:
        labels["gpu-name"] = label_value(name)
    if isinstance(memory, int):
        labels["gpu-memory"] = memory_label(memory)
    if isinstance(gpu.get("compute_capability"), str):
        labels["compute-capability"] = str(gpu["compute_capability"])
    return labels


def node_labels(
    *,
    gpus: Sequence[GpuFacts],
    driver_version: str | None,
    cuda_version: str | None,
    gpu_injection: GpuInjection,
    own: Mapping[str, str],
) -> dict[str, str]:
    """The labels of a node: the operator's own, then the published facts over them.

    MIG instances are not among them, the GPUs that they are part of are. GPUs that differ give
    `gpu-name=mixed` and one `gpu-count.<name>` per model; a value on which they do not agree is
    left out.
    """
    labels = dict(own)
    gpus = [gpu for gpu in gpus if not is_mig_instance(gpu)]
    labels["gpu-count"] = str(len(gpus))
    names = Counter(gpu["labels"]["gpu-name"] for gpu in gpus if "gpu-name" in gpu["labels"])
    for key in ("gpu-name", "gpu-memory", "compute-capability"):
        values = {gpu["labels"].get(key) for gpu in gpus}
        if len(values) == 1 and (value := values.pop()):
            labels[key] = value
    if len(names) > 1:
        labels["gpu-name"] = "mixed"
        labels |= {f"gpu-count.{name}": str(count) for name, count in sorted(names.items())}
    if driver_version:
        labels["gpu-driver-version"] = driver_version.split(".", 1)[0]
    if cuda_version:
        labels["gpu-cuda-version"] = cuda_version
    if gpus:
        labels["gpu-runtime"] = "nvidia" if gpu_injection == "toolkit" else gpu_injection
    return labels
