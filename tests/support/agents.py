"""A stand-in for a node's agent in core tests: what it was told, what really runs on its host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuyard.messages import Applied, AttemptReport, Beat, WantedDocument, WantedEntry
from gpuyard.model.node import (
    GpuFacts,
    GpuLink,
    GpuSample,
    NodeFacts,
    NodeReason,
    gpu_labels,
    node_labels,
)
from gpuyard_coordinator.core.state import AttemptRef


class Card(NamedTuple):
    """A model of GPU, as the driver tells it; None where it does not."""

    name: str | None
    memory_mib: int | None
    capability: str | None
    mig: tuple[str, ...] | None = None
    """Profiles of the instances that it is split into; None: it is not in MIG mode."""


RTX_4090: Final = Card("NVIDIA GeForce RTX 4090", 24564, "8.9")
RTX_3090: Final = Card("NVIDIA GeForce RTX 3090", 24576, "8.6")
A100_40: Final = Card("NVIDIA A100-PCIE-40GB", 40960, "8.0")
A100_80: Final = Card("NVIDIA A100-SXM4-80GB", 81920, "8.0")
H200: Final = Card("NVIDIA H200", 143771, "9.0")
MIG_7: Final = A100_80._replace(mig=("1g.10gb",) * 7)
MIG_MIXED: Final = A100_80._replace(mig=("3g.40gb", "1g.10gb", "1g.10gb"))


def gpu_uuid(node: str, index: int) -> str:
    """Distinct within eight characters, as real UUIDs are."""
    return f"GPU-{index:04x}{sum(node.encode()):04x}-0000-4000-8000-{node.encode().hex():0>12}"[:52]


def gpu_facts(uuid: str, index: int, card: Card = RTX_4090) -> GpuFacts:
    known = {
        "name": card.name,
        "memory_total_mib": card.memory_mib,
        "compute_capability": card.capability,
    }
    return {
        "uuid": uuid,
        "index": index,
        "minor": index,
        "name": card.name,
        "compute_capability": card.capability,
        "memory_total_mib": card.memory_mib,
        "memory_reserved_mib": None,
        "pci_bus_id": None,
        "mig": None,
        "labels": gpu_labels(known),
        "missing": [],
    }


def devices(node: str, cards: Sequence[Card]) -> list[GpuFacts]:
    """The facts of a node's GPUs, each followed by its MIG instances."""
    found: list[GpuFacts] = []
    for index, card in enumerate(cards):
        gpu = gpu_facts(gpu_uuid(node, index), index, card)
        found.append(gpu)
        if card.mig is not None:
            gpu["mig"] = {"profile": None, "parent": None}
            found += [instance_facts(gpu, slot, profile) for slot, profile in enumerate(card.mig)]
    return found


def instance_facts(gpu: GpuFacts, slot: int, profile: str) -> GpuFacts:
    memory_mib = int(profile.partition("g.")[2].partition("gb")[0]) * 1000
    facts: GpuFacts = {
        **gpu,
        "uuid": f"MIG-{slot:04x}{gpu['uuid'][4:]}",
        "minor": None,
        "memory_total_mib": memory_mib,
        "mig": {"profile": profile, "parent": gpu["uuid"]},
    }
    facts["labels"] = gpu_labels(facts)
    return facts


def gpu_sample(uuid: str, **changes: Any) -> GpuSample:
    sample: GpuSample = {
        "uuid": uuid,
        "memory_used_mib": 1,
        "memory_free_mib": 24563,
        "memory_foreign_mib": 0,
        "utilization_percent": 0,
        "temperature_c": 40,
        "power_w": 20.0,
        "health": {"state": "healthy", "reason": None, "since": None},
        "foreign": [],
        "missing": [],
    }
    return sample | changes  # type: ignore[return-value]  # keys of the same TypedDict


def node_facts(
    gpus: list[GpuFacts],
    *,
    cpus: float | None,
    memory_mib: int | None,
    links: list[GpuLink],
    cuda: str = "12.4",
    driver: str = "550.54.14",
    labels: Mapping[str, str] | None = None,
    address: str | None = "192.0.2.1",
    gang_ports: tuple[int, int] = (29500, 29999),
) -> NodeFacts:
    return {
        "labels": node_labels(
            gpus=gpus,
            driver_version=driver,
            cuda_version=cuda,
            gpu_injection="toolkit",
            own=labels or {},
        ),
        "driver_version": driver,
        "cuda_version": cuda,
        "docker_version": "27.3.1",
        "agent_version": "0.1.0",
        "runtime": "docker",
        "gpu_injection": "toolkit",
        "sharing": "none",
        "cpus": cpus,
        "memory_mib": memory_mib,
        "gpus": gpus,
        "links": links,
        "missing": [],
        "address": address,
        "gang_ports": [*gang_ports],
    }


def fresh_report(key: AttemptRef) -> AttemptReport:
    tenant, job, attempt = key
    return {
        "tenant": tenant,
        "job": job,
        "attempt": attempt,
        "state": "accepted",
        "container_id": None,
        "image_digest": None,
        "started_at": None,
        "ended_at": None,
        "reason": None,
        "exit_code": None,
        "message": None,
        "pull": None,
        "usage": None,
        "log_chunks": 0,
        "unexpected": False,
    }


def change(report: AttemptReport, **changes: Any) -> None:
    """What an agent says of an attempt from now on; a test may let it say anything."""
    report.update(changes)  # type: ignore[typeddict-item]


@dataclass(slots=True)
class Agent:
    """Everything of one node's beat, as plain fields that a test may set before the next beat."""

    name: str
    facts: NodeFacts
    machine_id: str
    boot_id: str = "boot-1"
    instance: str = "instance-1"
    started_ns: int = 1
    seq: int = 0
    generation: int = 1
    applied: Applied | None = None
    adopting: bool = False
    stopping: bool = False
    sample_age_s: float | None = 0.5
    samples: list[GpuSample] = field(default_factory=list)
    reasons: list[NodeReason] = field(default_factory=list)
    reports: dict[AttemptRef, AttemptReport] = field(default_factory=dict)
    stops: dict[AttemptRef, str] = field(default_factory=dict)
    """Attempts that the document orders to stop, and why."""
    is_deaf: bool = False
    """Neither pushes nor replies reach it."""
    self_stop: bool = True
    """Its host's keeper answers, and holds the fences of what is started there."""
    fences: dict[AttemptRef, float] = field(default_factory=dict)
    """`fence_s` of the attempts that have one."""
    entries: dict[AttemptRef, WantedEntry] = field(default_factory=dict)
    """The stored document's."""

    def take(self, document: WantedDocument) -> None:
        """Stores a document as an agent does: one not newer is refused; entries of another machine
        or boot are not accepted; an end whose entry left the document is forgotten."""
        token = list(document["token"])
        if self.applied is not None:
            known = (self.applied["token"], self.applied["revision"])
            if (token, document["revision"]) <= known:
                return
        is_restored = self._adopt(document)
        self.applied = {"token": token, "revision": document["revision"]}
        named = set()
        for entry in document["entries"]:
            key = (entry["tenant"], entry["job"], entry["attempt"])
            named.add(key)
            if (entry["machine_id"], entry["boot_id"]) == (self.machine_id, self.boot_id):
                if is_restored and key not in self.reports:
                    self.reports[key] = fresh_report(key)
                    change(self.reports[key], state="ended", reason="runtime_lost")
                report = self.reports.setdefault(key, fresh_report(key))
                if entry.get("fence_s") is not None:
                    self.fences[key] = entry["fence_s"] or 0.0
                    report["fenced"] = True
            if entry["stop"] is not None:
                self.stops[key] = entry["stop"]["reason"]
        ended = [key for key, report in self.reports.items() if report["state"] == "ended"]
        for key in ended:
            if key not in named and "wanted" not in self.reports[key]:
                del self.reports[key]

    def _adopt(self, document: WantedDocument) -> bool:
        """A document of a new generation may not know what runs here: until one names all of it,
        what each was started from is told with it. What that document names and is not here is
        told to be lost. True for such a document."""
        entries = {(e["tenant"], e["job"], e["attempt"]): e for e in document["entries"]}
        is_restored = self.applied is not None and document["token"][0] > self.applied["token"][0]
        is_concerned = is_restored or any("wanted" in r for r in self.reports.values())
        for key, report in self.reports.items():
            if is_restored and key in self.entries and key not in entries:
                report["wanted"] = self.entries[key]
            elif key in entries:
                report.pop("wanted", None)
        if is_concerned:
            self.adopting = any("wanted" in report for report in self.reports.values())
        self.entries = entries
        return is_restored

    def beat(self, at: str) -> Beat:
        self.seq += 1
        return {
            "v": 1,
            "yard": "yard01",
            "node": self.name,
            "machine_id": self.machine_id,
            "boot_id": self.boot_id,
            "instance": self.instance,
            "started_ns": self.started_ns,
            "seq": self.seq,
            "ts": at,
            "applied": self.applied,
            "adopting": self.adopting,
            "generation": self.generation,
            "facts": self.facts,
            "sample_age_s": self.sample_age_s,
            "samples": self.samples,
            "reasons": self.reasons,
            "attempts": list(self.reports.values()),
            "stopping": self.stopping,
            "self_stop": self.self_stop,
        }

    def change_sample(self, index: int, **changes: Any) -> None:
        self.samples[index] = gpu_sample(self.samples[index]["uuid"], **changes)

    def restart(self) -> None:
        """The agent's process is a new one; its disk, and what runs, are as before."""
        self.started_ns += 1
        self.instance = f"instance-{self.machine_id}-{self.boot_id}-{self.started_ns}"
        self.seq = 0

    def reboot(self) -> None:
        """The host starts again: nothing of it runs any more, its disk is as before."""
        number = int(self.boot_id.rpartition("-")[2]) + 1
        self.boot_id = f"boot-{number}"
        self.started_ns = 0
        self.restart()
        self.reports.clear()
