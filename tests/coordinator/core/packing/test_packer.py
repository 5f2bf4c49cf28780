"""The placer: it goes by plain scores over all that a job may use, whatever was placed before."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.model.where import parse
from gpuyard_coordinator.core import filters, ledger, quota
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import Packer, Placement, plain
from gpuyard_coordinator.core.packing.fleet import Fleet
from gpuyard_coordinator.core.packing.pricing import Pricing
from gpuyard_coordinator.core.packing.rooms import Room
from gpuyard_coordinator.core.packing.states import INFEASIBLE
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Node
from tests.coordinator.core.packing.builders import SETTINGS, node, share
from tests.support.agents import A100_80, H200, MIG_7, MIG_MIXED, RTX_4090, gpu_uuid
from tests.support.yard import Yard

CARDS = [
    *([], [A100_80], [RTX_4090] * 2, [A100_80] * 8, [RTX_4090, H200, RTX_4090], [H200] * 4),
    *([MIG_7], [MIG_MIXED] * 2, [A100_80, MIG_MIXED]),
]
NODES = st.lists(
    st.tuples(st.sampled_from(CARDS), st.sampled_from([8.0, 32.0, 96.0]), st.booleans()),
    min_size=1,
    max_size=7,
)
SHAPES = (
    st.builds(
        Shape,
        gpus=st.sampled_from([0, 1, 1, 2, 4]),
        cpu_milli=st.sampled_from([0, 2000, 9000]),
        memory_mib=st.sampled_from([0, 50_000, 150_000]),
        where=st.sampled_from([(), (), (parse("zone=b"),), (parse("gpu-memory>=80"),)]),
        models=st.sampled_from([None, None, ("*4090",)]),
        excluded=st.sampled_from([frozenset(), frozenset({"n0", "gone"})]),
        node=st.sampled_from([None, None, None, "n1"]),
    )
    | st.builds(
        share,
        st.sampled_from([10.0, 46.0, 54.0, 100.0]),
        cpu_milli=st.sampled_from([0, 3000]),
        tenant=st.sampled_from(["a", "b"]),
        is_shared_across_tenants=st.booleans(),
    )
    | st.builds(
        Shape,
        mig=st.sampled_from(["1g.10gb", "1g.10gb", "3g.40gb", "7g.80gb"]),
        gpus=st.sampled_from([1, 1, 2, 5]),
        cpu_milli=st.sampled_from([0, 3000]),
    )
)


def fleet_of(drawn: list[tuple[list[object], float, bool]]) -> list[Node]:
    return [
        node(f"n{i}", cards, cpus=cpus, labels={"zone": "b"} if is_b else {})  # type: ignore[arg-type]
        for i, (cards, cpus, is_b) in enumerate(drawn)
    ]


def has_room(room: Room, shape: Shape) -> bool:
    """True if all but the GPUs would do."""
    return (
        room.takes_more
        and (room.cpu_milli or 0) >= shape.cpu_milli
        and (room.memory_mib or 0) >= shape.memory_mib
        and room.document_kib >= shape.document_kib
    )


class Reference:
    """Looks at every node for every job, by the plain formula and the filters of `why`."""

    def __init__(self, nodes: list[Node], mix: Mix) -> None:
        self.fleet = Fleet(SETTINGS)
        self.nodes = {node.name: node for node in nodes}
        for each in nodes:
            self.fleet.look_at(each)
        self.fleet.sort()
        devices = {kind: n for kind, n in self.fleet.devices.items() if n}
        self.pricing = Pricing.of(mix, devices)

    def best(self, shape: Shape) -> str | None:
        scores = [
            (
                plain.score(self.pricing, self.fleet.catalogue, member.key(), self.row(shape))[0],
                name,
            )
            for name, member in self.fleet.members.items()
            if self.may(name, shape)
        ]
        score, name = min(scores, default=(INFEASIBLE, ""))
        return name if score < INFEASIBLE else None

    def may(self, name: str, shape: Shape) -> bool:
        room = self.fleet.members[name].room
        is_named = shape.node in (None, name) and name not in shape.excluded
        return (
            is_named
            and room is not None
            and has_room(room, shape)
            and room.choose(replace(shape, cpu_milli=0)) is not None
        )

    def row(self, shape: Shape) -> Shape:
        return Shape(
            gpus=shape.gpus,
            cpu_milli=shape.cpu_milli,
            where=tuple(c for c in shape.where if c.key.startswith("gpu")) if shape.gpus else (),
            models=shape.models if shape.wants_gpus else None,
            share_core_percent=shape.share_core_percent,
            tenant=shape.tenant,
            is_shared_across_tenants=shape.is_shared_across_tenants,
            mig=shape.mig,
        )

    def book(self, shape: Shape, placement: Placement, sign: int) -> None:
        self.fleet.book(self.fleet.members[placement.node], shape, placement.gpus, sign)


@settings(deadline=None, max_examples=80)
@given(
    drawn=NODES,
    submitted=st.lists(SHAPES, min_size=1, max_size=20),
    steps=st.lists(st.tuples(SHAPES, st.integers(0, 3)), min_size=1, max_size=40),
)
def test_every_place_is_the_best_by_plain_scores(
    drawn: list[tuple[list[object], float, bool]],
    submitted: list[Shape],
    steps: list[tuple[Shape, int]],
) -> None:
    """Placements and releases in any order; ties go to the first name."""
    mix = Mix()
    for shape in submitted:
        mix.observe(shape)
    nodes = fleet_of(drawn)
    reference, packer = Reference(nodes, mix), Packer(SETTINGS, mix=mix)
    for each in nodes:
        packer.node_changed(each)
    held: list[tuple[Shape, Placement]] = []
    for shape, released in steps:
        expected, placement = reference.best(shape), packer.place(shape)
        assert (placement.node if placement else None) == expected, shape
        if placement is not None:
            reference.book(shape, placement, -1)
            held.append((shape, placement))
        if released == 0 and held:
            gone = held.pop(len(held) // 2)
            packer.release(*gone)
            reference.book(*gone, 1)
        for member in reference.fleet.ordered:
            room = member.room
            assert room is not None and min(room.free_milli.values(), default=0) >= 0
            assert (room.cpu_milli or 0) >= 0 and (room.memory_mib or 0) >= 0


def packer_of(*nodes: Node) -> Packer:
    packer = Packer(SETTINGS)
    for each in nodes:
        packer.node_changed(each)
    return packer


def places(packer: Packer, shape: Shape, count: int) -> list[str]:
    found = [packer.place(shape) for _ in range(count)]
    return [placement.node for placement in found if placement is not None]


def test_shares_by_memory_fill_a_gpu_and_never_beyond() -> None:
    """8188 MiB is 333 milli of 24564: three fit to the last MiB, with a milli left for nobody."""
    packer = packer_of(node("a", [RTX_4090]))
    third = Shape(share_mib=8188)

    assert places(packer, third, 4) == ["a"] * 3
    assert packer.place(Shape(share_mib=20)) is None


def test_a_share_of_more_memory_than_is_left_goes_elsewhere() -> None:
    packer = packer_of(node("a", [RTX_4090]), node("b", [RTX_4090]))
    half = Shape(share_mib=12_290)

    assert sorted(places(packer, half, 3)) == ["a", "b"], "500 milli each, but 16 MiB too much"


def test_a_limit_that_binds_on_large_gpus_leaves_the_small_ones() -> None:
    packer = packer_of(node("a", [H200]), node("b", [RTX_4090]))
    left = quota.Left(milli=None, gpu_memory_mib=30_000)

    placement = packer.place(Shape(gpus=1), left)
    assert placement is not None and placement.node == "b"
    assert packer.place(Shape(gpus=1), left) is None


def test_nodes_come_go_and_change_between_decisions() -> None:
    packer = packer_of(node("b", [RTX_4090] * 2))
    one = Shape(gpus=1)
    assert places(packer, one, 1) == ["b"]
    packer.node_changed(node("a", [RTX_4090]))
    packer.node_changed(node("b", [RTX_4090]))
    assert packer.take_growth()
    assert sorted(places(packer, one, 3)) == ["a", "b"]

    packer.node_removed("a")
    packer.node_changed(node("b", [RTX_4090]))
    assert places(packer, one, 2) == ["b"]
    sick = node("b", [RTX_4090])
    sick.sample_age_s = None
    packer.node_changed(sick)
    assert places(packer, one, 1) == []
    assert places(packer, Shape(), 1) == ["b"], "a job without GPUs may still go there"


def test_a_preview_leaves_no_trace() -> None:
    packer = packer_of(node("a", [A100_80] * 4), node("b", [A100_80] * 4))
    shape = share(46, tenant="t")
    first = packer.place(shape)
    assert first is not None
    packer.release(shape, first)

    assert packer.place(shape) == first


def test_decisions_do_not_depend_on_what_was_asked_before() -> None:
    """Scores are exact, so that states and requests may be remembered and forgotten at will."""
    nodes = [node(f"n{i}", [A100_80] * 8) for i in range(4)]
    shapes = [share(33.3, cpu_milli=1000), Shape(gpus=2, cpu_milli=5000), Shape(gpus=1)] * 6
    fresh, warm = packer_of(*nodes), packer_of(*nodes)
    for number in range(200):
        warm_up = Shape(gpus=1, cpu_milli=number)
        placement = warm.place(warm_up)
        assert placement is not None
        warm.release(warm_up, placement)

    assert [fresh.place(shape) for shape in shapes] == [warm.place(shape) for shape in shapes]


def test_preparing_prices_changes_no_decision() -> None:
    """Also where the fleet and the requests change between."""
    mix = Mix.prior()
    for number in range(50):
        mix.observe(Shape(gpus=1 + number % 3, cpu_milli=5000))
        mix.observe(share(33, models=("*4090",)))
    prepared, plain_one = (
        packer_of(node("b", [A100_80] * 4), node("c", [RTX_4090] * 4)) for _ in range(2)
    )
    assert len(list(prepared.prepare(mix))) >= 2
    for packer in (prepared, plain_one):
        packer.node_changed(node("a", [A100_80] * 2, cpus=20))
        assert packer.place(share(20, cpu_milli=100)) is not None
        packer.price(mix)
    shapes = [Shape(gpus=1, cpu_milli=5000), share(33), share(33, models=("*4090",))] * 6

    assert [prepared.place(s) for s in shapes] == [plain_one.place(s) for s in shapes]


def test_kinds_that_nobody_tells_apart_share_states_until_somebody_does() -> None:
    other = A100_80._replace(name="NVIDIA H100")
    packer = packer_of(node("a", [A100_80] * 2), node("b", [other] * 2))
    assert packer.place(Shape(gpus=1)) == Placement("a", (gpu_uuid("a", 0),))
    table = packer._table
    assert table is not None
    assert {device.kind for state in table._states for device in state.key.devices} == {0}

    placement = packer.place(Shape(gpus=1, models=("*H100",)))
    assert placement is not None and placement.node == "b"
    assert {device.kind for state in table._states for device in state.key.devices} == {0, 1}
    assert packer.place(Shape(gpus=2, models=("*H100",))) is None


def test_a_free_gpu_is_free_to_the_ledger_too() -> None:
    """What the key of a node says and what filters say are one."""
    yard_node = node("a", [A100_80, RTX_4090])
    fleet = Fleet(SETTINGS)
    member, _ = fleet.look_at(yard_node)

    assert len(member.key().devices) == len(filters.takers(yard_node, Shape(gpus=1), SETTINGS))
    assert all(ledger.free_mib(gpu) for gpu in yard_node.gpus.values())


def test_a_device_whose_cordon_comes_and_goes_takes_jobs_again() -> None:
    yard = Yard()
    yard.node("a", cards=[RTX_4090, H200])
    yard.submit("before", gpus=2)
    assert yard.plan() == 1
    yard.start("before")
    yard.end("before", exit_code=0)
    yard.cordon("a", "1", reason="fan")
    yard.submit("j", gpus=1, where=["gpu-name=*H200"])
    assert yard.plan() == 0
    yard.uncordon("a", "1")
    assert yard.plan() == 1
