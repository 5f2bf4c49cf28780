"""The fleet file: which simulated nodes there are and what goes wrong on them.

The YAML reader is loaded when a file is read, not before.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard.model.ids import is_name
from gpuyard.model.mig import is_profile
from gpuyard.model.quantities import counted
from gpuyard_agent.gpus.fleet_fields import Fields, FleetError, listed
from gpuyard_agent.gpus.simulated_node import (
    BEHAVIOURS,
    CALLS,
    ERRORS,
    NodeDefinition,
    SimulatedFault,
    SimulatedGpu,
    SimulatedProcess,
)

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_NODES: Final = 100_000
MAX_GPUS: Final = 255
"""Per node; a PCI bus number has two hex digits."""
MAX_INSTANCES: Final = 7
"""MIG instances of a GPU."""
_DEFAULT_CPUS: Final = 64.0
_DEFAULT_MEMORY_MIB: Final = 256 * 1024
_DEFAULT_DRIVER: Final = "550.54.15"
_DEFAULT_CUDA: Final = "12.4"
_VERSION: Final = re.compile(r"\d+(\.\d+)*")
_CAPABILITY: Final = re.compile(r"\d+\.\d+")
_LINKS: Final = ("nvlink", "pcie", "numa", "system")

__all__ = ["FleetError", "SimulatedNode", "default_fleet", "load_fleet", "parse_fleet"]


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One simulated node; the tuples are shared by all nodes of one entry."""

    name: str
    cpus: float
    memory_mib: int
    labels: Mapping[str, str]
    driver_version: str
    cuda_version: str
    gpus: tuple[SimulatedGpu, ...]
    faults: tuple[SimulatedFault, ...] = ()
    processes: tuple[SimulatedProcess, ...] = ()

    def definition(self) -> NodeDefinition:
        """What its simulated NVML answers from; can be written as JSON."""
        return {
            "name": self.name,
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "gpus": self.gpus,
            "faults": self.faults,
            "processes": self.processes,
        }


def default_fleet(count: int, *, name: str = "node-{i}") -> list[SimulatedNode]:
    """`count` nodes of 8 GeForce RTX 4090; `{i}` in `name` runs from 0."""
    gpu = _gpu(name="NVIDIA GeForce RTX 4090", memory_mib=24564, compute_capability="8.9")
    gpus = (gpu,) * 8
    labels: Mapping[str, str] = {}
    return [
        SimulatedNode(
            name=name.replace("{i}", str(i)),
            cpus=_DEFAULT_CPUS,
            memory_mib=_DEFAULT_MEMORY_MIB,
            labels=labels,
            driver_version=_DEFAULT_DRIVER,
            cuda_version=_DEFAULT_CUDA,
            gpus=gpus,
        )
        for i in range(count)
    ]


def load_fleet(path: str | Path) -> list[SimulatedNode]:
    """The nodes of a fleet file, YAML or JSON; raises `FleetError`, one line with the field."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("utf-8")
    except OSError as failure:
        raise FleetError(f"{path}: {failure.strerror or failure}") from failure
    except UnicodeDecodeError as failure:
        raise FleetError(f"{path}: is not UTF-8 text") from failure
    if len(raw) > MAX_FILE_BYTES:
        raise FleetError(f"{path}: has {len(raw)} bytes, the most is {MAX_FILE_BYTES}")
    try:
        document = _json(text) if text.lstrip().startswith("{") else _yaml(text)
        return parse_fleet(document)
    except FleetError as failure:
        raise FleetError(f"{path}: {failure}") from failure


def parse_fleet(document: object) -> list[SimulatedNode]:
    """The nodes of a fleet document that has been read already."""
    top = Fields(document, "", ("nodes",))
    nodes: list[SimulatedNode] = []
    first_at: dict[str, str] = {}
    uuids: set[str] = set()
    for at, entry in listed(top.raw("nodes"), "nodes", required=True):
        for node in _nodes(entry, at):
            if node.name in first_at:
                raise FleetError(f"{at}.name: {node.name} is taken by {first_at[node.name]}")
            first_at[node.name] = at
            _take_uuids(node, at, uuids)
            nodes.append(node)
            if len(nodes) > MAX_NODES:
                raise FleetError(f"{at}.count: a fleet has at most {MAX_NODES} nodes")
    return nodes


def _take_uuids(node: SimulatedNode, at: str, taken: set[str]) -> None:
    for uuid in (gpu["uuid"] for gpu in node.gpus):
        if uuid is not None and uuid in taken:
            raise FleetError(f"{at}.gpus: the UUID {uuid} stands for another GPU already")
        if uuid is not None:
            taken.add(uuid)


def _nodes(entry: object, at: str) -> Iterator[SimulatedNode]:
    fields = Fields(
        entry,
        at,
        (
            *("name", "count", "cpus", "memory_mib", "labels", "driver_version", "cuda_version"),
            *("gpus", "faults", "processes"),
        ),
    )
    name = fields.text("name", default=None)
    if name is None:
        raise FleetError(f"{at}.name: is missing")
    count = fields.whole("count", default=1, least=1, most=MAX_NODES)
    if count > 1 and "{i}" not in name:
        raise FleetError(f"{at}.name: needs {{i}} in it where count is above 1")
    labels = fields.labels("labels")
    cpus = fields.number("cpus", default=_DEFAULT_CPUS)
    memory_mib = fields.whole("memory_mib", default=_DEFAULT_MEMORY_MIB, least=1)
    driver = fields.version("driver_version", _VERSION, default=_DEFAULT_DRIVER, like="535.183.01")
    cuda = fields.version("cuda_version", _CAPABILITY, default=_DEFAULT_CUDA, like="12.2")
    gpus = _gpus(fields, at)
    faults = tuple(_faults(fields.raw("faults"), f"{at}.faults", gpus))
    processes = tuple(_processes(fields.raw("processes"), f"{at}.processes", gpus))
    for i in range(count):
        expanded = name.replace("{i}", str(i))
        if not is_name(expanded):
            raise FleetError(
                f"{at}.name: {expanded!r} is no node name"
                " (lower-case letters, digits and hyphens, 63)"
            )
        yield SimulatedNode(
            expanded, cpus, memory_mib, labels, driver, cuda, gpus, faults, processes
        )


def _gpus(fields: Fields, at: str) -> tuple[SimulatedGpu, ...]:
    gpus: list[SimulatedGpu] = []
    for place, entry in listed(fields.raw("gpus"), f"{at}.gpus"):
        gpus += _gpu_group(entry, place)
        if len(gpus) > MAX_GPUS:
            raise FleetError(f"{place}.count: a node has at most {MAX_GPUS} GPUs")
    return tuple(gpus)


def _gpu_group(entry: object, at: str) -> list[SimulatedGpu]:
    fields = Fields(
        entry,
        at,
        (
            *("name", "count", "memory_mib", "reserved_mib", "compute_capability", "uuids"),
            *("minor", "pci_bus_id", "links", "mig"),
        ),
    )
    count = fields.whole("count", default=1, least=1, most=MAX_GPUS)
    uuids = [uuid for _, uuid in listed(fields.raw("uuids"), f"{at}.uuids")]
    if uuids and len(uuids) != count:
        raise FleetError(f"{at}.uuids: {len(uuids)} of them for {counted(count, 'GPUs')}")
    if not all(isinstance(uuid, str) and uuid.startswith("GPU-") for uuid in uuids):
        raise FleetError(f"{at}.uuids: a UUID is text that begins with GPU-")
    memory_mib = fields.maybe_whole("memory_mib", least=1)
    reserved_mib = fields.whole("reserved_mib", default=0, most=memory_mib)
    minor = fields.maybe_whole("minor")
    bus_id = fields.text("pci_bus_id", default=None)
    if count > 1 and (minor is not None or bus_id is not None):
        raise FleetError(f"{at}.count: minor and pci_bus_id are for one GPU, not for {count}")
    gpu = _gpu(
        name=fields.text("name", default=None),
        memory_mib=memory_mib,
        reserved_mib=reserved_mib,
        compute_capability=fields.version(
            "compute_capability", _CAPABILITY, default=None, like="8.0"
        ),
        minor=minor,
        pci_bus_id=bus_id,
        links=fields.choice("links", _LINKS, default=None),
        mig=None if fields.raw("mig") is None else _profiles(fields),
    )
    if not uuids:
        return [gpu] * count
    return [{**gpu, "uuid": str(uuid)} for uuid in uuids]


def _gpu(
    *,
    name: str | None,
    memory_mib: int | None,
    compute_capability: str | None,
    reserved_mib: int = 0,
    minor: int | None = None,
    pci_bus_id: str | None = None,
    links: Any = None,
    mig: Sequence[str] | None = None,
) -> SimulatedGpu:
    return {
        "uuid": None,
        "name": name,
        "memory_mib": memory_mib,
        "reserved_mib": reserved_mib,
        "compute_capability": compute_capability,
        "minor": minor,
        "pci_bus_id": pci_bus_id,
        "links": links,
        "mig": mig,
    }


def _faults(entries: object, at: str, gpus: tuple[SimulatedGpu, ...]) -> Iterator[SimulatedFault]:
    for place, entry in listed(entries, at):
        fields = Fields(entry, place, ("at", "for", "gpu", "call", "do", "mig"))
        do = fields.choice("do", (*ERRORS, *BEHAVIOURS), default=None)
        if do is None:
            raise FleetError(f"{place}.do: is missing")
        if (do == "geometry") != (fields.raw("mig") is not None):
            raise FleetError(f"{place}.mig: belongs to do: geometry, and is needed there")
        fault: SimulatedFault = {
            "at_s": fields.seconds("at", default=0.0),
            "for_s": fields.seconds("for", default=None),
            "gpu": _which_gpu(fields, gpus),
            "call": fields.choice("call", CALLS, default="all") or "all",
            "do": do,
        }
        if do == "geometry":
            fault["mig"] = _profiles(fields)
        yield fault


def _profiles(fields: Fields) -> list[str]:
    """Of the MIG instances of a GPU, in the order of their slots."""
    profiles: list[str] = []
    for at, profile in listed(fields.raw("mig"), f"{fields.at}.mig"):
        if not isinstance(profile, str) or not is_profile(profile):
            raise FleetError(f"{at}: a MIG profile is expected, as 1g.10gb, not {profile!r}")
        profiles.append(profile)
    if len(profiles) > MAX_INSTANCES:
        raise FleetError(f"{fields.at}.mig: a GPU has at most {MAX_INSTANCES} instances")
    return profiles


def _processes(
    entries: object, at: str, gpus: tuple[SimulatedGpu, ...]
) -> Iterator[SimulatedProcess]:
    for place, entry in listed(entries, at):
        fields = Fields(
            entry, place, ("gpu", "pid", "memory_mib", "user", "container", "at", "for")
        )
        gpu = _which_gpu(fields, gpus)
        yield {
            "gpu": 0 if gpu is None else gpu,
            "pid": fields.whole("pid", default=1, least=1),
            "memory_mib": fields.maybe_whole("memory_mib"),
            "user": fields.text("user", default=None),
            "container": fields.text("container", default=None),
            "at_s": fields.seconds("at", default=0.0),
            "for_s": fields.seconds("for", default=None),
        }


def _which_gpu(fields: Fields, gpus: tuple[SimulatedGpu, ...]) -> int | str | None:
    value = fields.raw("gpu")
    if isinstance(value, str) and value.startswith(("GPU-", "MIG-")):
        return value
    index = fields.maybe_whole("gpu")
    if index is not None and index >= len(gpus):
        raise FleetError(f"{fields.at}.gpu: there is no GPU {index}, the node has {len(gpus)}")
    return index


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as failure:
        raise FleetError(str(failure)) from failure


def _yaml(text: str) -> object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as failure:
        raise FleetError(_one_line(failure)) from failure


def _one_line(failure: Exception) -> str:
    mark = getattr(failure, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = getattr(failure, "problem", None) or str(failure)
    return where + str(problem).strip().splitlines()[0]
