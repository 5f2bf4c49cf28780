"""The daemon's life: connect, follow, stand for election, lead until deposed or asked to stop."""

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from gpuyard import notify
from gpuyard.bus import Bus
from gpuyard.errors import NotAllowed, Unavailable
from gpuyard.messages import Token
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.leading import Leading
from gpuyard_coordinator.presence import Presence
from gpuyard_coordinator.racing import unless
from gpuyard_coordinator.record import Segments
from gpuyard_coordinator.settings import CoordinatorSettings
from gpuyard_coordinator.standby import Standby
from gpuyard_coordinator.store import Fenced

TURN_S: Final = 1.0
"""How long a leader that is asked to stop may take to end its turn."""
AFTER_FAULT_S: Final = 1.0
_LOOPBACK: Final = ("127.", "localhost", "[::1]")
log = structlog.get_logger()


def check_reach(settings: CoordinatorSettings) -> None:
    """Refuses a bus that others can reach without credentials; raises NotAllowed."""
    hosts = [part.rsplit("@", 1)[-1].split("://")[-1] for part in settings.url.split(",")]
    has_secret = bool(settings.credentials) or "@" in settings.url
    is_local = all(host.startswith(_LOOPBACK) for host in hosts)
    if not (is_local or has_secret or settings.insecure):
        raise NotAllowed(
            "the bus is not on loopback and no credentials are set: "
            "set credentials, or say --insecure"
        )


@dataclass(slots=True)
class Daemon:
    bus: Bus
    leadership: Leadership
    settings: CoordinatorSettings
    clock: Clock
    record: Segments | None = None
    """Where decisions are kept while it leads."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Returns once asked to stop, with the lease given back."""
        presence = Presence(self.bus, self.leadership.holder, self.clock)
        with notify.life(lambda: self._status(presence)) as life:
            presence.on_change = lambda: _tell_role(life, presence)
            await self._run(presence)

    async def _run(self, presence: Presence) -> None:
        telling = asyncio.create_task(presence.run())
        stopped = asyncio.create_task(self.stopping.wait())
        try:
            while not self.stopping.is_set():
                presence.become("starting")
                standby = Standby(
                    self.bus, self._rules(), self.clock, presence, self.leadership.look
                )
                try:
                    await self._serve(standby, presence, stopped)
                finally:
                    await standby.close()
        finally:
            log.info("stopping")
            await self.leadership.resign()
            for task in (stopped, telling):
                task.cancel()
            await asyncio.gather(stopped, telling, return_exceptions=True)

    def _status(self, presence: Presence) -> str:
        """The line that a service manager shows."""
        if not self.bus.is_connected:
            return "the bus is away"
        match presence.role:
            case "leader":
                return f"leads yard {self.leadership.yard} on {self.bus.url}"
            case "standby":
                return f"stands by on {self.bus.url}"
            case _:
                return f"reads the yard from {self.bus.url}"

    def _rules(self) -> Settings:
        return Settings(
            beat_s=self.settings.beat_s,
            suspect_s=self.settings.suspect_s,
            lost_s=self.settings.lost_s,
            fence_s=self.settings.fence_s,
            foreign_tolerated_mib=self.settings.foreign_tolerated_mib,
            starvation_after_s=self.settings.starvation_after_s,
            min_runtime_s=self.settings.min_runtime_s,
        )

    async def _serve(
        self, standby: Standby, presence: Presence, stopped: "asyncio.Task[Any]"
    ) -> None:
        """Follow until elected, then lead until that ends."""
        acquiring = asyncio.create_task(self._stand(standby))
        await asyncio.wait({acquiring, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            acquiring.cancel()
            await asyncio.gather(acquiring, return_exceptions=True)
        elif (fault := acquiring.exception()) is not None:
            # The next one reads the yard anew.
            log.error("following failed", exc_info=fault)
            await asyncio.sleep(AFTER_FAULT_S)
        elif (token := acquiring.result()) is not None:
            await self._lead(token, standby, presence, stopped)

    async def _stand(self, standby: Standby) -> Token | None:
        """The token once elected; raises what ends the following before that."""
        await standby.start()
        acquiring = self.leadership.acquire(standby.follower.ready.is_set)
        return await unless(standby.failed(), acquiring)

    async def _lead(
        self, token: Token, standby: Standby, presence: Presence, stopped: "asyncio.Task[Any]"
    ) -> None:
        leading = Leading(
            self.bus,
            self.leadership,
            self.clock,
            presence,
            beat_s=self.settings.beat_s,
            record=self.record,
        )
        running = asyncio.create_task(leading.run(token, standby))
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            leading.stop()
            await asyncio.wait({running}, timeout=TURN_S)
        running.cancel()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        await self.leadership.resign()  # where it failed before it led
        if isinstance(outcome, Fenced) or leading.refused_writes:
            presence.refused_writes += leading.refused_writes
            log.warning("deposed", refused_writes=leading.refused_writes)
        elif isinstance(outcome, Exception):
            # Whatever it was, what is committed is sound: somebody begins again from there.
            if isinstance(outcome, Unavailable):
                log.warning("leading ends: the bus is away", fault=str(outcome))
            else:
                log.error("leading failed", exc_info=outcome)
            await asyncio.sleep(AFTER_FAULT_S)


def _tell_role(life: notify.Life, presence: Presence) -> None:
    """Its start is over once it could lead."""
    if presence.role != "starting":
        life.ready()
    life.look()


def stop_on_signals(daemon: Daemon) -> None:
    """SIGTERM and SIGINT let the daemon finish its turn and give the lease back."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stopping.set)
