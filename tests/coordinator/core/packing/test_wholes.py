"""How scarce whole nodes are: counted as nodes change, and a level that does not flap."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core.headroom import PLACED_BETWEEN, Headroom
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.packing.fleet import Fleet
from gpuyard_coordinator.core.packing.rival_placers import RIVALS
from gpuyard_coordinator.core.packing.wholes import Wholes
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Cordon, Node
from tests.coordinator.core.packing.builders import SETTINGS, node, share
from tests.support.agents import A100_80

LOW, MIDDLE, HIGH = Headroom


def level(was: Headroom, nodes: dict[tuple[int, int], int]) -> Headroom:
    """After `was`, on so many nodes by (GPUs, free ones)."""
    wholes = Wholes()
    for (gpus, free), count in nodes.items():
        for _ in range(count):
            wholes.enter(gpus, free)
    return wholes.headroom(was)


@pytest.mark.parametrize(
    ("was", "free", "now"),
    [
        (MIDDLE, 0, LOW),
        (MIDDLE, 15, LOW),
        (MIDDLE, 16, MIDDLE),
        (MIDDLE, 103, MIDDLE),
        (MIDDLE, 104, HIGH),
        (LOW, 23, LOW),
        (LOW, 24, MIDDLE),
        (LOW, 500, HIGH),
        (HIGH, 96, HIGH),
        (HIGH, 95, MIDDLE),
        (HIGH, 0, LOW),
    ],
)
def test_a_level_is_left_only_some_way_past_its_border(
    was: Headroom, free: int, now: Headroom
) -> None:
    assert was.after(free, 1000) is now
    assert now.after(free, 1000) is now


def test_what_counts_is_what_a_job_of_eight_gpus_finds() -> None:
    assert level(MIDDLE, {(8, 7): 100}) is LOW, "no node is free"
    assert level(MIDDLE, {(8, 8): 6, (8, 0): 94}) is MIDDLE
    assert level(MIDDLE, {(16, 15): 12, (16, 0): 88}) is MIDDLE, "half of each of twelve"
    assert level(MIDDLE, {(8, 0): 90, (4, 4): 100}) is LOW, "the smaller ones are of no use to it"


def test_of_a_fleet_of_smaller_nodes_whole_ones_count() -> None:
    assert level(MIDDLE, {(4, 4): 50, (4, 3): 50}) is HIGH
    assert level(MIDDLE, {(4, 3): 100}) is LOW


@pytest.mark.parametrize("nodes", [{}, {(0, 0): 3}, {(1, 1): 9}])
def test_where_no_node_has_several_gpus_the_level_stays(nodes: dict[tuple[int, int], int]) -> None:
    for was in Headroom:
        assert level(was, nodes) is was


def counted(fleet: Fleet) -> Wholes:
    """By a walk over all nodes."""
    found = Wholes()
    for member in fleet.members.values():
        room, cards = member.room, set[str]()
        if room is not None and not room.is_cordoned:
            cards = {uuid for uuid, gpu in room.node.gpus.items() if gpu.cordon is None}
        free = sum(room.free_milli.get(u) == WHOLE_GPU_MILLI for u in cards) if room else 0
        found.enter(len(cards), free)
    return found


def as_counted(wholes: Wholes) -> tuple[int, Counter[int], Counter[int]]:
    return wholes._gpus, +wholes._by_gpus, +wholes._by_free


ASKED = (Shape(gpus=1), Shape(gpus=3), Shape(all_gpus=True), Shape(cpu_milli=500), share(40))
ACTS = ("place", "release", "look", "cordon", "uncordon", "cordon-gpu", "drop", "ask")
STEPS = st.tuples(st.sampled_from(ACTS), st.integers(0, 99))


class Changing:
    """A fleet in which one thing or another changes."""

    def __init__(self) -> None:
        self.packer = Packer(SETTINGS)
        sizes = zip("abcd", (8, 4, 1, 0), strict=True)
        self.nodes: list[Node] = [node(name, [A100_80] * gpus) for name, gpus in sizes]
        self.held: list[tuple[Shape, Placement]] = []
        for each in self.nodes:
            self.packer.node_changed(each)

    def act(self, act: str, number: int) -> None:
        if act == "ask":
            self.packer._fleet.headroom(MIDDLE)
        elif act == "place":
            shape = ASKED[number % len(ASKED)]
            if (placement := self.packer.place(shape)) is not None:
                self.held.append((shape, placement))
        elif act == "release":
            if self.held:
                self.packer.release(*self.held.pop(number % len(self.held)))
        else:
            self.change(act, self.nodes[number % len(self.nodes)])

    def change(self, act: str, changed: Node) -> None:
        if act == "drop":
            self.packer.node_removed(changed.name)
        elif act.endswith("cordon"):
            changed.scheduling = Scheduling.CORDONED if act == "cordon" else Scheduling.OPEN
        elif act == "cordon-gpu" and changed.gpus:
            gpu = next(iter(changed.gpus.values()))
            gpu.cordon = Cordon("x", "") if gpu.cordon is None else None
            changed.cordons = {"first": gpu.cordon} if gpu.cordon else {}
        self.held = [(shape, at) for shape, at in self.held if at.node != changed.name]
        self.packer.node_changed(changed)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEPS, max_size=40))
def test_the_count_is_that_of_a_walk_over_all_nodes(steps: list[tuple[str, int]]) -> None:
    fleet = Changing()
    for act, number in steps:
        fleet.act(act, number)
    found = fleet.packer._fleet
    found.headroom(MIDDLE)
    assert as_counted(found._wholes) == as_counted(counted(found))


def test_a_level_stays_until_enough_was_placed_since_it_changed() -> None:
    placers = {"ours": Packer(SETTINGS), "fgd": RIVALS["fgd"](SETTINGS, Mix.prior())}
    for placer in placers.values():
        placer.node_changed(node("a", [A100_80] * 8))
    low = Mix.prior().copy(LOW)
    placers["ours"].price(low)

    for number in range(PLACED_BETWEEN):
        assert placers["ours"].headroom(low) is LOW, number
        for placer in placers.values():
            placement = placer.place(Shape(gpus=1))
            assert placement is not None
            placer.release(Shape(gpus=1), placement)
    assert placers["ours"].headroom(low) is HIGH
    placers["ours"].price(low.copy(LOW))
    assert placers["ours"].headroom(low) is HIGH, "new prices of the same level"
    placers["ours"].price(low.copy(HIGH))
    assert placers["ours"].headroom(low) is LOW, "counted anew"
    assert placers["fgd"].headroom(low) is LOW, "its scores are the same at every level"
