"""Simulated NVML: stands in for the module `pynvml`, driven by one node of a fleet file.

Time comes from an injected clock, so that faults can be played without waiting. Part of the NVML
child process: only light imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuyard_agent.gpus.processes import Identity
from gpuyard_agent.gpus.simulated_node import (
    ERRORS,
    NodeDefinition,
    SimulatedFault,
    SimulatedGpu,
    SimulatedProcess,
    derived_uuid,
    instance_uuid,
    link_kind,
)

if TYPE_CHECKING:
    from gpuyard.model.node import LinkKind

MIB: Final = 1024 * 1024
_TEXTS: Final[Mapping[int, str]] = {
    1: "Uninitialized",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "Driver/library version mismatch",
}
_LEVELS: Final[Mapping[LinkKind, int]] = {"nvlink": 30, "pcie": 20, "numa": 40, "system": 50}
_BEST_FIRST: Final[tuple[LinkKind, ...]] = ("nvlink", "pcie", "numa", "system")
_P2P_OK: Final = 0
_P2P_NOT_SUPPORTED: Final = 5
_MIG_SLOTS: Final = 7
_INSTANCE: Final = 1 << 16
"""A handle is the number of a GPU; of a MIG instance also, times this, its slot from 1."""
_MIG_DRIVER: Final = 470
"""The first that names MIG instances by themselves."""
_INSTANCE_USABLE: Final = 0.95
"""Of the memory in a profile's name, about what an instance has."""


class NVMLError(Exception):
    """As the binding's class of that name: `value` is NVML's return code."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _TEXTS.get(self.value, "Unknown Error")


class SimulatedStall(Exception):
    """A call that would hang, or kill its process, where the simulation runs in the agent's own."""


class _Info:
    """A structure as the binding returns it."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class _Active(NamedTuple):
    """What is in force at one moment: places in the definition's lists."""

    faults: tuple[int, ...]
    processes: tuple[int, ...]


def stall(remaining_s: float | None) -> None:
    """The default way to hang or crash: raises `SimulatedStall`."""
    raise SimulatedStall(remaining_s)


class SimulatedNvml:
    """The calls of `pynvml` that gpuyard makes, on the GPUs of `definition`.

    `clock` tells the seconds since the node's start; it is read when GPUs are counted and in
    `refresh`, and all calls in between see that one moment. `hang` is called with the seconds
    until the fault ends (None: never) and may return to let the call go on; `crash` should not.
    """

    NVMLError: Any = NVMLError
    nvmlMemory_v2: Any = 0x02000028

    def __init__(
        self,
        definition: NodeDefinition,
        *,
        clock: Callable[[], float],
        hang: Callable[[float | None], None] = stall,
        crash: Callable[[float | None], None] = stall,
    ) -> None:
        self._definition = definition
        self._clock = clock
        self._hang = hang
        self._crash = crash
        self._active = _Active((), ())
        self._kinds: list[LinkKind] = []
        self.calls = 0
        """Calls made so far; tells tests whether a reading was reused."""

    def refresh(self) -> object:
        """Moves to the clock's moment; equal answers mean that nothing changed in between."""
        definition = self._definition
        if definition["faults"] or definition["processes"]:
            now = self._clock()
            self._active = _Active(
                _in_force(definition["faults"], now), _in_force(definition["processes"], now)
            )
        return self._active

    def of(self, pid: int) -> Identity:
        """Who a planted process is."""
        for process in self._planted():
            if process["pid"] == pid:
                container = process["container"]
                return Identity(process["user"], (container,) if container else ())
        return Identity()

    def forget_all_but(self, pids: Iterable[int]) -> None:
        """Nothing is remembered: who a planted process is stands in the definition."""

    def nvmlInit(self) -> None:
        self.refresh()
        self._call("init", None)

    def nvmlShutdown(self) -> None:
        self.calls += 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes | None:
        do = self._call("all", None)
        version = self._definition["driver_version"]
        return version.encode() if do == "bytes" and version else version

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        self._call("all", None)
        version = self._definition["cuda_version"]
        if version is None:
            raise NVMLError(ERRORS["not_supported"])
        major, _, minor = version.partition(".")
        return int(major) * 1000 + int(minor or 0) * 10

    def nvmlDeviceGetCount(self) -> int:
        self.refresh()
        self._call("init", None)
        return len(self._enumerated())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.calls += 1
        return self._enumerated()[index]

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        self.calls += 1
        uuid = self._uuid(handle)
        # Kept readable under a fault of all calls: without it the GPU could not be told of.
        return uuid.encode() if self._behaviour("all", handle) == "bytes" else uuid

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        do = self._call("name", handle)
        name: str = _known(self._gpu(handle)["name"])
        if (profile := self._profile(handle)) is not None:
            name = f"{name} MIG {profile}"
        return name.encode() if do == "bytes" else name

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        self._call("all", handle)
        self._whole_only(handle)
        minor = self._gpu(handle)["minor"]
        return handle if minor is None else minor

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        self._call("all", handle)
        capability: str = _known(self._gpu(handle)["compute_capability"])
        major, _, minor = capability.partition(".")
        return int(major), int(minor or 0)

    def nvmlDeviceGetPciInfo(self, handle: int) -> _Info:
        self._call("all", handle)
        given = self._gpu(handle)["pci_bus_id"]
        return _Info(busId=given or f"00000000:{handle + 1:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: Any = None) -> _Info:
        do = self._call("memory", handle)
        if do == "v1_only" and version:
            raise NVMLError(ERRORS["function_not_found"])
        if do in ("bytes", "wrong_type"):
            return _Info(total=b"N/A", reserved=b"N/A", used=b"N/A", free=b"N/A")
        gpu = self._gpu(handle)
        profile = self._profile(handle)
        total: int = _known(gpu["memory_mib"] if profile is None else _usable_mib(profile)) * MIB
        reserved = gpu["reserved_mib"] * MIB if profile is None else 0
        used = sum(process["memory_mib"] or 0 for process in self._on(handle)) * MIB
        free = max(0, total - reserved - used)
        if version:
            return _Info(total=total, reserved=reserved, used=used, free=free)
        return _Info(total=total, used=used + reserved, free=free)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> _Info:
        do = self._call("utilization", handle)
        self._whole_only(handle)
        return _Info(gpu="N/A" if do in ("bytes", "wrong_type") else 0, memory=0)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int | str:
        do = self._call("temperature", handle)
        self._whole_only(handle)
        return "N/A" if do in ("bytes", "wrong_type") else 30

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int | str:
        do = self._call("power", handle)
        self._whole_only(handle)
        return "N/A" if do in ("bytes", "wrong_type") else 20_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[_Info]:
        do = self._call("processes", handle)
        if do in ("bytes", "wrong_type"):
            return [_Info(pid=b"1", usedGpuMemory=b"1")]
        return [
            _Info(
                pid=process["pid"],
                usedGpuMemory=None
                if process["memory_mib"] is None
                else process["memory_mib"] * MIB,
            )
            for process in self._on(handle)
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[_Info]:
        self._call("processes", handle)
        return []

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        self.calls += 1
        return _P2P_OK if self._link(a, b) == "nvlink" else _P2P_NOT_SUPPORTED

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        self.calls += 1
        if link >= 18:
            raise NVMLError(2)
        return 1

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        self.calls += 1
        return _LEVELS[self._link(a, b)]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        self._call("all", handle)
        mode = int(_known(self._geometry(handle)) is not None)
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        self._call("all", handle)
        return _MIG_SLOTS

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        self._call("all", handle)
        if index >= len(self._geometry(handle) or ()):
            raise NVMLError(ERRORS["not_found"])
        return (index + 1) * _INSTANCE + handle

    def nvmlDeviceGetAttributes(self, handle: int) -> _Info:
        self._call("all", handle)
        profile: str = _known(self._profile(handle))
        slices = int(profile.partition("g.")[0][-1])
        return _Info(
            gpuInstanceSliceCount=slices,
            computeInstanceSliceCount=int(profile[0]),
            memorySizeMB=_usable_mib(profile),
        )

    def _gpu(self, handle: int) -> SimulatedGpu:
        return self._definition["gpus"][handle % _INSTANCE]

    def _uuid(self, handle: int) -> str:
        given = self._gpu(handle)["uuid"]
        uuid = given or derived_uuid(self._definition["name"], handle % _INSTANCE)
        if (profile := self._profile(handle)) is None:
            return uuid
        major = int((self._definition["driver_version"] or "0").partition(".")[0])
        slot = handle // _INSTANCE - 1
        return instance_uuid(uuid, slot, profile, is_old=major < _MIG_DRIVER)

    def _geometry(self, handle: int) -> Sequence[str] | None:
        """Profiles of a GPU's instances; None where it is not in MIG mode."""
        for fault in self._faults():
            if fault["do"] == "geometry" and self._is(handle, fault["gpu"]):
                return fault.get("mig") or []
        return self._gpu(handle)["mig"]

    def _profile(self, handle: int) -> str | None:
        """None for a GPU."""
        if handle < _INSTANCE:
            return None
        return (self._geometry(handle % _INSTANCE) or [])[handle // _INSTANCE - 1]

    def _whole_only(self, handle: int) -> None:
        if handle >= _INSTANCE:
            raise NVMLError(ERRORS["not_supported"])

    def _link(self, a: int, b: int) -> LinkKind:
        if not self._kinds:
            self._kinds = [link_kind(gpu) for gpu in self._definition["gpus"]]
        return max(self._kinds[a], self._kinds[b], key=_BEST_FIRST.index)

    def _enumerated(self) -> list[int]:
        everything = range(len(self._definition["gpus"]))
        present = [at for at in everything if self._behaviour("all", at) != "vanish"]
        if any(fault["do"] == "renumber" for fault in self._faults()):
            present.reverse()
        return present

    def _planted(self) -> list[SimulatedProcess]:
        return [self._definition["processes"][at] for at in self._active.processes]

    def _on(self, handle: int) -> list[SimulatedProcess]:
        return [p for p in self._planted() if self._is(handle, p["gpu"])]

    def _faults(self) -> list[SimulatedFault]:
        return [self._definition["faults"][at] for at in self._active.faults]

    def _is(self, handle: int, gpu: int | str | None) -> bool:
        """A fault of a GPU is one of its instances too."""
        if isinstance(gpu, str):
            return gpu in (self._uuid(handle), self._uuid(handle % _INSTANCE))
        return gpu is None or gpu == handle % _INSTANCE

    def _fault(self, call: str, handle: int | None) -> SimulatedFault | None:
        if not self._active.faults:
            return None
        calls = (call,) if call in ("init", "all") else (call, "all")
        for fault in self._faults():
            if fault["do"] == "geometry":
                continue
            hits = fault["gpu"] is None if handle is None else self._is(handle, fault["gpu"])
            if hits and fault["call"] in calls:
                return fault
        return None

    def _behaviour(self, call: str, handle: int | None) -> str | None:
        fault = self._fault(call, handle)
        return fault["do"] if fault else None

    def _call(self, call: str, handle: int | None) -> str | None:
        """Plays the fault that hits this call; returns what else the call shall do itself."""
        self.calls += 1
        fault = self._fault(call, handle)
        if fault is None:
            return None
        do = fault["do"]
        if do in ERRORS:
            raise NVMLError(ERRORS[do])
        if do in ("hang", "crash"):
            until = None if fault["for_s"] is None else fault["at_s"] + fault["for_s"]
            left = None if until is None else max(0.0, until - self._clock())
            (self._hang if do == "hang" else self._crash)(left)
        return do


def _in_force(
    windows: Sequence[SimulatedFault] | Sequence[SimulatedProcess], now: float
) -> tuple[int, ...]:
    return tuple(
        at
        for at, window in enumerate(windows)
        if window["at_s"] <= now
        and (window["for_s"] is None or now < window["at_s"] + window["for_s"])
    )


def _usable_mib(profile: str) -> int:
    gib = profile.rpartition("g.")[2].partition("gb")[0]
    return int(int(gib) * 1024 * _INSTANCE_USABLE)


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError(ERRORS["not_supported"])
    return value
