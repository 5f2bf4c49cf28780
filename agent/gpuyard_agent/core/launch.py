"""What a runtime is told to start: a whole, engine-neutral description made from a wanted entry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuyard.messages import GangPlace, GrantedGpu, WantedEntry
from gpuyard.model.grace import stop_grace_s
from gpuyard.model.node import GpuInjection

DEFAULT_GPU_SHM_MIB: Final = 8192


class AttemptKey(NamedTuple):
    """The unique key of an attempt, everywhere."""

    tenant: str
    job: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.tenant}/{self.job}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class MountPoint:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class UlimitValue:
    name: str
    soft: int
    hard: int
    is_default: bool = False
    """Added by the yard: left out where the engine may not grant it."""


GPU_ULIMITS: Final = (
    UlimitValue("memlock", -1, -1, is_default=True),
    UlimitValue("stack", 64 * 1024**2, 64 * 1024**2, is_default=True),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that one container is made from; equal entries give equal launches."""

    key: AttemptKey
    container_name: str
    labels: dict[str, str]
    image: str
    pull: str
    """missing, always or never."""
    command: list[str] | None
    entrypoint: list[str] | None
    env: dict[str, str]
    workdir: str | None
    run_as: str | None
    tty: bool
    gpus: tuple[GrantedGpu, ...]
    gpu_injection: GpuInjection
    devices: tuple[str, ...]
    """Device nodes to hand over, where the injection is device-nodes."""
    mounts: tuple[MountPoint, ...]
    cpus: float | None
    memory_mib: int | None
    shm_mib: int | None
    tmpfs: dict[str, str]
    ulimits: tuple[UlimitValue, ...]
    network: str
    ports: tuple[str, ...]
    stop_grace_s: float
    prepend_env: dict[str, str] = field(default_factory=dict)
    """Folders that go in front of a search path, the image's own or the job's."""
    sim: dict[str, str] = field(default_factory=dict)
    """The job's labels `sim.*`; only the simulated runtime reads them."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a launch depends on beside its wanted entry."""

    yard: str
    node: str
    epoch: str
    """The fencing token as `<generation>.<sequence>`."""
    gpu_injection: GpuInjection
    devices: tuple[str, ...] = ()
    """Device nodes of the granted GPUs, where the injection is device-nodes."""
    driver_mounts: tuple[MountPoint, ...] = ()
    """The driver's libraries, where the injection is device-nodes."""
    driver_env: Mapping[str, str] = field(default_factory=dict)
    """Search paths to put in front of the image's own, for `driver_mounts`."""
    deadline: str | None = None
    """When max_runtime will be over if it starts now; RFC 3339."""


def container_name(yard: str, key: AttemptKey, gang: GangPlace | None = None) -> str:
    """With the rank of a gang's member, since the engines of two nodes may be one."""
    name = f"gpuyard-{yard}-{key.tenant}-{key.job}-{key.attempt}"
    return name if gang is None else f"{name}-{gang['rank']}"


def launch_of(entry: WantedEntry, context: LaunchContext) -> Launch:
    """The launch that a wanted entry means on this node; the spec is trusted to be normalised."""
    spec, has_gpus = entry["spec"], bool(entry["gpus"])
    key = AttemptKey(entry["tenant"], entry["job"], entry["attempt"])
    labels: dict[str, str] = dict(spec.get("labels") or {})
    sim = {name: value for name, value in labels.items() if name.startswith("sim.")}
    return Launch(
        key=key,
        container_name=container_name(context.yard, key, entry.get("gang")),
        labels=labels | _own_labels(entry, context),
        image=spec["image"],
        pull=spec.get("pull") or "missing",
        command=spec.get("command"),
        entrypoint=spec.get("entrypoint"),
        env=_environment(entry, context),
        workdir=spec.get("workdir"),
        run_as=spec.get("run_as"),
        tty=bool(spec.get("tty")),
        gpus=tuple(entry["gpus"]),
        gpu_injection=context.gpu_injection,
        devices=context.devices if has_gpus else (),
        mounts=_mounts(spec, context.driver_mounts if has_gpus else ()),
        prepend_env=dict(context.driver_env) if has_gpus else {},
        cpus=spec.get("cpus"),
        memory_mib=spec.get("memory_mib"),
        shm_mib=_shm_mib(spec, has_gpus),
        tmpfs=dict(spec.get("tmpfs") or {}),
        ulimits=_ulimits(spec, has_gpus),
        network=spec.get("network") or "bridge",
        ports=(*(spec.get("ports") or ()), *_meeting_port(entry)),
        stop_grace_s=stop_grace_s(entry["spec"]),
        sim=sim,
    )


def _mounts(spec: Mapping[str, Any], driver: tuple[MountPoint, ...]) -> tuple[MountPoint, ...]:
    """What the job asks for, then the driver's where the job does not cover their place itself."""
    asked = tuple(
        MountPoint(m["source"], m["target"], bool(m.get("read_only")))
        for m in spec.get("mounts") or ()
    )
    covered = [mount.target.rstrip("/") + "/" for mount in asked]
    free = (m for m in driver if not any((m.target + "/").startswith(place) for place in covered))
    return (*asked, *free)


def _own_labels(entry: WantedEntry, context: LaunchContext) -> dict[str, str]:
    return {
        "gpuyard.yard": context.yard,
        "gpuyard.node": context.node,
        "gpuyard.tenant": entry["tenant"],
        "gpuyard.job": entry["job"],
        "gpuyard.attempt": str(entry["attempt"]),
        "gpuyard.epoch": context.epoch,
        "gpuyard.spec_sha256": entry["spec_sha256"],
    }


def _environment(entry: WantedEntry, context: LaunchContext) -> dict[str, str]:
    """The user's variables under ours; of ours only the order of devices may be overridden."""
    env: dict[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | dict(entry["spec"].get("env") or {})
    uuids = ",".join(gpu["uuid"] for gpu in entry["gpus"])
    env |= {
        "GPUYARD_JOB_ID": entry["job"],
        "GPUYARD_JOB_NAME": entry.get("name") or "",
        "GPUYARD_TENANT": entry["tenant"],
        "GPUYARD_USER": entry["user"],
        "GPUYARD_NODE": context.node,
        "GPUYARD_ATTEMPT": str(entry["attempt"]),
        "GPUYARD_GPU_UUIDS": uuids,
        # `void` over whatever the image says: images are built with `all`, and a default runtime
        # of nvidia would act on it. With CDI the devices come without the variable's help.
        "NVIDIA_VISIBLE_DEVICES": "void" if not uuids or context.gpu_injection == "cdi" else uuids,
    }
    _, separator, task = entry["job"].rpartition("_")
    if separator:
        env["GPUYARD_ARRAY_TASK"] = task
    if context.deadline is not None:
        env["GPUYARD_DEADLINE"] = context.deadline
    return env | _gang_env(entry.get("gang"))


def _gang_env(gang: GangPlace | None) -> dict[str, str]:
    """One process a container, as far as the yard knows: what starts more of them per node, as
    torchrun does, takes these for its own nodes."""
    if gang is None:
        return {}
    return {
        "RANK": str(gang["rank"]),
        "WORLD_SIZE": str(gang["size"]),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": gang["address"],
        "MASTER_PORT": str(gang["port"]),
    }


def _meeting_port(entry: WantedEntry) -> tuple[str, ...]:
    """On a network of its own rank 0 is met at its node's address all the same."""
    gang = entry.get("gang")
    if gang is None or gang["rank"] != 0 or entry["spec"].get("network") == "host":
        return ()
    return (f"{gang['port']}:{gang['port']}",)


def _shm_mib(spec: Mapping[str, Any], has_gpus: bool) -> int | None:
    if spec.get("shm_mib") is not None:
        return int(spec["shm_mib"])
    if spec.get("memory_mib") is not None:
        return max(1, int(spec["memory_mib"]) // 2)
    return DEFAULT_GPU_SHM_MIB if has_gpus else None


def _ulimits(spec: Mapping[str, Any], has_gpus: bool) -> tuple[UlimitValue, ...]:
    """What the job asks for, then what GPU programs need (pinned memory, deep stacks)."""
    asked = [UlimitValue(u["name"], u["soft"], u["hard"]) for u in spec.get("ulimits") or ()]
    if has_gpus:
        names = {ulimit.name for ulimit in asked}
        asked += [ulimit for ulimit in GPU_ULIMITS if ulimit.name not in names]
    return tuple(asked)
