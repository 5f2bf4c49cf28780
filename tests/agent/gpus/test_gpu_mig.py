"""MIG instances as NVML tells of them: GPUs of their own, whose statistics are unknown, never 0."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard.model.node import GpuFacts
from gpuyard_agent.gpus.fleet import FleetError
from gpuyard_agent.gpus.history import GpuHistory
from gpuyard_agent.gpus.injection import device_nodes
from gpuyard_agent.gpus.probe import ProbeContext, probe
from gpuyard_agent.gpus.prober import InlineProber
from gpuyard_agent.gpus.simulation import NVMLError, SimulatedNvml
from gpuyard_agent.loop.inventory import Description, Inventory
from tests.agent.gpus.definitions import NOBODY, Clock, make_definition, probe_once

A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "compute_capability": "8.0"}
SPLIT = {**A100, "mig": ["3g.40gb", "1g.10gb"]}


def instances_of(result: Any) -> dict[str, GpuFacts]:
    """By profile."""
    gpus = [gpu for gpu in result["gpus"] if gpu["mig"] and gpu["mig"]["parent"]]
    return {gpu["mig"]["profile"]: gpu for gpu in gpus}


def test_each_instance_is_a_gpu_of_its_own() -> None:
    result = probe_once(make_definition(SPLIT, A100))
    parent, *_, other = result["gpus"]
    small = instances_of(result)["1g.10gb"]

    assert set(instances_of(result)) == {"3g.40gb", "1g.10gb"}
    assert (parent["mig"], other["mig"]) == ({"profile": None, "parent": None}, None)
    assert small["mig"] == {"profile": "1g.10gb", "parent": parent["uuid"]}
    assert small["uuid"].startswith("MIG-") and small["index"] == parent["index"] == 0
    assert small["name"] == parent["name"] and small["compute_capability"] == "8.0"
    assert small["memory_total_mib"] == 9728
    assert small["labels"]["gpu-memory"] == "10GB"
    assert small["labels"]["gpu-name"] == "NVIDIA-A100-SXM4-80GB"
    assert small["missing"] == [] and small["minor"] is None


def test_what_the_driver_measures_of_no_instance_is_unknown() -> None:
    result = probe_once(make_definition(SPLIT))
    uuid = instances_of(result)["1g.10gb"]["uuid"]
    sample = next(sample for sample in result["samples"] if sample["uuid"] == uuid)

    assert sample["memory_used_mib"] == 0 and sample["memory_free_mib"] == 9728
    unknown = ["utilization_percent", "temperature_c", "power_w"]
    assert [sample[key] for key in unknown] == [None] * 3  # type: ignore[literal-required]
    assert sample["missing"] == unknown and sample["health"]["state"] == "healthy"


def test_drivers_before_470_name_an_instance_by_its_gpu() -> None:
    result = probe_once(make_definition(SPLIT, driver_version="460.32.03"))
    gpu = result["gpus"][0]["uuid"]
    assert instances_of(result)["1g.10gb"]["uuid"] == f"MIG-{gpu}/2/0"


class Nameless(SimulatedNvml):
    """A driver that names an instance like its GPU, and tells these numbers of it."""

    attributes = (0, 0, 0)

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return "NVIDIA H200"

    def nvmlDeviceGetAttributes(self, handle: int) -> Any:
        compute, slices, memory_mib = self.attributes
        return SimpleNamespace(
            computeInstanceSliceCount=compute,
            gpuInstanceSliceCount=slices,
            memorySizeMB=memory_mib,
        )


@pytest.mark.parametrize(
    ("memory_mib", "attributes", "profile"),
    [
        (81920, (1, 1, 9728), "1g.10gb"),
        (81920, (1, 1, 19968), "1g.20gb"),
        (143771, (3, 3, 71424), "3g.71gb"),
        (40536, (4, 4, 19968), "4g.20gb"),
        (143771, (1, 2, 33280), "1c.2g.35gb"),
        (None, (1, 1, 9728), None),
    ],
)
def test_a_profile_is_made_of_slices_and_memory_where_no_name_tells_it(
    memory_mib: int | None, attributes: tuple[int, int, int], profile: str | None
) -> None:
    definition = make_definition({**SPLIT, "memory_mib": memory_mib, "mig": ["1g.10gb"]})
    nvml = Nameless(definition, clock=lambda: 0.0)
    nvml.attributes = attributes
    instance = probe(nvml, ProbeContext(nvml))["gpus"][1]

    assert instance["mig"] is not None and instance["mig"]["profile"] == profile
    assert ("mig.profile" in instance["missing"]) == (profile is None)


class Unreadable(SimulatedNvml):
    """A driver that fails on one slot of each GPU."""

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        if index == 1:
            raise NVMLError(999)
        return super().nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def test_instances_that_cannot_be_read_now_are_lost_and_not_gone() -> None:
    definition, history = make_definition(SPLIT), GpuHistory(utc_now=lambda: "t")
    whole, partly = (kind(definition, clock=lambda: 0.0) for kind in (SimulatedNvml, Unreadable))
    history.accept(probe(whole, ProbeContext(whole)), links_asked=True)
    result = history.accept(probe(partly, ProbeContext(partly)), links_asked=False)

    assert result["gpus"][0]["missing"] == ["mig"]
    uuid = instances_of(result)["1g.10gb"]["uuid"]
    health = {sample["uuid"]: sample["health"]["state"] for sample in result["samples"]}
    assert health[uuid] == "lost"


def test_instances_of_a_lost_gpu_are_lost_with_it() -> None:
    result = probe_once(make_definition(SPLIT, faults=[{"gpu": 0, "do": "lost"}]))
    assert {sample["health"]["state"] for sample in result["samples"]} == {"lost"}


async def test_another_geometry_is_another_inventory() -> None:
    """What was decided on the old one is refused by its generation."""
    clock = Clock()
    definition = make_definition(
        SPLIT, A100, faults=[{"at": "30s", "gpu": 0, "do": "geometry", "mig": ["7g.80gb"]}]
    )
    prober = InlineProber(definition, clock=clock)
    inventory = Inventory(
        prober,
        Description(runtime="simulated", agent_version="0", cpus=1.0, memory_mib=1),
        expects_gpus=lambda: True,
    )
    await inventory.sample(NOBODY)
    before, old = inventory.generation, set(inventory.gpus)
    clock.now = 31.0

    assert await inventory.sample(NOBODY)
    assert inventory.generation == before + 1
    assert [len(old - inventory.gpus), len(inventory.gpus - old)] == [2, 1]
    assert {sample["health"]["state"] for sample in inventory.samples} == {"healthy"}


@pytest.mark.parametrize(
    ("runtime", "injection", "is_usable"),
    [
        ("docker", "toolkit", True),
        ("docker", "cdi", True),
        ("docker", "device-nodes", False),
        ("process", "device-nodes", True),
    ],
)
async def test_instances_that_no_container_could_get_are_told_so(
    runtime: Any, injection: Any, is_usable: bool
) -> None:
    about = Description(runtime=runtime, agent_version="0", cpus=1.0, memory_mib=1)
    about.gpu_injection = injection
    inventory = Inventory(
        InlineProber(make_definition(SPLIT, A100)), about, expects_gpus=lambda: True
    )
    await inventory.sample(NOBODY)

    reasons = list(inventory.reasons())
    assert [reason["code"] for reason in reasons] == (
        [] if is_usable else ["mig_needs_toolkit"] * 2
    )
    assert all((reason["gpu"] or "").startswith("MIG-") for reason in reasons)


def test_the_node_of_a_gpu_is_never_handed_out_for_an_instance() -> None:
    small = instances_of(probe_once(make_definition(SPLIT)))["1g.10gb"]
    with pytest.raises(RuntimeFailure, match="MIG instances reach containers by the NVIDIA"):
        device_nodes([small], exists=lambda path: True)


@pytest.mark.parametrize(
    ("gpu", "faults", "line"),
    [
        (
            {"mig": ["1g10gb"]},
            [],
            "nodes[0].gpus[0].mig[0]: a MIG profile is expected, as 1g.10gb, not '1g10gb'",
        ),
        ({"mig": ["1g.10gb"] * 8}, [], "nodes[0].gpus[0].mig: a GPU has at most 7 instances"),
        ({"mig": 7}, [], "nodes[0].gpus[0].mig: a list is expected, not 7"),
        (
            {},
            [{"do": "geometry"}],
            "nodes[0].faults[0].mig: belongs to do: geometry, and is needed there",
        ),
    ],
)
def test_a_fleet_file_says_instances_by_profile(
    gpu: dict[str, Any], faults: list[dict[str, Any]], line: str
) -> None:
    with pytest.raises(FleetError) as caught:
        make_definition({**A100, **gpu}, faults=faults)
    assert str(caught.value) == line
