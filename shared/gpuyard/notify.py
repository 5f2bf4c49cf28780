"""Telling systemd how a daemon stands (`Type=notify`, sd_notify(3)), and nobody else."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 10.0
"""How often the line of status is looked at where no watchdog asks for signs of life."""


class Life:
    """A daemon as its service manager sees it; made by `life`."""

    def __init__(self, status: Callable[[], str]) -> None:
        self._status = status
        self._told = ""
        self._is_ready = False
        self._is_ending = False

    def ready(self) -> None:
        """The start is over, whoever waits for it goes on; counts once."""
        if is_heard() and not self._is_ready:
            self._is_ready = True
            self._tell("READY=1\n", self._status())

    def look(self) -> None:
        """Tells the line of status at once where it is another than the one told last."""
        if is_heard() and (line := self._status()) != self._told:
            self._tell("", line)

    def stopping(self, *, within_s: float | None = None) -> None:
        """The daemon ends; `within_s` where that may take longer than the manager's own limit.
        Counts once."""
        if self._is_ending:
            return
        self._is_ending = True
        more = f"\nEXTEND_TIMEOUT_USEC={round(within_s * 1e6)}" if within_s is not None else ""
        tell(f"STOPPING=1{more}")

    def _tell(self, before: str, line: str) -> None:
        self._told = line
        tell(f"{before}STATUS={line}")


@contextmanager
def life(status: Callable[[], str]) -> Iterator[Life]:
    """Inside: signs of life from the running event loop, with what `status` gives in one line.

    The manager waits until `ready` is called. On leaving: stopping.
    """
    daemon = Life(status)
    daemon.look()
    living = asyncio.ensure_future(_live(daemon, watchdog_s())) if is_heard() else None
    try:
        yield daemon
    finally:
        if living is not None:
            living.cancel()
        daemon.stopping()


def is_heard() -> bool:
    """True where a service manager listens."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(state: str) -> None:
    """Sends `READY=1`, `STOPPING=1`, `WATCHDOG=1` or `STATUS=…` where a service manager listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall(state.encode())
        except OSError:
            # A manager that went away is no reason for a daemon to fail.
            return


def watchdog_s() -> float | None:
    """Seconds within which the manager expects a sign of life of this process, if it does."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() and int(text) > 0 else None


async def _live(daemon: Life, limit_s: float | None) -> None:
    while True:
        if limit_s is not None:
            tell("WATCHDOG=1")
        daemon.look()
        await asyncio.sleep(LOOK_S if limit_s is None else min(LOOK_S, limit_s / 3))
