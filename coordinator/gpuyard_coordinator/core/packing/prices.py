"""What the rest of a GPU is worth: prices from the bin-packing LP of the sizes that jobs ask for.

The LP asks for the fewest GPUs that hold a demand: min sum x_k over patterns k (multisets of sizes
that fit one GPU), sum_k count(k, s) x_k >= d_s. It is solved by column generation (Gilmore and
Gomory, 1961): a knapsack over one GPU finds the pattern that its prices undervalue most. Its dual
y_s is the price of a size, and a rest of r milli is worth the best multiset of sizes that fits it.

Plain Python floats in a fixed order: the same demand gives the same prices on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

SIZES_KEPT: Final = 48
"""Sizes that are priced, those asked for most; the LP takes milliseconds with so many."""
_TOLERANCE: Final = 1e-9
_MAX_ROUNDS: Final = 2000
"""A stop for a cycle of degenerate steps; the prices are then those of a nearly optimal basis."""


def worth_of_rests(demand: Mapping[int, float]) -> list[float]:
    """u(r) in milli-GPU for r = 0..1000, by a demand of pieces by their size in milli.

    Never falls, u(0) = 0, and u(1000) = 1000 wherever anything is asked for.
    """
    asked = {size: pieces for size, pieces in demand.items() if size > 0 and pieces > 0}
    sizes = sorted(asked, key=lambda size: (-asked[size] * size, size))[:SIZES_KEPT]
    sizes.sort(reverse=True)
    prices = _prices(sizes, [asked[size] for size in sizes])
    best, _ = _knapsack(sizes, prices)
    top = best[WHOLE_GPU_MILLI] or 1.0
    return [WHOLE_GPU_MILLI * value / top for value in best]


def _prices(sizes: Sequence[int], demand: Sequence[float]) -> list[float]:
    """The duals of the LP, by the revised simplex method with an explicit inverse of the basis."""
    count = len(sizes)
    most = [WHOLE_GPU_MILLI // size for size in sizes]
    inverse = [[(1.0 / most[i] if i == j else 0.0) for j in range(count)] for i in range(count)]
    amounts = [demand[i] / most[i] for i in range(count)]
    for _ in range(_MAX_ROUNDS):
        prices = [sum(row[j] for row in inverse) for j in range(count)]
        clipped = [max(0.0, price) for price in prices]
        best, taken = _knapsack(sizes, clipped)
        if best[WHOLE_GPU_MILLI] <= 1 + _TOLERANCE:
            if all(price >= -_TOLERANCE for price in prices):
                return clipped
            column = _surplus(prices)
        else:
            column = [float(n) for n in _pattern(sizes, taken)]
        if not _pivot(inverse, amounts, column):
            return clipped
    return clipped


def _surplus(prices: Sequence[float]) -> list[float]:
    """The column that lets the size with the lowest price be held more often than asked."""
    lowest = min(range(len(prices)), key=prices.__getitem__)
    return [-1.0 if i == lowest else 0.0 for i in range(len(prices))]


def _pivot(inverse: list[list[float]], amounts: list[float], column: Sequence[float]) -> bool:
    """Brings a column into the basis; False where none can leave it."""
    count = len(amounts)
    steps = [sum(a * b for a, b in zip(row, column, strict=True)) for row in inverse]
    leaving, least = -1, 0.0
    for i in range(count):
        if steps[i] > _TOLERANCE:
            ratio = amounts[i] / steps[i]
            if leaving < 0 or ratio < least - _TOLERANCE:
                leaving, least = i, ratio
    if leaving < 0:
        return False
    scale = 1.0 / steps[leaving]
    pivot_row = [value * scale for value in inverse[leaving]]
    for i in range(count):
        if i != leaving and steps[i]:
            step = steps[i]
            inverse[i] = [a - step * b for a, b in zip(inverse[i], pivot_row, strict=True)]
            amounts[i] = max(0.0, amounts[i] - step * least)
    inverse[leaving], amounts[leaving] = pivot_row, least
    return True


def _knapsack(sizes: Sequence[int], prices: Sequence[float]) -> tuple[list[float], list[int]]:
    """(best value, index of a size in the best multiset or -1) for every rest of 0..1000 milli."""
    best, taken = [0.0] * (WHOLE_GPU_MILLI + 1), [-1] * (WHOLE_GPU_MILLI + 1)
    for index, (size, price) in enumerate(zip(sizes, prices, strict=True)):
        if price <= _TOLERANCE:
            continue
        for rest in range(size, WHOLE_GPU_MILLI + 1):
            value = best[rest - size] + price
            if value > best[rest] + _TOLERANCE:
                best[rest], taken[rest] = value, index
    for rest in range(1, WHOLE_GPU_MILLI + 1):
        if best[rest - 1] > best[rest]:
            best[rest], taken[rest] = best[rest - 1], taken[rest - 1]
    return best, taken


def _pattern(sizes: Sequence[int], taken: Sequence[int]) -> list[int]:
    counts, rest = [0] * len(sizes), WHOLE_GPU_MILLI
    while (index := taken[rest]) >= 0:
        counts[index] += 1
        rest -= sizes[index]
    return counts
