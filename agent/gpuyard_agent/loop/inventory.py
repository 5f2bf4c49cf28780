"""A node's GPUs and facts as the agent publishes them, with the number that grows on a change."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuyard.model.node import (
    NODE_REASONS,
    GpuInjection,
    GpuSample,
    NodeFacts,
    NodeReason,
    ProbeResult,
    RuntimeName,
    is_mig_instance,
)
from gpuyard.model.states import GpuHealth
from gpuyard_agent.gpus.facts import node_facts
from gpuyard_agent.gpus.injection import NO_MOUNTS, DriverMounts
from gpuyard_agent.gpus.prober import GpuProber
from gpuyard_agent.gpus.processes import OwnProcesses

_HEALTH_REASONS: Final = {
    GpuHealth.UNHEALTHY: "gpu_unhealthy",
    GpuHealth.DIRTY: "gpu_dirty",
    GpuHealth.LOST: "gpu_lost",
}


@dataclass(slots=True)
class Description:
    """What does not come from the GPUs; the engine's part is filled in once it answers."""

    runtime: RuntimeName
    agent_version: str
    cpus: float | None
    memory_mib: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_injection: GpuInjection = "none"
    docker_version: str | None = None
    driver: DriverMounts = NO_MOUNTS
    """What a container needs of the driver where nothing else brings it."""
    address: str | None = None
    """Under which other nodes reach this one."""
    gang_ports: tuple[int, int] = (29500, 29999)
    """First and last of the ports at which gangs may meet here."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known once the engine answers."""

    version: str | None
    gpu_injection: GpuInjection
    driver: DriverMounts = NO_MOUNTS


class Inventory:
    """The last reading of one node's GPUs and the facts made from it."""

    def __init__(
        self,
        prober: GpuProber,
        description: Description,
        *,
        expects_gpus: Callable[[], bool],
        digest: str = "",
        generation: int = 0,
    ) -> None:
        """`digest` and `generation` are those of the last run, so that the number goes on."""
        self._prober = prober
        self.description = description
        self._expects_gpus = expects_gpus
        self._result: ProbeResult | None = None
        self.facts: NodeFacts | None = None
        self.digest = digest
        self.generation = generation
        self.gpus: frozenset[str] = frozenset()
        self.samples: list[GpuSample] = []
        self.by_uuid: dict[str, GpuSample] = {}

    @property
    def age_s(self) -> float | None:
        return self._prober.age_s

    @property
    def fault(self) -> str | None:
        """Why the last reading found nothing new, the missing driver of a host without GPUs too."""
        return self._result.get("error") if self._result else None

    async def sample(self, own: OwnProcesses) -> bool:
        """Takes a new reading; True where the facts changed, and `generation` with them."""
        result = await self._prober.sample(own)
        if result is self._result:
            return False  # a simulation in which nothing happened
        self._result = result
        return self.refresh()

    def refresh(self) -> bool:
        """Makes the facts anew from the last reading and the description; True on a change."""
        if self._result is None:
            return False
        about = self.description
        self.samples = _judged(self._result, about)
        self.by_uuid = {sample["uuid"]: sample for sample in self.samples}
        facts = node_facts(
            self._result,
            runtime=about.runtime,
            gpu_injection=about.gpu_injection,
            docker_version=about.docker_version,
            agent_version=about.agent_version,
            own_labels=about.labels,
            cpus=about.cpus,
            memory_mib=about.memory_mib,
            address=about.address,
            gang_ports=about.gang_ports,
        )
        if facts == self.facts:
            return False
        self.facts = facts
        self.gpus = frozenset(gpu["uuid"] for gpu in facts["gpus"])
        digest = _digest(facts)
        if digest == self.digest:
            return False
        self.digest = digest
        self.generation += 1
        return True

    def locate(self, address: str | None) -> bool:
        """Takes the address under which this host is reached; True where that changed the facts."""
        self.description.address = address or self.description.address
        return self.refresh()

    def reasons(self) -> Iterable[NodeReason]:
        """Why the node or one of its GPUs takes no work; a host without a driver has no fault."""
        result = self._result
        if result is None:
            return
        if (code := result.get("error_code")) and (self.gpus or self._expects_gpus()):
            message = result.get("error") or code
            yield {"code": code, "message": message, "gpu": None, "since": None}
        for sample in self.samples:
            health = sample["health"]
            if (code := _HEALTH_REASONS.get(GpuHealth(health["state"]))) is not None:
                named = (
                    NODE_REASONS.get(health["reason"] or "") if code == "gpu_unhealthy" else None
                )
                yield {
                    "code": code if named is None else health["reason"] or code,
                    "message": named or health["reason"] or health["state"],
                    "gpu": sample["uuid"],
                    "since": health["since"],
                }

    async def close(self) -> None:
        await self._prober.close()


def _judged(result: ProbeResult, about: Description) -> list[GpuSample]:
    """The samples, with what this host cannot hand to containers told as unhealthy: MIG instances
    where only device nodes are to be had."""
    instances = {gpu["uuid"] for gpu in result["gpus"] if is_mig_instance(gpu)}
    if not instances or about.runtime != "docker" or about.gpu_injection != "device-nodes":
        return result["samples"]
    return [
        _unhealthy(sample, "mig_needs_toolkit")
        if sample["uuid"] in instances and sample["health"]["state"] == GpuHealth.HEALTHY
        else sample
        for sample in result["samples"]
    ]


def _unhealthy(sample: GpuSample, reason: str) -> GpuSample:
    since = sample["health"]["since"]
    return {
        **sample,
        "health": {"state": GpuHealth.UNHEALTHY, "reason": reason, "since": since},
    }


def _digest(facts: NodeFacts) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
