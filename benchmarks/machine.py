"""What is asked of the machine: how busy it is, and what a process costs."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


class Busyness:
    """How busy all cores were since it was made, by whoever; a loaded machine gives worse times."""

    def __init__(self) -> None:
        self._before = _core_seconds()

    def percent(self) -> float:
        busy, whole = (
            after - before for after, before in zip(_core_seconds(), self._before, strict=True)
        )
        return 100 * busy / whole if whole else 0.0


def _core_seconds() -> tuple[float, float]:
    """(busy, all) ticks of all cores since boot."""
    fields = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of some processes together. A page that n processes share counts 1/n in PSS."""

    pss_mib: float
    rss_mib: float


def memory(pids: Iterable[int]) -> Memory:
    """From smaps_rollup, which the kernel counts exactly at the moment of reading."""
    pss = rss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                pss += int(rest.split()[0])
            elif name == "Rss":
                rss += int(rest.split()[0])
    return Memory(pss / 1024, rss / 1024)


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of processor time that these processes used so far, in user mode and in the kernel.

    Counted by the scheduler in nanoseconds for each thread, since ticks of 10 ms would be too
    coarse for a process that sleeps; a thread that has ended is missing, so ticks are the least.
    """
    total = 0.0
    for pid in pids:
        threads = Path(f"/proc/{pid}/task").iterdir()
        exact = sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += max(exact, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)
    return total


def family(pid: int) -> list[int]:
    """The process and all its descendants, in order of their ids."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return sorted(found)


def command_of(pid: int) -> str:
    """The command line of a process, for people."""
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    return " ".join(part.decode(errors="replace") for part in raw.split(b"\0") if part)


def wait_until(when: float) -> None:
    """Sleeps until `when` on the monotonic clock."""
    time.sleep(max(0.0, when - time.monotonic()))
