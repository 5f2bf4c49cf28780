"""One reading of all GPUs through NVML, field by field.

A field that cannot be read is None and named in `missing`; it never hides the rest. The UUID
alone is mandatory. Part of the NVML child process: only light imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from gpuyard_agent.gpus.links import read_links
from gpuyard_agent.gpus.mig import name_of_card, read_profile, read_split
from gpuyard_agent.gpus.processes import (
    GpuProcess,
    Identities,
    OwnProcesses,
    foreign_processes,
    usable_pid,
)

if TYPE_CHECKING:
    from gpuyard.model.node import GpuFacts, GpuSample, Health, ProbeResult

MIB: Final = 1024 * 1024
_FUNCTION_NOT_FOUND: Final = 13
_GPU_IS_LOST: Final = 15
_TEMPERATURE_OF_GPU: Final = 0
_T = TypeVar("_T")


class Nvml(Protocol):
    """The part of the NVML binding that is called: the module `pynvml`, or the simulation."""

    NVMLError: Any
    nvmlMemory_v2: Any

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> Any: ...
    def nvmlSystemGetCudaDriverVersion(self) -> Any: ...
    def nvmlDeviceGetCount(self) -> Any: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> Any: ...
    def nvmlDeviceGetName(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMinorNumber(self, handle: Any) -> Any: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any: ...
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: Any = None) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> Any: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any: ...
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> Any: ...
    def nvmlDeviceGetP2PStatus(self, a: Any, b: Any, index: int) -> Any: ...
    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> Any: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, a: Any, b: Any) -> Any: ...
    def nvmlDeviceGetMigMode(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any: ...
    def nvmlDeviceGetAttributes(self, handle: Any) -> Any: ...


class ProbeContext:
    """What a reading needs beside NVML, kept by its caller from one reading to the next."""

    __slots__ = ("identities", "own", "pids", "uses_memory_v1", "wants_links")

    def __init__(
        self,
        identities: Identities,
        *,
        own: OwnProcesses | None = None,
        wants_links: bool = True,
    ) -> None:
        self.identities = identities
        self.own = own or OwnProcesses()
        self.wants_links = wants_links
        """Links cost milliseconds per pair and do not change: asked when True, else []."""
        self.pids: set[int] = set()
        """Every pid of the last reading."""
        self.uses_memory_v1 = False
        """Set once the driver turned out to lack the newer call."""


class _Memory(NamedTuple):
    total_mib: int | None = None
    reserved_mib: int | None = None
    used_mib: int | None = None
    free_mib: int | None = None


class _Guard:
    """Reads fields one by one; a failure costs that field, and a lost GPU is remembered."""

    __slots__ = ("_errors", "_nvml_error", "lost")

    def __init__(self, nvml: Nvml) -> None:
        self._nvml_error = nvml.NVMLError
        # AttributeError: the binding is too old for the call. The binding's complaint about an
        # old driver is an exception of its own, outside NVMLError.
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        self._errors = (nvml.NVMLError, mismatch, AttributeError, TypeError, ValueError)
        self.lost = False

    def read(self, call: Callable[[], _T | None]) -> _T | None:
        """What `call` returns, None where it fails."""
        return self.read_or_code(call)[0]

    def read_or_code(self, call: Callable[[], _T | None]) -> tuple[_T | None, int | None]:
        """What `call` returns and None, or None and NVML's error code (-1 for another failure)."""
        try:
            return call(), None
        except self._errors as failure:
            if not isinstance(failure, self._nvml_error):
                return None, -1
            code = getattr(failure, "value", -1)
            self.lost = self.lost or code == _GPU_IS_LOST
            return None, code if isinstance(code, int) else -1


def probe(nvml: Nvml, context: ProbeContext) -> ProbeResult:
    """Reads every GPU. Raises `nvml.NVMLError` only where the GPUs cannot even be counted.

    A GPU that NVML calls lost stays listed as `lost` with what could still be read; one whose
    UUID cannot be read is left out and named in `missing` as `gpus[INDEX].uuid`. The instances of a
    GPU in MIG mode follow it; where not all of them could be read, its own `missing` has `mig`.
    Labels and the date of the health are left to `GpuHistory`, on the agent's side.
    """
    count = int(nvml.nvmlDeviceGetCount())
    context.pids.clear()
    guard = _Guard(nvml)
    driver_version = guard.read(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    cuda_version = guard.read(lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion()))
    missing = _names_of_none(driver_version=driver_version, cuda_version=cuda_version)
    gpus: list[GpuFacts] = []
    samples: list[GpuSample] = []
    handles: list[tuple[str, Any]] = []
    for index in range(count):
        found = _identify(nvml, index)
        if found is None:
            missing.append(f"gpus[{index}].uuid")
            continue
        uuid, handle = found
        facts, sample = _read_gpu(nvml, context, uuid=uuid, index=index, handle=handle)
        gpus.append(facts)
        samples.append(sample)
        handles.append((uuid, handle))
        for instance, measured in _read_instances(nvml, context, facts, handle):
            gpus.append(instance)
            samples.append(measured)
    context.identities.forget_all_but(context.pids)
    links, all_known = read_links(nvml, handles) if context.wants_links else ([], True)
    if not all_known:
        missing.append("links")
    return {
        "driver_version": driver_version,
        "cuda_version": cuda_version,
        "gpus": gpus,
        "links": links,
        "samples": samples,
        "missing": missing,
    }


def _identify(nvml: Nvml, index: int) -> tuple[str, Any] | None:
    guard = _Guard(nvml)
    handle = guard.read(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    uuid = guard.read(lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    return None if uuid is None else (uuid, handle)


def _read_gpu(
    nvml: Nvml, context: ProbeContext, *, uuid: str, index: int, handle: Any
) -> tuple[GpuFacts, GpuSample]:
    guard = _Guard(nvml)
    memory = _read_memory(nvml, context, guard, handle)
    facts = _facts(nvml, guard, memory, uuid=uuid, index=index, handle=handle)
    sample = _sample(nvml, context, guard, memory, uuid=uuid, handle=handle)
    if guard.lost:
        sample["health"] = _health("lost", "gpu_lost")
    return facts, sample


def _read_instances(
    nvml: Nvml, context: ProbeContext, parent: GpuFacts, handle: Any
) -> Iterator[tuple[GpuFacts, GpuSample]]:
    """The MIG instances of a GPU; what is known of that only now is added to its own facts."""
    split = read_split(nvml, _Guard(nvml), handle)
    if split.is_split:
        parent["mig"] = {"profile": None, "parent": None}
    is_known = split.is_known
    for instance in split.instances:
        guard = _Guard(nvml)
        uuid = guard.read(lambda instance=instance: _text(nvml.nvmlDeviceGetUUID(instance)))  # type: ignore[misc]
        if uuid is None:
            is_known = False
            continue
        facts, sample = _read_gpu(nvml, context, uuid=uuid, index=parent["index"], handle=instance)
        yield _of_instance(nvml, facts, parent, instance), sample
    if not is_known:
        parent["missing"].append("mig")


def _of_instance(nvml: Nvml, facts: GpuFacts, parent: GpuFacts, handle: Any) -> GpuFacts:
    """The facts of an instance: what is its GPU's is taken from there."""
    profile = read_profile(
        nvml, _Guard(nvml), handle, name=facts["name"], parent_mib=parent["memory_total_mib"]
    )
    card = parent["name"] or name_of_card(facts["name"])
    capability = parent["compute_capability"] or facts["compute_capability"]
    missing = {"name": card, "compute_capability": capability, "mig.profile": profile}
    kept = [key for key in facts["missing"] if key.startswith("memory_")]
    return {
        **facts,
        "minor": None,
        "name": card,
        "compute_capability": capability,
        "pci_bus_id": parent["pci_bus_id"],
        "mig": {"profile": profile, "parent": parent["uuid"]},
        "missing": [*_names_of_none(**missing), *kept],
    }


def _facts(
    nvml: Nvml, guard: _Guard, memory: _Memory, *, uuid: str, index: int, handle: Any
) -> GpuFacts:
    facts: GpuFacts = {
        "uuid": uuid,
        "index": index,
        "minor": guard.read(lambda: _count(nvml.nvmlDeviceGetMinorNumber(handle))),
        "name": guard.read(lambda: _text(nvml.nvmlDeviceGetName(handle))),
        "compute_capability": guard.read(
            lambda: _capability(nvml.nvmlDeviceGetCudaComputeCapability(handle))
        ),
        "memory_total_mib": memory.total_mib,
        "memory_reserved_mib": memory.reserved_mib,
        "pci_bus_id": guard.read(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        "mig": None,
        "labels": {},
        "missing": [],
    }
    # A whole GPU has no `mig`: there None says so, it is not a field that could not be read.
    facts["missing"] = [key for key, value in facts.items() if value is None and key != "mig"]
    return facts


def _sample(
    nvml: Nvml,
    context: ProbeContext,
    guard: _Guard,
    memory: _Memory,
    *,
    uuid: str,
    handle: Any,
) -> GpuSample:
    found = _read_processes(nvml, guard, handle)
    context.pids.update(process.pid for process in found or ())
    foreign = foreign_processes(found or (), context.own, context.identities)
    memories = [process["memory_mib"] for process in foreign]
    known = [memory_mib for memory_mib in memories if memory_mib is not None]
    complete = found is not None and len(known) == len(memories)
    milliwatts = guard.read(lambda: _count(nvml.nvmlDeviceGetPowerUsage(handle)))
    sample: GpuSample = {
        "uuid": uuid,
        "memory_used_mib": memory.used_mib,
        "memory_free_mib": memory.free_mib,
        "memory_foreign_mib": sum(known) if complete else None,
        "utilization_percent": guard.read(
            lambda: _count(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        ),
        "temperature_c": guard.read(
            lambda: _count(nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_OF_GPU))
        ),
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "health": _health("healthy", None),
        "foreign": foreign,
        "missing": [],
    }
    sample["missing"] = [key for key, value in sample.items() if value is None]
    if found is None:
        sample["missing"].append("foreign")
    return sample


def _health(state: str, reason: str | None) -> Health:
    return {"state": state, "reason": reason, "since": None}


def _read_memory(nvml: Nvml, context: ProbeContext, guard: _Guard, handle: Any) -> _Memory:
    """The newer call first: only it tells what the driver reserves from what is used."""
    if not context.uses_memory_v1:
        newer, code = guard.read_or_code(lambda: _memory_v2(nvml, handle))
        if newer is not None:
            return newer
        if code == _FUNCTION_NOT_FOUND:
            context.uses_memory_v1 = True
    return guard.read(lambda: _memory_v1(nvml, handle)) or _Memory()


def _memory_v2(nvml: Nvml, handle: Any) -> _Memory:
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return _Memory(_mib(info.total), _mib(info.reserved), _mib(info.used), _mib(info.free))


def _memory_v1(nvml: Nvml, handle: Any) -> _Memory:
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return _Memory(_mib(info.total), None, _mib(info.used), _mib(info.free))


def _read_processes(nvml: Nvml, guard: _Guard, handle: Any) -> list[GpuProcess] | None:
    """Every process on the GPU once, None where the driver does not list them."""
    compute = _listed(nvml, guard, "Compute", handle)
    if compute is None:
        return None
    # A desktop's memory is taken as well; a driver without graphics has no such list.
    graphics = _listed(nvml, guard, "Graphics", handle) or []
    merged: dict[int, int | None] = {}
    for process in [*compute, *graphics]:
        before = merged.get(process.pid)
        known = [size for size in (before, process.memory_mib) if size is not None]
        merged[process.pid] = max(known, default=None)
    return [GpuProcess(pid, memory_mib) for pid, memory_mib in merged.items()]


def _listed(nvml: Nvml, guard: _Guard, kind: str, handle: Any) -> list[GpuProcess] | None:
    # The binding's own name is its newest version, which an older driver does not have.
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    newest = guard.read(lambda: _processes(getattr(nvml, name)(handle)))
    if newest is not None or guard.lost:
        return newest
    return guard.read(lambda: _processes(getattr(nvml, f"{name}_v2")(handle)))


def _processes(listed: Any) -> list[GpuProcess]:
    return [
        GpuProcess(entry.pid, None if entry.usedGpuMemory is None else _mib(entry.usedGpuMemory))
        for entry in listed
        if usable_pid(entry.pid)
    ]


def _text(value: Any) -> str | None:
    """Text from str or bytes: the binding has returned either."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {type(value).__name__}")
    return value or None


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"a number expected, not {value!r}")
    return value


def _mib(value: Any) -> int:
    return _count(value) // MIB


def _capability(value: Any) -> str:
    major, minor = value
    return f"{_count(major)}.{_count(minor)}"


def _cuda_version(value: Any) -> str:
    number = _count(value)
    return f"{number // 1000}.{number % 1000 // 10}"


def _names_of_none(**fields: object) -> list[str]:
    return [name for name, value in fields.items() if value is None]
