"""Which GPUs of one node go together: the set with the best links among them."""

from collections.abc import Sequence
from typing import Final

from gpuyard.model.node import GpuLink

_LINK_WORTH: Final = {"nvlink": 8.0, "pcie": 4.0, "numa": 2.0, "system": 1.0}


def best_linked(free: Sequence[str], count: int, links: Sequence[GpuLink]) -> list[str]:
    """`count` of the free GPUs with the best links among them; by index where links say nothing.

    Greedy from every first device: exact for pairs, near enough beyond, and cheap.
    """
    if count <= 1 or count == len(free) or not links:
        return list(free[:count])
    worth: dict[tuple[str, str], float] = {}
    for link in links:
        value = _LINK_WORTH.get(link["kind"], 0.0) + (link["links"] or 0) / 100
        worth[link["a"], link["b"]] = worth[link["b"], link["a"]] = value
    best: list[str] = []
    best_value = -1.0
    for first in free:
        chosen, value = _grow(first, free, count, worth)
        if value > best_value + 1e-9:
            best, best_value = chosen, value
    order = {uuid: index for index, uuid in enumerate(free)}
    return sorted(best, key=order.__getitem__)


def _grow(
    first: str, free: Sequence[str], count: int, worth: dict[tuple[str, str], float]
) -> tuple[list[str], float]:
    chosen, total = [first], 0.0
    gains = {uuid: worth.get((first, uuid), 0.0) for uuid in free if uuid != first}
    while len(chosen) < count:
        uuid = max(gains, key=gains.__getitem__)
        total += gains.pop(uuid)
        chosen.append(uuid)
        for other in gains:
            gains[other] += worth.get((uuid, other), 0.0)
    return chosen, total
