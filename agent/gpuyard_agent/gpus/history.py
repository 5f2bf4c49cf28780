"""What is remembered of a node's GPUs from one reading to the next.

A GPU that was seen once stays on the list: one that vanishes is a fault to be shown, not a
smaller node. A MIG instance goes when its GPU tells that it is split otherwise now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpuyard.model.node import (
    GpuFacts,
    GpuLink,
    GpuSample,
    Health,
    ProbeResult,
    gpu_labels,
    is_mig_instance,
)

_MEASURES: Final = (
    "memory_used_mib",
    "memory_free_mib",
    "memory_foreign_mib",
    "utilization_percent",
    "temperature_c",
    "power_w",
    "foreign",
)


class GpuHistory:
    """Turns raw readings into what is published.

    Labels are added, lost GPUs kept, health dated, links remembered.
    """

    def __init__(
        self, *, utc_now: Callable[[], str], known: Iterable[GpuFacts] = (), generation: int = 0
    ) -> None:
        self._utc_now = utc_now
        self._known: dict[str, GpuFacts] = {gpu["uuid"]: gpu for gpu in known}
        self._health: dict[str, Health] = {}
        self._links: dict[tuple[str, str], GpuLink] = {}
        self._linked: frozenset[str] = frozenset()
        self._are_links_missing = False
        self._last: ProbeResult | None = None
        self.generation = generation
        """Grows by one whenever versions, GPUs or links differ from those published before."""

    @property
    def wants_links(self) -> bool:
        """True while there is a GPU whose links have not been asked for."""
        return self._last is None or not self._linked.issuperset(self._live(self._last))

    def accept(self, reading: ProbeResult, *, links_asked: bool) -> ProbeResult:
        """The reading as it is to be published; read it, do not change it."""
        if links_asked:
            self._take_links(reading)
        seen = {gpu["uuid"]: gpu for gpu in reading["gpus"]}
        self._forget_instances(seen)
        samples = {sample["uuid"]: sample for sample in reading["samples"]}
        lost = {uuid for uuid, sample in samples.items() if sample["health"]["state"] == "lost"}
        for uuid, gpu in seen.items():
            if uuid not in lost or uuid not in self._known:
                self._known[uuid] = {**gpu, "labels": gpu_labels(gpu)}
        result: ProbeResult = {
            "driver_version": reading["driver_version"],
            "cuda_version": reading["cuda_version"],
            "gpus": sorted(self._known.values(), key=lambda gpu: (gpu["index"], gpu["uuid"])),
            "links": [self._links[pair] for pair in sorted(self._links)],
            "samples": [],
            "missing": self._missing(reading),
            "error": None,
            "error_code": None,
        }
        for gpu in result["gpus"]:
            sample = samples.get(gpu["uuid"]) or _absent(gpu["uuid"])
            result["samples"].append(self._dated(sample))
        self._count(result)
        self._last = result
        return result

    def failed(self, message: str, code: str) -> ProbeResult:
        """The last good reading, if any, with the reason why there is no newer one."""
        empty: ProbeResult = {
            "driver_version": None,
            "cuda_version": None,
            "gpus": list(self._known.values()),
            "links": [],
            "samples": [],
            "missing": [],
        }
        result = (self._last or empty).copy()
        result["error"] = message
        result["error_code"] = code
        return result

    def _forget_instances(self, seen: Mapping[str, GpuFacts]) -> None:
        """Those that are gone from a GPU of which all instances were read."""
        for uuid, gpu in list(self._known.items()):
            if not is_mig_instance(gpu) or uuid in seen:
                continue
            parent = seen.get(gpu["mig"]["parent"] or "") if gpu["mig"] else None
            if parent is not None and "mig" not in parent["missing"]:
                del self._known[uuid]
                self._health.pop(uuid, None)

    def _take_links(self, reading: ProbeResult) -> None:
        self._links |= {(link["a"], link["b"]): link for link in reading["links"]}
        self._linked |= self._live(reading)
        self._are_links_missing = "links" in reading["missing"]

    def _live(self, reading: ProbeResult) -> frozenset[str]:
        return frozenset(
            sample["uuid"] for sample in reading["samples"] if sample["health"]["state"] != "lost"
        )

    def _missing(self, reading: ProbeResult) -> list[str]:
        missing = [name for name in reading["missing"] if name != "links"]
        known_indexes = {gpu["index"] for gpu in self._known.values()}
        # A GPU that cannot say its UUID any more is on the list already, as lost.
        missing = [name for name in missing if _index_of(name) not in known_indexes]
        return [*missing, "links"] if self._are_links_missing else missing

    def _dated(self, sample: GpuSample) -> GpuSample:
        now = sample["health"]
        before = self._health.get(sample["uuid"])
        if before is None or (before["state"], before["reason"]) != (now["state"], now["reason"]):
            before = {"state": now["state"], "reason": now["reason"], "since": self._utc_now()}
            self._health[sample["uuid"]] = before
        return {**sample, "health": before}

    def _count(self, result: ProbeResult) -> None:
        if self._last is None or _facts(self._last) != _facts(result):
            self.generation += 1


def _facts(result: ProbeResult) -> Sequence[object]:
    return (
        result["driver_version"],
        result["cuda_version"],
        result["gpus"],
        result["links"],
        result["missing"],
    )


def _absent(uuid: str) -> GpuSample:
    return {
        "uuid": uuid,
        "memory_used_mib": None,
        "memory_free_mib": None,
        "memory_foreign_mib": None,
        "utilization_percent": None,
        "temperature_c": None,
        "power_w": None,
        "health": {"state": "lost", "reason": "gpu_lost", "since": None},
        "foreign": [],
        "missing": list(_MEASURES),
    }


def _index_of(name: str) -> int | None:
    inner = name.removeprefix("gpus[").removesuffix("].uuid")
    return int(inner) if inner != name and inner.isdigit() else None
