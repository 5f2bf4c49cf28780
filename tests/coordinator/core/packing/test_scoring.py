"""All scores at once are those of the formula, one by one, to the last bit."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.model.where import parse
from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.packing import plain
from gpuyard_coordinator.core.packing.potential import Potential
from gpuyard_coordinator.core.packing.pricing import Pricing
from gpuyard_coordinator.core.packing.scoring import Scorer
from gpuyard_coordinator.core.packing.states import INFEASIBLE, Catalogue, Device, Guests, Key
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Gpu
from tests.coordinator.core.packing.builders import share
from tests.support.agents import A100_80, H200, RTX_4090, gpu_facts

CARDS = (A100_80, H200, RTX_4090)
BIG = (parse("gpu-memory>=80"),)
REQUESTS = st.builds(
    Shape,
    cpu_milli=st.sampled_from([0, 250, 4000, 7000, 12_000, 64_000]),
    gpus=st.sampled_from([0, 1, 2, 3, 4, 8]),
    where=st.sampled_from([(), (), BIG]),
    models=st.sampled_from([None, None, ("*4090",), ("*A100*", "*H200*")]),
) | st.builds(
    Shape,
    cpu_milli=st.sampled_from([0, 1000, 6000]),
    share_core_percent=st.sampled_from([None, 5.0, 33.3, 46.0, 81.0, 100.0]),
    share_mib=st.sampled_from([8192, 20_000, 70_000]),
    tenant=st.sampled_from(["a", "b"]),
    is_shared_across_tenants=st.booleans(),
    models=st.sampled_from([None, ("*H200*",)]),
)


def catalogue() -> Catalogue:
    """Three models, and guests 1 to 3: tenant a's, closed and open, and open ones of several."""
    found = Catalogue()
    for card in CARDS:
        found.kind_number(Gpu(gpu_facts("", 0, card)), {})
    for guests in (Guests("a", False), Guests("a", True), Guests(None, True)):
        found.guests_number(guests)
    return found


@st.composite
def keys(draw: st.DrawFn) -> Key:
    kinds = draw(st.sampled_from([(0,), (1,), (2,), (0, 2), (0, 1, 2)]))
    whole = st.tuples(st.sampled_from(kinds), st.just(1000))
    part = st.tuples(
        st.sampled_from(kinds),
        st.integers(1, 999) | st.sampled_from([190, 540]),
        st.sampled_from([-1, -1, 9000]),
        st.integers(1, 3),
    )
    devices = [Device(*each) for each in draw(st.lists(whole | part, max_size=8))]
    gpus = max(len(devices), draw(st.sampled_from([0, 1, 4, 8])))
    return Key(draw(st.integers(0, 128_000)), gpus, tuple(sorted(devices)))


@settings(deadline=None, max_examples=60)
@given(
    submitted=st.lists(REQUESTS, min_size=1, max_size=30),
    asked=st.lists(REQUESTS | st.builds(Shape, all_gpus=st.just(True)), min_size=1, max_size=12),
    nodes=st.lists(keys(), min_size=1, max_size=4),
    headroom=st.sampled_from(Headroom),
)
def test_scores_are_those_of_the_formula(
    submitted: list[Shape], asked: list[Shape], nodes: list[Key], headroom: Headroom
) -> None:
    known, mix = catalogue(), Mix()
    for shape in submitted:
        mix.observe(shape)
    fleet = Counter(dict(zip(known.kinds, (40, 10, 7), strict=True)))
    pricing = Pricing.of(mix.copy(headroom), fleet)
    scorer = Scorer(Potential(pricing), known)
    scorer.add(dict.fromkeys(asked))
    for key in nodes:
        scores, choices = scorer.score(key)
        for row, score, choice in zip(scorer.rows, scores, choices, strict=True):
            expected, taken = plain.score(pricing, known, key, row)
            assert score == expected, (key, row)
            if row.is_share and score < INFEASIBLE:
                assert key.devices[choice] == taken[0]


def priced(mix: Mix, known: Catalogue) -> Pricing:
    return Pricing.of(mix, Counter(dict.fromkeys(known.kinds, 10)))


def mix_of(counts: dict[Shape, int]) -> Mix:
    mix = Mix()
    for shape, count in counts.items():
        for _ in range(count):
            mix.observe(shape)
    return mix


@pytest.mark.parametrize(
    ("headroom", "weight"), [(Headroom.LOW, 5), (Headroom.MIDDLE, 2.5), (Headroom.HIGH, 1.25)]
)
def test_the_potential_of_one_node_worked_out_by_hand(headroom: Headroom, weight: float) -> None:
    """Half the mix asks for one GPU and 8 CPUs, half for two and 32; one GPU is left and 4 CPUs."""
    known = catalogue()
    one, two = Shape(gpus=1, cpu_milli=8000), Shape(gpus=2, cpu_milli=32_000)
    pricing = priced(mix_of({one: 1, two: 1}).copy(headroom), known)
    key = Key(4000, 8, (Device(0, 1000),))
    kappa = 40_000 / 3
    filled = 0.5 * (1000 - 1000 * 0.5) + 0.5 * 1000
    unfed = 3 * (1000 - 4000 * 1000 / (0.8 * kappa)) + 0.5 * (1000 - 4000 * 1000 / (1.1 * kappa))
    several = weight * (2 / 3) * 1000

    value = plain.potential(pricing, known, key) / 2**22
    assert abs(value - (filled + unfed + several)) < 1


def test_a_share_goes_where_it_leaves_no_useless_rest() -> None:
    known = catalogue()
    pricing = priced(mix_of({share(60): 5, share(40): 5, Shape(gpus=1): 10}), known)
    used = Key(90_000, 2, (Device(0, 400, guests=2), Device(0, 1000)))
    row = share(40, tenant="a")

    _, taken = plain.score(pricing, known, used, row)
    assert taken == (Device(0, 400, guests=2),)


def test_scarce_models_are_kept_for_those_who_need_them() -> None:
    known = catalogue()
    mix = mix_of({Shape(gpus=1): 6, Shape(gpus=1, models=("*H200*",)): 6})
    pricing = priced(mix, known)
    plenty, scarce = (Key(90_000, 1, (Device(kind, 1000),)) for kind in (0, 1))

    score = {key: plain.score(pricing, known, key, Shape(gpus=1))[0] for key in (plenty, scarce)}
    assert score[plenty] < score[scarce]


def test_a_job_of_all_gpus_takes_the_smallest_node() -> None:
    known = catalogue()
    pricing = priced(mix_of({Shape(gpus=1): 1}), known)
    small, large = (Key(90_000, n, (Device(0, 1000),) * n) for n in (2, 8))
    row = Shape(all_gpus=True)

    assert plain.score(pricing, known, small, row) < plain.score(pricing, known, large, row)
    partly = Key(90_000, 3, (Device(0, 1000),) * 2)
    assert plain.score(pricing, known, partly, row)[0] == INFEASIBLE
