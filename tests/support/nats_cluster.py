"""Real nats-servers on loopback that form one JetStream cluster, three unless told otherwise."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from gpuyard.bus import Bus, connect
from gpuyard.errors import Unavailable
from tests.support.nats_server import NatsServer, unused_port

SIZE = 3
_READY_S = 30.0
_STREAM = "PROBE"


class NatsCluster:
    """Servers that may be killed, frozen and started again one by one."""

    def __init__(self, directory: Path, *, size: int = SIZE) -> None:
        """Nothing runs until `start`."""
        ports = [unused_port() for _ in range(size)]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            NatsServer(
                directory / f"server-{number}",
                extra=(
                    f'cluster {{ name: yard, no_advertise: true, listen: "127.0.0.1:{port}", '
                    f"routes: [{routes}] }}"
                ),
            )
            for number, port in enumerate(ports)
        ]

    @property
    def url(self) -> str:
        """All servers, as programs of the yard are given them."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def server_of(self, name: str) -> NatsServer:
        """The server that calls itself so, in a stream's `cluster.leader` for example."""
        return next(server for server in self.servers if server.name == name)

    async def leader_of(self, bus: Bus, stream: str) -> NatsServer:
        """The server that leads a stream at the moment."""
        info = await bus.jetstream.call(f"STREAM.INFO.{stream}", attempts=50)
        return self.server_of(info["cluster"]["leader"])

    async def ready(self) -> None:
        """Returns once streams of three replicas can be made, which takes an election."""
        deadline = time.monotonic() + _READY_S
        config = {"name": _STREAM, "subjects": ["probe"], "num_replicas": SIZE}
        async with await connect(self.url, name="probe", inbox_prefix="_INBOX.probe") as bus:
            while True:
                try:
                    await bus.jetstream.call(f"STREAM.CREATE.{_STREAM}", config)
                    await bus.jetstream.call(f"STREAM.DELETE.{_STREAM}")
                    return
                except Unavailable:
                    if time.monotonic() > deadline:
                        raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture
def nats_cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    """A cluster of this test's own."""
    with NatsCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def nats_pair(tmp_path: Path) -> Iterator[NatsCluster]:
    """A cluster that is too small to keep three replicas."""
    with NatsCluster(tmp_path / "pair", size=2) as cluster:
        yield cluster
