"""Why NVML as a whole cannot be used, in words and as one of the node's reason codes.

Part of the NVML child process: only light imports.
"""

import os
from typing import Final, NamedTuple

_VERSION_MISMATCH: Final = 18
_DRIVER_NOT_LOADED: Final = 9
_LIBRARY_NOT_FOUND: Final = 12
_LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
)


class Unusable(NamedTuple):
    """`message` is one line for people, `code` a key of `NODE_REASONS`."""

    message: str
    code: str = "nvml_unavailable"


def explain(failure: Exception, *, proc_root: str | None) -> Unusable:
    """What an NVMLError that hit the whole of NVML means; `proc_root` None: no host to look at."""
    value = getattr(failure, "value", None)
    if value == _VERSION_MISMATCH:
        return Unusable(
            f"the driver and its user libraries differ in version{_versions(proc_root)}:"
            " reboot or reload the nvidia modules",
            "driver_mismatch",
        )
    if value == _LIBRARY_NOT_FOUND:
        return Unusable("libnvidia-ml.so.1 was not found: is the NVIDIA driver installed?")
    if value == _DRIVER_NOT_LOADED:
        return Unusable("the NVIDIA driver is not loaded: try modprobe nvidia")
    return Unusable(f"NVML: {failure}")


def _versions(proc_root: str | None) -> str:
    if proc_root is None:
        return ""
    known = [
        f"{name} {version}"
        for name, version in (
            ("loaded", _kernel_driver(proc_root)),
            ("libraries", _library_version()),
        )
        if version
    ]
    return f" ({', '.join(known)})" if known else ""


def _kernel_driver(proc_root: str) -> str | None:
    try:
        with open(f"{proc_root}/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _library_version() -> str | None:
    for folder in _LIBRARY_FOLDERS:
        path = f"{folder}/libnvidia-ml.so.1"
        if os.path.exists(path):
            return os.path.realpath(path).partition(".so.")[2] or None
    return None
