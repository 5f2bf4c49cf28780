"""Who and where this agent is: clocks, machine, boot. Injected everywhere, so tests can choose."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuyard.errors import GpuyardError


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Clock:
    """`boot` counts on through a suspend and never jumps; `wall` is for texts only."""

    boot: Callable[[], float] = _boot_clock
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Host:
    """What makes a decision for this host and boot, and for no other."""

    machine_id: str
    boot_id: str
    cpus: float | None
    memory_mib: int | None


def this_host() -> Host:
    """Raises GpuyardError where the kernel does not tell which boot this is."""
    boot_id = _first_line("/proc/sys/kernel/random/boot_id")
    if not boot_id:
        raise GpuyardError("cannot read /proc/sys/kernel/random/boot_id")
    machine_id = _first_line("/etc/machine-id") or _first_line("/var/lib/dbus/machine-id")
    return Host(
        # A host without a machine id is told apart by its name; two of one name would clash anyway.
        machine_id=machine_id or f"host-{socket.gethostname()}",
        boot_id=boot_id,
        cpus=float(len(os.sched_getaffinity(0))),
        memory_mib=_memory_mib(),
    )


def has_nvidia_driver() -> bool:
    """True where this host is meant to have GPUs, whether or not they can be read now."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version"))


def _memory_mib() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return None


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
