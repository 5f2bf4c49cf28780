"""Whether a started container holds exactly its grant: the engine may have made something else.

A toolkit can ignore the ids it is given and expose every GPU, and an image's own
NVIDIA_VISIBLE_DEVICES can open what was never granted. This compares what the engine says of the
container with the launch; it asks nobody.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuyard_agent.core.launch import Launch
from gpuyard_agent.docker_runtime.payload import device_request

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def check_grant(inspect: Mapping[str, Any], launch: Launch) -> str | None:
    """What the container has that it was not granted, or lacks; None when all is as granted."""
    host: Mapping[str, Any] = inspect.get("HostConfig") or {}
    if host.get("Privileged"):
        return "the container is privileged, which opens every GPU of the host"
    return (
        _requests_differ(host.get("DeviceRequests") or [], launch)
        or _devices_differ(host.get("Devices") or [], launch)
        or _environment_differs((inspect.get("Config") or {}).get("Env") or [], launch)
    )


def _requests_differ(found: list[Mapping[str, Any]], launch: Launch) -> str | None:
    wanted = device_request(launch)
    if wanted is None:
        if found:
            return f"the container asks the engine for {_ids(found)}, and no request was made"
        if launch.gpus and launch.gpu_injection != "device-nodes":
            return f"{_names(g['uuid'] for g in launch.gpus)} granted, and none handed over"
        return None
    if any(request.get("Count") for request in found):
        return "the container asks the engine for a number of GPUs and not for those granted"
    have = [name for request in found for name in request.get("DeviceIDs") or []]
    if sorted(have) != sorted(wanted["DeviceIDs"]):
        return f"granted {_names(wanted['DeviceIDs'])}, the container has {_names(have)}"
    drivers = {request.get("Driver") or "" for request in found}
    # An engine may fill in the name of the driver that it chose.
    if wanted["Driver"] == "cdi" and drivers != {"cdi"}:
        return f"the GPUs were to come through cdi, not through {_names(sorted(drivers))}"
    return None


def _devices_differ(found: list[Mapping[str, Any]], launch: Launch) -> str | None:
    have = sorted(str(device.get("PathOnHost")) for device in found)
    wanted = sorted(launch.devices) if launch.gpu_injection == "device-nodes" else []
    if have == wanted:
        return None
    return f"granted devices {_names(wanted)}, the container has {_names(have)}"


def _environment_differs(found: Iterable[str], launch: Launch) -> str | None:
    wanted = launch.env.get(_VISIBLE)
    if wanted is None:
        return None
    values = [line.partition("=")[2] for line in found if line.startswith(f"{_VISIBLE}=")]
    if values and values[-1] == wanted:
        return None
    return f"{_VISIBLE} is {values[-1] if values else 'unset'} in the container and not {wanted}"


def _ids(requests: list[Mapping[str, Any]]) -> str:
    asked = [name for request in requests for name in request.get("DeviceIDs") or []]
    return _names(asked) if asked else "GPUs"


def _names(values: Iterable[str]) -> str:
    return ", ".join(values) or "none"
