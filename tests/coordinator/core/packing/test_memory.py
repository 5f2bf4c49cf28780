"""A placer that recalls what another one was decides as that one, whatever it saw before."""

from gpuyard.model.where import parse
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.shapes import Shape, read_shape, shape_document
from tests.coordinator.core.packing.builders import SETTINGS, node, share
from tests.support.agents import A100_40, A100_80, H200, RTX_4090


def test_prices_of_before_a_small_change_of_the_fleet_are_kept() -> None:
    """Made anew they would be those of the fleet as it is now, with its kinds in another order."""
    mix = Mix()
    for shape, count in ((Shape(gpus=1), 5), (share(30), 9), (Shape(gpus=4), 2)):
        for _ in range(count):
            mix.observe(shape)
    first = Packer(SETTINGS, mix)
    nodes = [node("z", [H200] * 4), *(node(f"m{n}", [A100_80] * 8) for n in range(6))]
    nodes += [node("y", [A100_40] * 2)]
    for each in nodes:
        first.node_changed(each)
    first.settle()
    nodes.append(node("a", [RTX_4090] * 2))
    first.node_changed(nodes[-1])
    first.settle()

    second = Packer(SETTINGS)
    second.price(mix)
    second.recall(fast_codec.decode_own(fast_codec.encode(first.memory())))
    for each in sorted(nodes, key=lambda each: each.name):
        second.node_changed(each)
    fresh = Packer(SETTINGS, mix)
    for each in sorted(nodes, key=lambda each: each.name):
        fresh.node_changed(each)
    second.settle()
    fresh.settle()

    assert second.memory() == first.memory() != fresh.memory()
    asked = [Shape(gpus=1), share(30), Shape(gpus=4), Shape(gpus=2), share(60), Shape(gpus=1)] * 3
    assert [second.place(shape) for shape in asked] == [first.place(shape) for shape in asked]


def test_a_shape_reads_back_equal() -> None:
    shape = Shape(
        gpus=2,
        gpu_ids=("0", "1"),
        excluded=frozenset({"b", "a"}),
        where=(parse("gpu-memory>=40"), parse("!zone")),
        prefer=(parse("zone=x"),),
        tolerate=("cordon",),
        models=("*4090",),
        busy_s=90,
    )
    assert read_shape(fast_codec.decode_own(fast_codec.encode(shape_document(shape)))) == shape
