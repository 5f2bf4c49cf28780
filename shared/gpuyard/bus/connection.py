"""A connection to the yard's bus with its three roles."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from gpuyard.bus.dialling import FIRST_CONNECT_S, Target
from gpuyard.bus.handle import Handle
from gpuyard.bus.jetstream import JetStream
from gpuyard.bus.link import Link


class Bus:
    """Three handles over one connection; with accounts each would get a connection of its own."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.app = Handle(link)
        """The yard's own side: streams, state, events."""
        self.tenants = Handle(link)
        """What tenants and operators send and are answered."""
        self.agents = Handle(link)
        """Beats, pushes and commands."""
        self.jetstream = JetStream(link)

    @property
    def url(self) -> str:
        """Where this is connected, without the secret."""
        return self._link.target.shown

    @property
    def inbox_prefix(self) -> str:
        return self._link.target.inbox_prefix

    @property
    def is_connected(self) -> bool:
        return self._link.is_connected

    @property
    def server_version(self) -> str:
        return self._link.server_version

    async def hears(self) -> bool:
        """Whether the server answers now, which says nothing of its storage."""
        return self.is_connected and await self._link.hears()

    @property
    def faults(self) -> dict[str, int]:
        """Background errors by kind, and how often a deaf client had to be replaced."""
        return dict(self._link.faults) | {"revived": self._link.revived}

    def on_reconnect(self, hook: Callable[[], None]) -> Callable[[], None]:
        """Call `hook` after every reconnect, when all subscriptions stand again; the call that is
        returned ends that."""
        return self._link.on_reconnect(hook)

    async def close(self) -> None:
        """Send what was published, then disconnect. Safe to call twice."""
        try:
            for handle in (self.app, self.tenants, self.agents):
                await handle.close()
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect(
    url: str,
    *,
    name: str,
    inbox_prefix: str,
    credentials: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    timeout_s: float = FIRST_CONNECT_S,
) -> Bus:
    """Connect, trying for `timeout_s`, and stay connected until closed.

    `url` may hold a token or several servers with commas between, all tried in one `timeout_s`:
    `patience_s` gives each its chance; `credentials` is a file with an
    nkey seed or a `.creds` file. `inbox_prefix` is the private prefix of the caller, from
    `subjects`. Raises `Unavailable` with one line that names the URL without its secret and the
    reason, or `BusTooOld`.
    """
    link = Link(
        Target(
            url=url,
            name=name,
            inbox_prefix=inbox_prefix,
            credentials=Path(credentials) if credentials else None,
            ca=Path(ca) if ca else None,
        )
    )
    await link.open(timeout_s=timeout_s)
    return Bus(link)
