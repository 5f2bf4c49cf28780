"""A node on a real engine for one test: it launches, it reads, it leaves no container behind."""

import dataclasses
import itertools
import secrets
from typing import Any, Final

from gpuyard.messages import GrantedGpu
from gpuyard_agent.core.containers import Exit, Seen
from gpuyard_agent.core.launch import AttemptKey, Launch
from gpuyard_agent.docker_runtime import labels
from gpuyard_agent.docker_runtime.engine import DockerEngine
from gpuyard_agent.docker_runtime.runtime import DockerRuntime
from gpuyard_agent.runtime import LogPosition, Runtime
from tests.support.busybox import BUSYBOX
from tests.support.engine import Engine

_numbers = itertools.count(1)
_BARE: Final = Launch(
    key=AttemptKey("team-a", "job", 1),
    container_name="gpuyard-yard01-team-a-job-1",
    labels={},
    image=BUSYBOX,
    pull="missing",
    command=["true"],
    entrypoint=None,
    env={},
    workdir=None,
    run_as=None,
    tty=False,
    gpus=(),
    gpu_injection="toolkit",
    devices=(),
    mounts=(),
    cpus=None,
    memory_mib=None,
    shm_mib=None,
    tmpfs={},
    ulimits=(),
    network="none",
    ports=(),
    stop_grace_s=30.0,
)


def gpu(uuid: str) -> GrantedGpu:
    return GrantedGpu(uuid=uuid, milli=1000, memory_mib=None, core_percent=None)


def make_launch(
    *,
    yard: str = "yard01",
    node: str = "node-1",
    key: AttemptKey | None = None,
    spec: str = "spec-1",
    **changes: Any,
) -> Launch:
    """A launch of `true` without GPUs, labelled and named as the agent's core does."""
    key = key or AttemptKey("team-a", f"job-{next(_numbers)}", 1)
    own = {
        labels.YARD: yard,
        labels.NODE: node,
        labels.TENANT: key.tenant,
        labels.JOB: key.job,
        labels.ATTEMPT: str(key.attempt),
        "gpuyard.epoch": "1:1",
        labels.SPEC: spec,
    }
    name = f"gpuyard-{yard}-{key.tenant}-{key.job}-{key.attempt}"
    made = dataclasses.replace(_BARE, key=key, container_name=name, labels=own)
    return dataclasses.replace(made, **changes)


class Bench:
    """A runtime on `engine` in a yard of its own."""

    def __init__(self, engine: Engine, *, yard: str | None = None, node: str = "node-1") -> None:
        self.engine = engine
        self.yard = yard or f"t{secrets.token_hex(3)[:5]}"
        self.node = node
        self.docker = DockerEngine(self.yard, url=engine.url)
        self.runtime = DockerRuntime(self.docker, node)

    @property
    def as_runtime(self) -> Runtime:
        """The same, as the protocol that the agent knows: the type checker compares them."""
        return self.runtime

    def launch_of(self, *command: str, **changes: Any) -> Launch:
        return make_launch(yard=self.yard, node=self.node, command=list(command), **changes)

    def shell(self, script: str, **changes: Any) -> Launch:
        return self.launch_of("sh", "-c", script, **changes)

    async def start(self, launch: Launch) -> Seen:
        return await self.runtime.launch(launch)

    async def run(self, launch: Launch) -> Exit:
        await self.runtime.launch(launch)
        return await self.runtime.wait(launch.key)

    async def read(
        self, key: AttemptKey, *, stdout: int = 0, stderr: int = 0
    ) -> tuple[bytes, bytes]:
        """All of both streams after the position; every offset is checked."""
        position = LogPosition(stdout, stderr)
        expected = {1: stdout, 2: stderr}
        streams = {1: bytearray(), 2: bytearray()}
        async for piece in self.runtime.logs(key, position):
            assert piece.offset == expected[piece.stream]
            expected[piece.stream] += len(piece.data)
            streams[piece.stream] += piece.data
        return bytes(streams[1]), bytes(streams[2])

    async def close(self) -> None:
        """Ends the runtime and removes every container of the yard."""
        await self.runtime.close()
        if self.engine.silence():
            return
        with self.engine.api() as api:
            filters = {"label": [f"{labels.YARD}={self.yard}"]}
            for container in api.containers(all=True, filters=filters):
                api.remove_container(container["Id"], force=True, v=True)
