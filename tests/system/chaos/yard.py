"""The yard that faults are done to: servers, coordinators and agents as processes, each daemon
behind a link of its own."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.nats_server import NatsServer
from tests.support.running_yard import Daemon, end_keeper
from tests.system.chaos.relay import Link, Relays
from tests.system.chaos.schedule import COORDINATORS, FLEETS, HOSTS

GPUS_PER_NODE: Final = 4
REAL_NODES_PER_HOST: Final = 5
_SMALL_DISK: Final = "16m"


@dataclass(slots=True)
class Member:
    """A daemon with what a fault can do to its surroundings."""

    daemon: Daemon
    link: Link
    clock: Path
    """What libfaketime reads the daemon's wall clock from, where it is loaded."""
    directory: Path
    is_frozen: bool = False


@dataclass(slots=True)
class ChaosYard:
    """Start it, do faults to its members, and close it in any case.

    `source` stands in for the code of the daemons alone: a copy of it with a planted defect.
    """

    directory: Path
    servers: Sequence[NatsServer]
    nodes: int
    source: Path | None = None
    relays: Relays = field(default_factory=Relays)
    coordinators: list[Member] = field(default_factory=list)
    agents: list[Member] = field(default_factory=list)
    _mounts: list[Path] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The servers themselves, past every link."""
        return ",".join(server.url for server in self.servers)

    @property
    def node_count(self) -> int:
        return self.nodes + HOSTS * REAL_NODES_PER_HOST

    @property
    def members(self) -> list[Member]:
        """All daemons."""
        return [*self.coordinators, *self.agents]

    def start(self) -> None:
        for number in range(COORDINATORS):
            self.coordinators.append(self._member("gpuyard_coordinator", f"coordinator-{number}"))
        for number in range(FLEETS):
            count = self.nodes // FLEETS + (number < self.nodes % FLEETS)
            fleet = self._fleet(f"fleet-{number}", count, "simulated")
            self.agents.append(self._agent(f"fleet-{number}", "simulated", fleet))
        for number in range(HOSTS):
            fleet = self._fleet(f"host-{number}", REAL_NODES_PER_HOST, "real")
            self.agents.append(self._agent(f"host-{number}", "process", fleet))
        for member in self.members:
            member.daemon.start()

    def close(self) -> None:
        for member in self.members:
            member.daemon.kill()
            end_keeper(member.directory)
        for path in self._mounts:
            subprocess.run(["umount", "-l", str(path)], check=False)
        self.relays.close()

    def _agent(self, name: str, runtime: str, fleet: Path) -> Member:
        directory = self.directory / name
        if runtime == "process" and can_mount():
            self._mount(directory)
        return self._member(
            "gpuyard_agent", name, "--name", name, "--runtime", runtime, "--simulate", str(fleet)
        )

    def _member(self, module: str, name: str, *arguments: str) -> Member:
        link = self.relays.link([server.port for server in self.servers])
        clock = self.directory / f"{name}.clock"
        clock.write_text("+0")
        url = ",".join(f"nats://127.0.0.1:{port}" for port in link.ports)
        env = {"GPUYARD_LOG_LEVEL": "info"}
        if (library := faketime()) is not None:
            # The boot and monotonic clocks stay true: only the wall clock can be set on a machine.
            env |= {
                "LD_PRELOAD": library,
                "FAKETIME_TIMESTAMP_FILE": str(clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        if self.source is not None:
            parts = [str(self.source / part) for part in ("shared", "coordinator", "agent")]
            env["PYTHONPATH"] = os.pathsep.join([*parts, os.environ.get("PYTHONPATH", "")])
        directory = self.directory / name
        log = self.directory / f"{name}.log"
        words = ["--url", url, "--dir", str(directory), *arguments]
        return Member(Daemon(module, log, words, **env), link, clock, directory)

    def _fleet(self, name: str, count: int, pool: str) -> Path:
        file = self.directory / f"{name}.yaml"
        file.write_text(
            f"nodes: [{{name: '{name}-{{i}}', count: {count}, cpus: 64, memory_mib: 262144,"
            f" labels: {{pool: {pool}}},"
            f" gpus: [{{name: TEST, count: {GPUS_PER_NODE}, memory_mib: 24576}}]}}]\n"
        )
        return file

    def _mount(self, directory: Path) -> None:
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(directory)]
        subprocess.run(command, check=True)
        self._mounts.append(directory)


def can_mount() -> bool:
    """Whether a daemon's folder can be given a disk of its own, to be filled."""
    return os.geteuid() == 0


def faketime() -> str | None:
    """The library that moves one process's wall clock, where it is installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else None


def cannot() -> dict[str, str]:
    """The kinds of fault that this machine cannot do, each with the reason."""
    reasons: dict[str, str] = {}
    if not can_mount():
        reasons["agent_disk_full"] = "only root can mount a small disk"
    if faketime() is None:
        for kind in ("coordinator_clock_jump", "agent_clock_jump"):
            reasons[kind] = "libfaketime is not installed"
    return reasons
