"""From settings to nodes: which runtime, which GPUs, which folder each of them has."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from gpuyard import __version__
from gpuyard.model.ids import is_name, node_from_host
from gpuyard.model.node import GpuInjection, RuntimeName
from gpuyard.model.quantities import counted
from gpuyard_agent.core.memory import Memory, runtime_record
from gpuyard_agent.core.policy import NodePolicy
from gpuyard_agent.gpus.fleet import SimulatedNode, default_fleet, load_fleet
from gpuyard_agent.gpus.injection import detect_injection, driver_mounts
from gpuyard_agent.gpus.prober import GpuProber, InlineProber, Prober
from gpuyard_agent.journal import FileJournal, Journal, MemoryJournal
from gpuyard_agent.keeper.client import DetachedKeeper, KeeperClient
from gpuyard_agent.loop.host import Clock, Host, has_nvidia_driver
from gpuyard_agent.loop.inventory import Description, EngineFacts, Inventory
from gpuyard_agent.loop.keeping import HostKeeper, Keeper
from gpuyard_agent.loop.node import NodeParts
from gpuyard_agent.runtime import Runtime
from gpuyard_agent.settings import AgentSettings, SettingsError, port_range
from gpuyard_agent.simulated_runtime import SimulatedRuntime, Timers

LARGE_FLEET: Final = 20
"""Fleets above it start nothing unless told to."""
JOURNALED_FLEET: Final = 500
"""Simulated attempts of larger fleets end with their agent: each node's journal is a file."""
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Assembly:
    """What every node of this process shares."""

    settings: AgentSettings
    host: Host
    clock: Clock
    policy: NodePolicy
    timers: Timers
    keeper: Keeper


def make_keeper(settings: AgentSettings, environment: Mapping[str, str]) -> HostKeeper | None:
    """The keeper of this host; None where attempts end with the agent, so that nothing is fenced.

    A service manager that runs the agent runs the keeper too, as a unit of its own that a stop of
    the agent's does not touch; elsewhere the agent starts it, detached.
    """
    if runtime_of(settings) == "simulated":
        return None
    directory = Path(settings.dir).absolute() / "keeper"
    is_managed = bool(environment.get("NOTIFY_SOCKET"))
    detached = None if is_managed else DetachedKeeper(directory)
    return HostKeeper(KeeperClient(directory), detached=detached)


def runtime_of(settings: AgentSettings) -> RuntimeName:
    """The runtime in force; raises GpuyardError for a fleet that cannot be read."""
    fleet = _fleet(settings)
    is_large = fleet is not None and len(fleet) > LARGE_FLEET
    return cast(RuntimeName, settings.runtime or ("simulated" if is_large else "docker"))


def assemble(shared: Assembly, *, host_name: str) -> list[tuple[NodeParts, Memory]]:
    """Every node with what its journal remembers; raises GpuyardError in one line."""
    settings = shared.settings
    fleet = _fleet(settings)
    if settings.simulate is not None and settings.simulate.isdigit() and fleet and len(fleet) == 1:
        # Two hosts that simulate one node each are two nodes.
        fleet = default_fleet(1, name=_name(settings, host_name))
    count = len(fleet) if fleet else 1
    runtime = runtime_of(settings)
    factories = _Factories(
        shared,
        runtime,
        is_simulated=fleet is not None,
        is_journaled=runtime != "simulated" or count <= JOURNALED_FLEET,
    )
    if fleet is not None:
        return [_simulated(shared, factories, node) for node in fleet]
    return [_real(shared, factories, _name(settings, host_name))]


def _name(settings: AgentSettings, host_name: str) -> str:
    name = settings.name or node_from_host(host_name)
    if not is_name(name):
        raise SettingsError(f"name: '{name}' is not a node's name")
    return name


def _fleet(settings: AgentSettings) -> list[SimulatedNode] | None:
    if settings.simulate is None:
        return None
    if not settings.simulate.isdecimal():
        return load_fleet(settings.simulate)
    count = int(settings.simulate)
    if not 0 < count <= 100_000:
        raise SettingsError(f"simulate: {count} is not a number of nodes from 1 to 100000")
    return default_fleet(count)


def _real(shared: Assembly, factories: "_Factories", name: str) -> tuple[NodeParts, Memory]:
    journal, memory = _remember(shared, factories, name)
    description = factories.description(
        memory,
        labels=shared.settings.labels,
        cpus=shared.host.cpus,
        memory_mib=shared.host.memory_mib,
    )
    inventory = Inventory(
        Prober(),
        description,
        expects_gpus=has_nvidia_driver,
        digest=memory.facts_digest,
        generation=memory.generation,
    )
    return factories.parts(name, journal, inventory, memory), memory


def _simulated(
    shared: Assembly, factories: "_Factories", node: SimulatedNode
) -> tuple[NodeParts, Memory]:
    journal, memory = _remember(shared, factories, node.name)
    description = factories.description(
        memory,
        labels={**node.labels, **shared.settings.labels},
        cpus=node.cpus,
        memory_mib=node.memory_mib,
    )
    inventory = Inventory(
        _simulated_prober(node, shared.settings),
        description,
        expects_gpus=lambda: True,
        digest=memory.facts_digest,
        generation=memory.generation,
    )
    return factories.parts(node.name, journal, inventory, memory), memory


def _simulated_prober(node: SimulatedNode, settings: AgentSettings) -> GpuProber:
    """A child process as for real GPUs where that is affordable or a fault would end the process;
    thousands of well simulated nodes are read in this one."""
    is_alone = settings.simulate in (None, "1")
    if is_alone or node.faults:
        return Prober(simulated=node.definition())
    return InlineProber(node.definition())


def _remember(shared: Assembly, factories: "_Factories", name: str) -> tuple[Journal, Memory]:
    """A node's journal and what it holds; without one the memory begins by adopting."""
    if not factories.is_journaled:
        return MemoryJournal(), Memory()
    # Simulated attempts end with the host: nothing is worth a wait for the disk.
    is_durable = factories.runtime != "simulated"
    journal = FileJournal(node_directory(shared.settings, name), is_durable=is_durable)
    records = journal.open()
    memory = Memory()
    for record in records or ():
        memory.apply(record)
    _note_runtime(factories.runtime, journal, memory)
    return journal, memory


def _note_runtime(runtime: RuntimeName, journal: Journal, memory: Memory) -> None:
    """Another runtime would not see what runs by the last one, and tell that it is over."""
    before = memory.runtime
    if runtime == before:
        return
    if before is not None and (left := memory.unended):
        journal.close()
        raise SettingsError(
            f"runtime: it is {runtime} now, and {counted(left, 'jobs')} of the runtime {before} "
            f"may still run here; say {before} again, drain the node, and change it then"
        )
    record = runtime_record(runtime)
    journal.append([record])
    memory.apply(record)


def node_directory(settings: AgentSettings, name: str) -> Path:
    return Path(settings.dir) / "nodes" / name


class _Factories:
    """Makes what depends on the chosen runtime."""

    def __init__(
        self, shared: Assembly, runtime: RuntimeName, *, is_simulated: bool, is_journaled: bool
    ) -> None:
        self._shared = shared
        self.runtime = runtime
        self.is_journaled = is_journaled
        self._is_simulated = is_simulated
        self._engines: dict[str, object] = {}

    def description(
        self,
        memory: Memory,
        *,
        labels: Mapping[str, str],
        cpus: float | None,
        memory_mib: int | None,
    ) -> Description:
        """What is known before the engine answers: its last words, where there were any."""
        chosen = self._shared.settings.gpu_injection
        injection = chosen or memory.gpu_injection or self._injection(None)
        return Description(
            runtime=self.runtime,
            agent_version=__version__,
            cpus=cpus,
            memory_mib=memory_mib,
            labels=labels,
            gpu_injection=cast(GpuInjection, injection),
            docker_version=memory.docker_version if self.runtime == "docker" else None,
            address=self._shared.settings.address or memory.address,
            gang_ports=port_range(self._shared.settings.gang_ports),
        )

    def parts(self, name: str, journal: Journal, inventory: Inventory, memory: Memory) -> NodeParts:
        shared = self._shared
        return NodeParts(
            name=name,
            host=shared.host,
            clock=shared.clock,
            journal=journal,
            inventory=inventory,
            make_runtime=self._maker(name, memory),
            describe=self._describe,
            policy=shared.policy,
            timers=shared.timers,
            log_limit_bytes=int(shared.settings.log_limit_mib * MIB),
            keeper=shared.keeper,
            beat_s=shared.settings.beat_s,
        )

    def _maker(self, name: str, memory: Memory) -> Callable[[str], Runtime]:
        shared = self._shared
        if self.runtime == "simulated":
            return lambda yard: SimulatedRuntime(
                shared.timers,
                memory=memory,
                boot_id=shared.host.boot_id,
                boot_clock=shared.clock.boot,
            )
        if self.runtime == "process":
            from gpuyard_agent.process_runtime import ProcessRuntime

            directory = node_directory(self._shared.settings, name) / "attempts"
            log_bytes = int(self._shared.settings.log_limit_mib * MIB)
            return lambda yard: ProcessRuntime(
                directory / yard, yard=yard, node=name, log_bytes=log_bytes
            )
        return lambda yard: self._docker(yard, name)

    def _docker(self, yard: str, name: str) -> Runtime:
        """A node on the one engine of this host; what speaks to engines is loaded here first."""
        from gpuyard_agent.docker_runtime.engine import DEFAULT_URL, DockerEngine
        from gpuyard_agent.docker_runtime.runtime import DockerRuntime

        url = self._shared.settings.docker_host or DEFAULT_URL
        engine = self._engines.setdefault(yard, DockerEngine(yard, url=url))
        assert isinstance(engine, DockerEngine)
        return DockerRuntime(engine, name)

    async def _describe(self, runtime: Runtime) -> EngineFacts:
        if runtime.name != "docker":
            return EngineFacts(None, self._injection(None))
        from gpuyard_agent.docker_runtime.runtime import DockerRuntime

        assert isinstance(runtime, DockerRuntime)
        version, injection = await runtime.version(), self._injection(await runtime.info())
        if injection != "device-nodes":
            return EngineFacts(version, injection)
        return EngineFacts(version, injection, await asyncio.to_thread(driver_mounts))

    def _injection(self, engine_info: Mapping[str, object] | None) -> GpuInjection:
        chosen = self._shared.settings.gpu_injection
        if chosen is not None:
            return cast(GpuInjection, chosen)
        if self.runtime != "docker":
            return "none"
        return detect_injection(simulated=self._is_simulated, engine_info=engine_info)
