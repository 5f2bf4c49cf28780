"""One reading: every field but the UUID may be missing, and unknown is never 0."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard_agent.gpus.links import read_links
from gpuyard_agent.gpus.probe import ProbeContext, probe
from gpuyard_agent.gpus.simulation import NVMLError, SimulatedNvml
from tests.agent.gpus.definitions import (
    H200,
    RTX_4090,
    facts_of,
    health_of,
    make_definition,
    probe_once,
    sample_of,
)


def test_a_healthy_card_has_every_field() -> None:
    result = probe_once(make_definition(H200, cuda_version="13.0"))
    facts, sample = facts_of(result, 0), sample_of(result, 0)
    assert facts["name"] == "NVIDIA H200"
    assert facts["compute_capability"] == "9.0"
    assert (facts["memory_total_mib"], facts["memory_reserved_mib"]) == (143771, 615)
    assert (sample["memory_used_mib"], sample["memory_free_mib"]) == (0, 143771 - 615)
    assert sample["memory_foreign_mib"] == 0
    assert sample["power_w"] == 20.0
    assert facts["missing"] == sample["missing"] == result["missing"] == []
    assert result["cuda_version"] == "13.0"


def test_uuids_are_stable_and_differ_between_nodes_and_indexes() -> None:
    first = probe_once(make_definition())
    assert first["gpus"] == probe_once(make_definition())["gpus"]
    other = probe_once(make_definition(name="n1"))
    uuids = [gpu["uuid"] for gpu in [*first["gpus"], *other["gpus"]]]
    assert len(set(uuids)) == 4
    assert all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in uuids)


@pytest.mark.parametrize("do", ["not_supported", "function_not_found", "unknown", "no_permission"])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("memory", ["memory_used_mib", "memory_free_mib"]),
        ("utilization", ["utilization_percent"]),
        ("temperature", ["temperature_c"]),
        ("power", ["power_w"]),
        ("processes", ["memory_foreign_mib", "foreign"]),
    ],
)
def test_a_refused_call_costs_its_fields_alone(call: str, fields: list[str], do: str) -> None:
    result = probe_once(make_definition(faults=[{"gpu": 1, "call": call, "do": do}]))
    hit, other = sample_of(result, 1), sample_of(result, 0)
    assert sorted(hit["missing"]) == sorted(fields)
    values = dict(hit)
    assert all(values[field] is None for field in fields if field != "foreign")
    assert hit["foreign"] == []
    assert other["missing"] == []
    assert health_of(result, 1) == ("healthy", None)


def test_memory_that_is_refused_leaves_no_total_and_no_label() -> None:
    result = probe_once(make_definition(faults=[{"call": "memory", "do": "not_supported"}]))
    facts = facts_of(result, 0)
    assert facts["memory_total_mib"] is None
    assert facts["missing"] == ["memory_total_mib", "memory_reserved_mib"]
    assert "gpu-memory" not in facts["labels"]


def test_a_name_that_is_refused_leaves_the_card_with_its_uuid() -> None:
    result = probe_once(make_definition(faults=[{"call": "name", "do": "not_supported"}]))
    assert facts_of(result, 0)["missing"] == ["name"]
    assert "gpu-name" not in facts_of(result, 0)["labels"]


def test_when_every_call_is_refused_the_uuid_is_enough() -> None:
    result = probe_once(make_definition(faults=[{"call": "all", "do": "not_supported"}]))
    facts = facts_of(result, 0)
    unread = {key for key, value in facts.items() if value is None} - {"mig"}
    assert (
        set(facts["missing"])
        == unread
        == {
            *("minor", "name", "compute_capability", "memory_total_mib", "memory_reserved_mib"),
            "pci_bus_id",
        }
    )
    assert facts["labels"] == {}
    assert result["missing"] == ["driver_version", "cuda_version"]


def test_bytes_are_taken_for_text() -> None:
    result = probe_once(make_definition(faults=[{"call": "all", "do": "bytes"}]))
    assert facts_of(result, 0)["name"] == "NVIDIA GeForce RTX 4090"
    assert isinstance(facts_of(result, 0)["uuid"], str)
    assert result["driver_version"] == "550.54.15"


@pytest.mark.parametrize("call", ["memory", "utilization", "temperature", "power", "processes"])
def test_a_wrong_type_is_unknown(call: str) -> None:
    result = probe_once(make_definition(faults=[{"call": call, "do": "wrong_type"}]))
    sample = sample_of(result, 0)
    if call != "processes":
        assert sample["missing"]
    assert all(not isinstance(value, bytes) for value in sample.values())


def test_the_older_memory_call_folds_reserved_into_used() -> None:
    result = probe_once(make_definition(H200, faults=[{"call": "memory", "do": "v1_only"}]))
    facts, sample = facts_of(result, 0), sample_of(result, 0)
    assert facts["memory_total_mib"] == 143771
    assert facts["memory_reserved_mib"] is None
    assert facts["missing"] == ["memory_reserved_mib"]
    assert (sample["memory_used_mib"], sample["memory_free_mib"]) == (615, 143771 - 615)


def test_a_driver_without_the_newer_memory_call_is_asked_for_it_once() -> None:
    nvml = SimulatedNvml(
        make_definition(H200, faults=[{"call": "memory", "do": "v1_only"}]), clock=lambda: 0.0
    )
    context = ProbeContext(nvml, wants_links=False)
    probe(nvml, context)
    first = nvml.calls
    probe(nvml, context)
    assert nvml.calls - first == first - 1


def test_a_lost_gpu_stays_listed_and_the_others_are_read() -> None:
    result = probe_once(make_definition(faults=[{"gpu": 1, "do": "lost"}]))
    assert health_of(result, 1) == ("lost", "gpu_lost")
    assert health_of(result, 0) == ("healthy", None)
    assert sample_of(result, 0)["memory_free_mib"] == 24564


def test_a_card_of_unified_memory_is_listed_without_sizes() -> None:
    result = probe_once(make_definition({"name": "NVIDIA GB10", "compute_capability": "12.1"}))
    assert facts_of(result, 0)["memory_total_mib"] is None
    assert sample_of(result, 0)["memory_free_mib"] is None
    assert facts_of(result, 0)["labels"]["gpu-name"] == "NVIDIA-GB10"


class OldBinding(SimulatedNvml):
    """A binding whose newest process call the driver lacks, and that says so in its own way."""

    class NVMLLibraryMismatchError(Exception):
        pass

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        raise self.NVMLLibraryMismatchError

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: int) -> Any:
        return [SimpleNamespace(pid=7, usedGpuMemory=5 * 2**20)]


def test_an_older_process_call_is_used_where_the_newest_is_missing() -> None:
    nvml = OldBinding(make_definition(), clock=lambda: 0.0)
    result = probe(nvml, ProbeContext(nvml))
    assert sample_of(result, 0)["memory_foreign_mib"] == 5


class WithoutUuid(SimulatedNvml):
    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        if handle == 0:
            raise NVMLError(999)
        return super().nvmlDeviceGetUUID(handle)


def test_a_gpu_without_uuid_is_left_out_and_said() -> None:
    nvml = WithoutUuid(make_definition(), clock=lambda: 0.0)
    result = probe(nvml, ProbeContext(nvml))
    assert [gpu["index"] for gpu in result["gpus"]] == [1]
    assert result["missing"] == ["gpus[0].uuid"]


@pytest.mark.parametrize(
    ("memory_mib", "total"), [(None, None), (2048, 2048)], ids=["unknown", "known"]
)
def test_foreign_memory_is_a_sum_only_where_all_of_it_is_known(
    memory_mib: int | None, total: int | None
) -> None:
    planted = [{"gpu": 0, "pid": 9, "memory_mib": memory_mib, "user": "eve"}]
    sample = sample_of(probe_once(make_definition(processes=planted)), 0)
    assert sample["memory_foreign_mib"] == total
    assert sample["foreign"] == [
        {"pid": 9, "user": "eve", "container": None, "memory_mib": memory_mib}
    ]
    assert ("memory_foreign_mib" in sample["missing"]) == (memory_mib is None)


@pytest.mark.parametrize(
    ("gpu", "kind", "lanes"),
    [
        (H200, "nvlink", 18),
        ({"name": "NVIDIA A100-SXM4-80GB"}, "nvlink", 18),
        ({"name": "NVIDIA H100 PCIe"}, "pcie", None),
        (RTX_4090, "pcie", None),
        ({**RTX_4090, "links": "numa"}, "numa", None),
        ({**RTX_4090, "links": "system"}, "system", None),
    ],
)
def test_links_by_model_and_by_definition(
    gpu: dict[str, Any], kind: str, lanes: int | None
) -> None:
    result = probe_once(make_definition({**gpu, "count": 3}))
    assert [(link["kind"], link["links"]) for link in result["links"]] == [(kind, lanes)] * 3


class WithoutTopology(SimulatedNvml):
    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        raise NVMLError(3)

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        raise NVMLError(3)


def test_links_that_nothing_tells_of_are_missing_not_guessed() -> None:
    nvml = WithoutTopology(make_definition(), clock=lambda: 0.0)
    assert read_links(nvml, [("a", 0), ("b", 1)]) == ([], False)
    assert probe(nvml, ProbeContext(nvml))["missing"] == ["links"]
