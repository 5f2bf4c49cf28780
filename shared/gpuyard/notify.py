"""Telling systemd how a daemon stands (`Type=notify`, sd_notify(3)); no library, no effect elsewhere."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager


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
    """Seconds within which the manager expects a sign of life of this process; None if it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdigit() and int(text) > 0 else None


@contextmanager
def ready() -> Iterator[None]:
    """Inside: ready, with signs of life from the running event loop. On leaving: stopping."""
    tell("READY=1")
    limit_s = watchdog_s()
    alive = asyncio.ensure_future(_keep_alive(limit_s / 3)) if limit_s else None
    try:
        yield
    finally:
        if alive is not None:
            alive.cancel()
        tell("STOPPING=1")


async def _keep_alive(every_s: float) -> None:
    while True:
        tell("WATCHDOG=1")
        await asyncio.sleep(every_s)
