"""Prices of rests: the duals of the bin-packing LP, and what they are worth together."""

import random
from itertools import pairwise, product

import pytest

from gpuyard_coordinator.core.packing.prices import worth_of_rests


def test_halves_and_thirds_are_worth_their_part_of_a_gpu() -> None:
    worth = worth_of_rests({500: 1.0, 340: 1.0})

    assert worth[1000] == pytest.approx(1000)
    assert worth[500] == pytest.approx(500)
    assert (worth[0], worth[339]) == (0, 0)


def test_a_size_that_leaves_no_use_for_its_rest_is_worth_a_whole_gpu() -> None:
    worth = worth_of_rests({810: 5.0, 460: 1.0, 1000: 3.0})

    assert worth[810] == pytest.approx(1000)
    assert worth[460] == pytest.approx(500)
    assert worth[190] == 0, "nothing fits there"


def test_small_pieces_that_fill_the_rests_of_large_ones_cost_nothing() -> None:
    worth = worth_of_rests({700: 100.0, 100: 10.0})

    assert worth[100] == pytest.approx(0)
    assert worth[700] == pytest.approx(1000)


def test_nothing_is_worth_anything_where_nothing_is_asked_for() -> None:
    assert worth_of_rests({}) == [0.0] * 1001


@pytest.mark.parametrize("seed", range(12))
def test_prices_are_feasible_duals_that_no_pattern_of_sizes_exceeds(seed: int) -> None:
    """Weak duality from both sides: no GPU holds more than 1000 milli's worth, and the worth of
    the demand is that of some real packing."""
    rng = random.Random(seed)
    sizes = rng.sample(range(120, 1001, 10), 4)
    demand = {size: float(rng.randrange(1, 50)) for size in sizes}
    worth = worth_of_rests(demand)

    assert all(a <= b for a, b in pairwise(worth)), "it never falls"
    counts = [range(1000 // size + 1) for size in sizes]
    for pattern in product(*counts):
        used = sum(n * size for n, size in zip(pattern, sizes, strict=True))
        if used <= 1000:
            value = sum(n * worth[size] for n, size in zip(pattern, sizes, strict=True))
            assert value <= worth[used] + 1e-6
    bound = sum(pieces * worth[size] for size, pieces in demand.items()) / 1000
    assert bound <= _first_fit(demand) + 1e-6
    assert bound >= sum(size * pieces for size, pieces in demand.items()) / 1000 - 1e-6


def _first_fit(demand: dict[int, float]) -> int:
    """GPUs that a simple packing takes."""
    rests: list[int] = []
    for size, pieces in sorted(demand.items(), reverse=True):
        for _ in range(int(pieces)):
            place = next((i for i, rest in enumerate(rests) if rest >= size), None)
            if place is None:
                rests.append(1000 - size)
            else:
                rests[place] -= size
    return len(rests)
