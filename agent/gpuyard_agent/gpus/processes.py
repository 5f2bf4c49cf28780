"""Who is behind a pid that NVML names: its login and its container, read from /proc.

Part of the NVML child process: only light modules of the standard library may be imported here.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from gpuyard.model.node import ForeignProcess

SHORT_ID: Final = 12
"""Digits of a container id that are shown where its name is not known."""
_CONTAINER_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""As in docker/ID, docker-ID.scope, libpod-ID.scope, cri-containerd-ID.scope, kubepods/…/ID."""
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""How the kernel begins the name of the MPS daemon and its server (cut at 15 characters)."""


class OwnProcesses(NamedTuple):
    """What belongs to attempts of this yard, so that it is not counted as foreign.

    A pid stands for its descendants, its process group and its session too. `names` gives other
    containers' names by full id, where the caller knows them.
    """

    containers: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    names: Mapping[str, str] = {}


class Identity(NamedTuple):
    """Who a process is; None where it cannot be told."""

    user: str | None = None
    containers: tuple[str, ...] = ()
    """Full ids, outermost first: an engine inside a container nests its own in it."""
    lineage: frozenset[int] = frozenset()
    """The pid, its ancestors, its process group and its session."""
    is_mps_server: bool = False


class Identities(Protocol):
    """Where a probe asks who a pid is."""

    def of(self, pid: int) -> Identity: ...

    def forget_all_but(self, pids: Iterable[int]) -> None:
        """Drops what is remembered of processes that are on no GPU any more."""
        ...


class GpuProcess(NamedTuple):
    """A process that NVML lists on a GPU."""

    pid: int
    memory_mib: int | None


def containers_of(cgroup: str) -> tuple[str, ...]:
    """The containers that the text of a /proc/PID/cgroup names, v1 or v2, outermost first."""
    return tuple(dict.fromkeys(_CONTAINER_ID.findall(cgroup)))


def foreign_processes(
    found: Iterable[GpuProcess], own: OwnProcesses, identities: Identities
) -> list[ForeignProcess]:
    """Those of `found` that belong to no attempt of the yard; an MPS server is nobody's."""
    foreign: list[ForeignProcess] = []
    for process in found:
        who = identities.of(process.pid)
        if who.is_mps_server or _is_own(process.pid, who, own):
            continue
        foreign.append(
            {
                "pid": process.pid,
                "user": who.user,
                "container": _container_name(who.containers, own.names),
                "memory_mib": process.memory_mib,
            }
        )
    return foreign


def _is_own(pid: int, who: Identity, own: OwnProcesses) -> bool:
    return (
        not own.containers.isdisjoint(who.containers)
        or pid in own.pids
        or not own.pids.isdisjoint(who.lineage)
    )


def _container_name(containers: tuple[str, ...], names: Mapping[str, str]) -> str | None:
    # The outermost is the one that the host's engine knows.
    return (names.get(containers[0]) or containers[0][:SHORT_ID]) if containers else None


class ProcIdentities:
    """Identities read from a /proc tree, remembered while the process lives.

    A process that is gone by the time it is asked for keeps the identity it had, for as long as
    NVML lists it: its memory may be held longer than its entry in /proc.
    """

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._known: dict[int, tuple[str | None, Identity]] = {}

    def of(self, pid: int) -> Identity:
        stat = _stat_fields(self._read(pid, "stat"))
        start = stat[_START] if stat is not None else None
        known = self._known.get(pid)
        if known is not None and start in (known[0], None):
            return known[1]
        identity = self._look(pid, stat)
        self._known[pid] = (start, identity)
        return identity

    def forget_all_but(self, pids: Iterable[int]) -> None:
        keep = set(pids)
        self._known = {pid: entry for pid, entry in self._known.items() if pid in keep}

    def _look(self, pid: int, stat: list[str] | None) -> Identity:
        if stat is None:
            return Identity()
        return Identity(
            user=_login(self._read(pid, "status")),
            containers=containers_of(self._read(pid, "cgroup") or ""),
            lineage=self._lineage(pid, stat),
            is_mps_server=(self._read(pid, "comm") or "").startswith(_MPS_SERVER),
        )

    def _lineage(self, pid: int, stat: list[str]) -> frozenset[int]:
        lineage = {pid, int(stat[_GROUP]), int(stat[_SESSION])}
        parent = int(stat[_PARENT])
        while parent > 1 and parent not in lineage:
            lineage.add(parent)
            above = _stat_fields(self._read(parent, "stat"))
            parent = int(above[_PARENT]) if above else 0
        return frozenset(lineage - {0, 1})

    def _read(self, pid: int, name: str) -> str | None:
        try:
            with open(f"{self._root}/{pid}/{name}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return None


_PARENT: Final = 1
_GROUP: Final = 2
_SESSION: Final = 3
_START: Final = 19
"""Places in /proc/PID/stat, counted from the state, which follows the name in parentheses."""


def _stat_fields(text: str | None) -> list[str] | None:
    # The name may hold spaces and parentheses: what counts starts after its last one.
    fields = text.rpartition(")")[2].split() if text else []
    numbers = fields[1:20]
    if len(numbers) < _START or not all(part.lstrip("-").isdigit() for part in numbers):
        return None
    return fields


def _login(status: str | None) -> str | None:
    match = re.search(r"^Uid:\s+(\d+)", status or "", re.MULTILINE)
    if match is None:
        return None
    try:
        return str(pwd.getpwuid(int(match.group(1))).pw_name)
    except KeyError:
        return match.group(1)


def usable_pid(value: Any) -> bool:
    """False for what a driver may list and no process can have."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
