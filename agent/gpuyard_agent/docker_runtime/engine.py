"""One connection to one engine for one yard, shared by every node that this process hosts."""

import asyncio
from typing import Final

from gpuyard_agent.docker_runtime.client import CALL_TIMEOUT_S, EngineClient
from gpuyard_agent.docker_runtime.exits import Exits
from gpuyard_agent.docker_runtime.pulls import IDLE_S, Pulls
from gpuyard_agent.docker_runtime.streams import EngineStream, open_stream

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
LOOKS_AT_ONCE: Final = 32
"""Each is a connection; an agent that starts beside hundreds of containers looks at every one."""


class DockerEngine:
    """Calls, ends, logs and pulls of one engine. It is open while at least one user holds it."""

    def __init__(
        self,
        yard: str,
        *,
        url: str = DEFAULT_URL,
        call_timeout_s: float = CALL_TIMEOUT_S,
        pull_idle_s: float = IDLE_S,
    ) -> None:
        """ValueError where `url` is neither `unix:///…` nor `tcp://host:port`."""
        self.yard = yard
        self.client = EngineClient(url, timeout_s=call_timeout_s)
        self.exits = Exits(self.client, yard)
        self.pulls = Pulls(self.client, idle_s=pull_idle_s)
        self.looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        """One for each container that is looked at for a listing."""
        self.grants_ulimits = True
        """False once it refused to raise a limit of its own: it runs without the right to."""
        self._users = 0
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Takes part; the first one connects. RuntimeFailure(temporary=True) while it cannot."""
        async with self._opening:
            if self._users == 0:
                await self.client.ping()
                await self.exits.open()
            self._users += 1

    async def close(self) -> None:
        """Lets go; the last one ends streams and pulls. Containers run on."""
        async with self._opening:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                await self.exits.close()
                await self.pulls.close()
                self.client.reset()

    async def open_log(self, container_id: str, query: str) -> EngineStream:
        """The log of a container as the engine streams it."""
        version = await self.client.api_version()
        path = f"/v{version}/containers/{container_id}/logs?{query}"
        return await open_stream(self.client.address, "GET", path)
