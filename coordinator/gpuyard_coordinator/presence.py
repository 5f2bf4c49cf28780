"""Which coordinators there are: each says so every second, and keeps what the others said.

For people alone: `gpuyard status` shows it, and nothing is decided by it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from gpuyard import subjects
from gpuyard.bus import Bus, Message, Subscription
from gpuyard.errors import ProtocolError, Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.leader import Holder

EVERY_S: Final = 1.0
KEPT_S: Final = 3.5
"""Who was silent for so long is gone."""
_SHOWN: Final = ("host", "pid", "since", "refused_writes")


@dataclass(slots=True)
class Presence:
    """`role` is `leader`, `standby`, or `starting` until it has read the yard; `become` sets it."""

    bus: Bus
    holder: Holder
    clock: Clock
    role: str = "starting"
    refused_writes: int = 0
    """Of all its leaderships: what the bus did not take any more once another led."""
    on_change: Callable[[], None] = lambda: None
    """Called when `role` is another than before."""
    _commits: Callable[[], int] = lambda: 0
    _since: str = ""
    _others: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)

    def become(self, role: str) -> None:
        """From now on it has this role, and says so with the next message."""
        if role != self.role or not self._since:
            self.role, self._since = role, self.clock.timestamp()
            self.on_change()

    def lead(self, commits: Callable[[], int]) -> None:
        """Become the leader; `commits` tells how many it has made."""
        self._commits = commits
        self.become("leader")

    async def run(self) -> None:
        """Say it and listen, until cancelled."""
        subscription: Subscription | None = None
        try:
            while True:
                # Unsaid while the bus is down: those who did not hear it take this one for gone.
                with suppress(Unavailable):
                    if subscription is None:
                        subscription = await self.bus.app.subscribe(
                            subjects.PRESENCE, self._receive
                        )
                    await self.bus.app.publish(subjects.PRESENCE, self._own())
                await asyncio.sleep(EVERY_S)
        finally:
            if subscription is not None:
                await subscription.close()

    def leader(self) -> dict[str, Any]:
        """This coordinator's host, pid, since when it leads, its refused writes and its commits;
        each is None where it does not: a standby that is asked has found out that nobody leads."""
        own = self._own() if self.role == "leader" else {}
        return {key: own.get(key) for key in (*_SHOWN, "commits")}

    def standbys(self) -> list[dict[str, Any]]:
        """Those that follow or are about to, by host and pid; `ready` could lead at once."""
        others = [each for each in self._all() if each["role"] != "leader"]
        return [
            {key: each.get(key) for key in _SHOWN} | {"ready": each["role"] == "standby"}
            for each in sorted(others, key=lambda each: (each["host"], each["pid"]))
        ]

    def _all(self) -> list[dict[str, Any]]:
        now = self.clock.monotonic()
        self._others = {k: v for k, v in self._others.items() if now - v[0] < KEPT_S}
        return [self._own(), *(body for _, body in self._others.values())]

    def _own(self) -> dict[str, Any]:
        return {
            "v": 1,
            "id": self._id,
            "host": self.holder.name,
            "pid": self.holder.pid,
            "role": self.role,
            "since": self._since,
            "commits": self._commits(),
            "refused_writes": self.refused_writes,
        }

    @property
    def _id(self) -> str:
        holder = self.holder
        return f"{holder.machine_id}/{holder.pid_namespace}/{holder.pid}/{holder.started}"

    def _receive(self, message: Message) -> None:
        try:
            body = message.body()
            if body["id"] != self._id and body["role"] in ("leader", "standby", "starting"):
                shown = {"host": str(body["host"]), "pid": int(body["pid"])}
                self._others[str(body["id"])] = (self.clock.monotonic(), body | shown)
        except (ProtocolError, KeyError, TypeError, ValueError):
            return  # of another version: it is not shown
