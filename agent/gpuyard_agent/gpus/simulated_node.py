"""What a simulated node's GPUs are and what goes wrong with them: the words of the fleet file.

Plain data, so that it can be handed to the NVML child process as JSON; only light imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict

if TYPE_CHECKING:
    from gpuyard.model.node import LinkKind

CALLS: Final = (
    "init",
    "memory",
    "utilization",
    "temperature",
    "power",
    "processes",
    "name",
    "all",
)
ERRORS: Final = {
    "uninitialized": 1,
    "not_supported": 3,
    "no_permission": 4,
    "not_found": 6,
    "driver_not_loaded": 9,
    "library_missing": 12,
    "function_not_found": 13,
    "lost": 15,
    "driver_mismatch": 18,
    "unknown": 999,
}
"""What a fault may do → the code of the NVMLError that the call raises."""
BEHAVIOURS: Final = (
    *("hang", "crash", "bytes", "wrong_type", "v1_only", "vanish", "renumber"),
    "geometry",
)
"""What else a fault may do: never return, end the process, return the wrong type, lack the newer
memory call, be absent from the enumeration, turn the order of the indexes round, be split into
other MIG instances."""
_NVLINK_MODELS: Final = ("SXM", "H100", "H200")
_UUID_SPACE: Final = "6ba7b812-9dad-11d1-80b4-00c04fd430c8"


class SimulatedGpu(TypedDict):
    """One GPU of a definition; None leaves a field to its default, or unknown for `name`,
    `compute_capability` and `memory_mib` (a card that refuses memory queries)."""

    uuid: str | None
    name: str | None
    memory_mib: int | None
    reserved_mib: int
    compute_capability: str | None
    minor: int | None
    pci_bus_id: str | None
    links: LinkKind | None
    mig: Sequence[str] | None
    """Profiles of the MIG instances that it is split into; None: it is not in MIG mode."""


class SimulatedFault(TypedDict):
    """From `at_s` after the node's start, for `for_s` (None: for good), `call` fails as `do` says.

    `gpu` is an index or a UUID, None for all.
    """

    at_s: float
    for_s: float | None
    gpu: int | str | None
    call: str
    do: str
    mig: NotRequired[list[str]]
    """Where it does `geometry`: profiles of the instances meanwhile."""


class SimulatedProcess(TypedDict):
    """A process outside the yard that holds memory of a GPU for a while, or for good."""

    gpu: int | str
    pid: int
    memory_mib: int | None
    user: str | None
    container: str | None
    at_s: float
    for_s: float | None


class NodeDefinition(TypedDict):
    """What one simulated node's NVML answers from; plain JSON."""

    name: str
    driver_version: str | None
    cuda_version: str | None
    gpus: Sequence[SimulatedGpu]
    faults: Sequence[SimulatedFault]
    processes: Sequence[SimulatedProcess]


def derived_uuid(node: str, index: int) -> str:
    """The UUID of a simulated GPU: the same for the same node and index, everywhere."""
    from uuid import UUID, uuid5

    return f"GPU-{uuid5(UUID(_UUID_SPACE), f'gpuyard:{node}/{index}')}"


def instance_uuid(gpu: str, slot: int, profile: str, *, is_old: bool) -> str:
    """The UUID of a simulated MIG instance in a slot of a GPU; drivers before 470 name it by its
    GPU, with the numbers of its GPU instance and its compute instance."""
    from uuid import UUID, uuid5

    if is_old:
        return f"MIG-{gpu}/{slot + 1}/0"
    return f"MIG-{uuid5(UUID(_UUID_SPACE), f'gpuyard:{gpu}/{slot}/{profile}')}"


def link_kind(gpu: SimulatedGpu) -> LinkKind:
    """How this GPU reaches others: as its definition says, else by its model."""
    if gpu["links"] is not None:
        return gpu["links"]
    name = gpu["name"] or ""
    by_nvlink = any(part in name for part in _NVLINK_MODELS) and "PCIe" not in name
    return "nvlink" if by_nvlink else "pcie"
