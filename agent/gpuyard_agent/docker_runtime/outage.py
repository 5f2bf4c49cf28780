"""Times in which the engine was away, and which ends were its doing.

An engine that stops without live-restore takes its containers along (SIGTERM, then SIGKILL), and
one that comes back after a crash ends those that still run. An engine with live-restore ends none,
but may lose an exit code and say 255. Between the two processes nobody could end anything but the
container itself: such an end is its own.

Engines keep no record of their restarts, so the process behind the socket tells: when it was gone,
and when its successor began.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from gpuyard_agent.core.containers import Exit
from gpuyard_agent.core.times import epoch_s
from gpuyard_agent.docker_runtime.facts import AMBIGUOUS, UNKNOWN
from gpuyard_agent.docker_runtime.streams import Address

_SLACK_S: Final = 1.0
_RESTORE_S: Final = 60.0
"""How long a new engine may take to end what its predecessor left running."""
_DEFAULT_SOCKETS: Final = ("/var/run/docker.sock", "/run/docker.sock")
_PID_FILE: Final = Path("/run/docker.pid")
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The dockerd behind a local socket; `began` is in seconds since 1970."""

    pid: int
    ticks: int
    """Its start on the boot clock: a pid alone may be used again."""
    began: float

    @classmethod
    def behind(cls, address: Address, peer: int | None) -> Self | None:
        """The process that listens there; None where it is on another host or cannot be seen.

        `peer` is who made the socket. That is systemd where it activates docker by its socket;
        the engine's own file then names the process.
        """
        if peer == 1 and address.path in _DEFAULT_SOCKETS:
            try:
                peer = int(_PID_FILE.read_text())
            except (OSError, ValueError):
                return None
        stat = _stat(peer) if peer else None
        if peer is None or stat is None:
            return None
        ticks = int(stat[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return cls(peer, ticks, time.time() - age_s)

    @property
    def is_alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.ticks and stat[0] not in "ZX"


@dataclass(frozen=True, slots=True)
class Outage:
    """One absence of the engine, by the wall clock that engines date ends with."""

    live_restore: bool
    until: float
    """When it answered again."""
    since: float = _NEVER
    """When it was missed first; never where it was restarted before this agent looked."""
    gone: float | None = None
    """When its process was known to be gone, None where that could not be seen."""
    back: float | None = None
    """When its successor's process began, None where that could not be seen."""

    def ended(self, exit: Exit, *, began: float | None = None) -> bool:
        """True where the engine's absence is what ended a container, as far as can be told.

        `began` is when the container was started; it counts where the restart was not witnessed:
        then only a code that does not speak for itself (137, 143, 255) is put down to it.
        """
        at = epoch_s(exit.ended_at)
        if at is None or not self.since - _SLACK_S <= at <= self.until + _SLACK_S:
            return False
        if self.since == _NEVER and not self._was_missed(exit, at, began):
            return False
        if exit.code is None or exit.code == UNKNOWN:
            return True
        return not self.live_restore and (exit.code in AMBIGUOUS or not self._was_alone(at))

    def _was_missed(self, exit: Exit, at: float, began: float | None) -> bool:
        if self.back is None or began is None or exit.out_of_memory:
            return False
        is_of_before = began < self.back and at <= self.back + _RESTORE_S
        return is_of_before and (exit.code is None or exit.code in AMBIGUOUS)

    def _was_alone(self, at: float) -> bool:
        """True for a time at which there was no engine."""
        return (
            self.gone is not None
            and self.back is not None
            and self.gone < at < self.back - _SLACK_S / 10
        )


def is_ghost(inspect: Mapping[str, Any], engine: EngineProcess | None) -> bool:
    """True where the process of a running container does not exist.

    Only where the engine's own process can be seen, or this agent looks from inside a container.
    """
    pid = inspect["State"].get("Pid")
    return (
        bool(pid) and engine is not None and engine.is_alive and not Path(f"/proc/{pid}").exists()
    )


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; its name may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
