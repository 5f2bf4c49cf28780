"""Tells systemd how the agent is: started, alive, stopping. Does nothing without its socket."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_USEC: Final = 1_000_000


class Notifier:
    """The notify socket of a service unit of type notify, and its watchdog."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        self._every_s = _watchdog_s(environment) / 2
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Started up; from now on the watchdog is fed from the event loop, so a stuck loop shows."""
        self._send("READY=1")
        if self._every_s > 0:
            self._feed()

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """Going down on request; the watchdog goes on being fed until `close`."""
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _feed(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._feed)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client,
        ):
            client.setblocking(False)
            client.sendto(message.encode(), self._address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Seconds that systemd waits for a sign of life; 0 where it does not watch this process."""
    if environment.get("WATCHDOG_PID") not in (None, str(os.getpid())):
        return 0.0
    try:
        return int(environment.get("WATCHDOG_USEC", "0")) / _USEC
    except ValueError:
        return 0.0
