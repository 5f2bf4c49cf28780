"""Fleets in which no GPU is known, or none yet, or none any more: jobs without GPUs go on."""

import pytest

from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.packing.placer import Placer
from gpuyard_coordinator.core.shapes import Shape
from tests.coordinator.core.packing.builders import SETTINGS, node, share
from tests.support.agents import A100_80, H200, RTX_4090, gpu_uuid
from tests.support.yard import Yard

MIXES = {
    "prior": Mix.prior(),
    "nothing": Mix(),
    "CPUs alone": Mix({Shape(cpu_milli=2000): 1024}),
    "shares alone": Mix({share(50.0): 1024, share(25.0, cpu_milli=500): 1024}),
    "several GPUs alone": Mix({Shape(gpus=2): 1024, Shape(gpus=8, cpu_milli=4000): 1024}),
    "all GPUs": Mix({Shape(all_gpus=True): 1024}),
}
GPU_JOBS = [Shape(gpus=1), Shape(gpus=8), Shape(all_gpus=True), share(50.0), Shape(gpu_ids=("0",))]


@pytest.fixture(params=MIXES)
def packer(request: pytest.FixtureRequest) -> Packer:
    return Packer(SETTINGS, MIXES[request.param])


def only_cpus_fit(packer: Placer) -> bool:
    found = [packer.place(shape) for shape in GPU_JOBS]
    return found == [None] * len(GPU_JOBS) and packer.place(Shape(cpu_milli=1000)) is not None


def test_without_a_gpu_jobs_without_gpus_are_placed(packer: Packer) -> None:
    packer.node_changed(node("a"))
    assert only_cpus_fit(packer)


def test_without_a_node_nothing_fits(packer: Packer) -> None:
    assert packer.place(Shape()) is None
    assert packer.place(Shape(gpus=1)) is None


def test_prices_are_made_ahead_without_a_gpu(packer: Packer) -> None:
    packer.node_changed(node("a"))
    for _ in packer.prepare(Mix.prior()):
        pass
    packer.price(Mix.prior())
    assert only_cpus_fit(packer)


def test_the_first_gpus_come_after_a_node_without_any(packer: Packer) -> None:
    packer.node_changed(node("a"))
    assert only_cpus_fit(packer)
    packer.node_changed(node("b", [A100_80] * 2))
    assert packer.place(Shape(gpus=1)) == Placement("b", (gpu_uuid("b", 0),))
    packer.node_changed(node("c", [H200, H200, RTX_4090]))  # models and a size never seen before
    assert packer.place(share(50.0)) is not None
    placed = packer.place(Shape(gpus=2))
    assert placed is not None and placed.node == "c"


@pytest.mark.parametrize("how", ["its node goes", "its node has none any more"])
def test_the_last_gpu_goes(packer: Packer, how: str) -> None:
    packer.node_changed(node("a"))
    packer.node_changed(node("b", [A100_80]))
    assert packer.place(Shape(gpus=1)) is not None
    if how == "its node goes":
        packer.node_removed("b")
    else:
        packer.node_changed(node("b"))
    assert only_cpus_fit(packer)


def test_a_yard_without_gpus_runs_what_needs_none_and_says_why_the_rest_waits() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("cpu", cpus=1)
    yard.submit("gpu", gpus=1)
    yard.submit("share", gpus="50%")

    assert yard.plan() == 1

    assert yard.states("cpu", "gpu", "share") == ["assigned", "queued", "queued"]
    for id in ("gpu", "share"):
        verdict = yard.why(id)["verdict"]
        assert verdict is not None and verdict["code"] == "insufficient_gpus"
    yard.node("b", gpus=1)
    assert yard.plan() == 1
