"""What is sent to POST /containers/create: a pure function of a launch, exact to the byte."""

import math
from typing import Any, Final

from gpuyard_agent.core.launch import Launch, MountPoint

MIB: Final = 1024 * 1024

LOG_FILE_MIB: Final = 64
LOG_FILES: Final = 2
"""json-file has no limit of its own, so a chatty job would fill the host's disk.

Two files of 64 MiB: the engine drops the older half only past 128 MiB, so 64 MiB are always there
to be read again. A line costs about 75 bytes beside its text, which leaves about 65 MiB of text in
lines of 80 bytes before anything is dropped; a job's log on the bus is cut far below that.
"""


def container_payload(launch: Launch, *, default_ulimits: bool = True) -> dict[str, Any]:
    """The body that makes the container; equal launches give equal bodies.

    Without `default_ulimits` only those that the job itself asks for are in it.
    """
    payload: dict[str, Any] = {
        "Image": launch.image,
        "Labels": dict(launch.labels),
        "Env": [f"{name}={value}" for name, value in launch.env.items()],
        "Tty": launch.tty,
        "OpenStdin": False,
        "StopTimeout": math.ceil(launch.stop_grace_s),
        "HostConfig": _host_config(launch, default_ulimits),
    }
    if launch.command is not None:
        payload["Cmd"] = list(launch.command)
    if launch.entrypoint is not None:
        # One empty word is how the engine is told to drop the image's own; [] would keep it.
        payload["Entrypoint"] = list(launch.entrypoint) or [""]
    if launch.workdir is not None:
        payload["WorkingDir"] = launch.workdir
    if launch.run_as is not None:
        payload["User"] = launch.run_as
    ports = _port_bindings(launch)
    if ports:
        payload["ExposedPorts"] = {port: {} for port in ports}
        payload["HostConfig"]["PortBindings"] = ports
    return payload


def _host_config(launch: Launch, default_ulimits: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        # Without an init nobody reaps orphans, and process 1 ignores signals it has no handler for.
        "Init": True,
        # A container that came back by itself would run an attempt the yard believes to be over.
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": launch.network,
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": f"{LOG_FILE_MIB}m", "max-file": str(LOG_FILES)},
        },
    }
    if launch.memory_mib is not None:
        # Equal to Memory means no swap: a job over its limit is ended, not slowed for hours.
        config["Memory"] = config["MemorySwap"] = launch.memory_mib * MIB
    if launch.cpus is not None:
        config["NanoCpus"] = round(launch.cpus * 1_000_000_000)
    if launch.shm_mib is not None:
        config["ShmSize"] = launch.shm_mib * MIB
    if launch.mounts:
        config["Mounts"] = [_mount(mount) for mount in launch.mounts]
    if launch.tmpfs:
        config["Tmpfs"] = dict(launch.tmpfs)
    ulimits = [u for u in launch.ulimits if default_ulimits or not u.is_default]
    if ulimits:
        config["Ulimits"] = [
            {"Name": limit.name, "Soft": limit.soft, "Hard": limit.hard} for limit in ulimits
        ]
    return config | _gpus(launch)


def _gpus(launch: Launch) -> dict[str, Any]:
    if launch.gpu_injection == "device-nodes":
        return {"Devices": [_device(path) for path in launch.devices]} if launch.devices else {}
    request = device_request(launch)
    return {} if request is None else {"DeviceRequests": [request]}


def device_request(launch: Launch) -> dict[str, Any] | None:
    """The one request that names every granted GPU by UUID; None where none is to be made.

    Never a count: beside ids it is refused, and without either some engines give no GPU at all,
    silently.
    """
    uuids = [gpu["uuid"] for gpu in launch.gpus]
    if not uuids:
        return None
    if launch.gpu_injection == "toolkit":
        return {"Driver": "", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}
    if launch.gpu_injection == "cdi":
        return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in uuids]}
    return None


def _device(path: str) -> dict[str, str]:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}


def _mount(mount: MountPoint) -> dict[str, Any]:
    # Mounts and not Binds: those make a missing host folder, empty and owned by root, unasked.
    return {
        "Type": "bind" if mount.source.startswith("/") else "volume",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
    }


def _port_bindings(launch: Launch) -> dict[str, list[dict[str, str]]]:
    """Docker's manner: `8080:80` takes that host port, `80` any free one, on every address."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in launch.ports:
        numbers, _, protocol = port.partition("/")
        host, _, container = numbers.rpartition(":")
        name = f"{container}/{protocol or 'tcp'}"
        bindings.setdefault(name, []).append({"HostIp": "", "HostPort": host})
    return bindings
