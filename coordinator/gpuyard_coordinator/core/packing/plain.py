"""The policy as its formula says, one node and one job at a time, in Python's integers.

Readable and slow: `scoring` computes the same numbers for all jobs at once. What both go by, the
devices that a job takes and what is left then, is here alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpuyard_coordinator.core.packing.pricing import (
    COPY,
    SCORE_UNIT,
    Pricing,
    Term,
    fullness,
    size_of_all,
)
from gpuyard_coordinator.core.packing.states import INFEASIBLE, Catalogue, Device, Key
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI

Taken = tuple[Device, ...]


def score(pricing: Pricing, catalogue: Catalogue, key: Key, row: Shape) -> tuple[int, Taken]:
    """The score of the best way to place a job on a node, and the devices it takes there; lower is
    better, `INFEASIBLE` where it does not fit. Equal ways: the device first in the key."""
    before = potential(pricing, catalogue, key) - fullness(sum(d.milli for d in key.devices))
    best: tuple[int, Taken] = (INFEASIBLE, ())
    for taken in options(catalogue, key, row):
        change = potential(pricing, catalogue, after(catalogue, key, row, taken)) - before
        value = (change + SCORE_UNIT // 2) // SCORE_UNIT + size_of_all(row, key.gpus)
        if value < best[0]:
            best = (value, taken)
    return best


def potential(pricing: Pricing, catalogue: Catalogue, key: Key) -> int:
    """PHI in units."""
    milli = sum(device.milli for device in key.devices)
    value = 0
    for device in key.devices:
        value += pricing.rest_value(catalogue.kinds[device.kind], device.milli)
    for units_of_milli, units_of_cpu in pricing.fed:
        value += max(0, int(units_of_milli * milli) - int(units_of_cpu * key.cpu_milli))
    for term in pricing.terms:
        copies = _copies(term, catalogue, key) * COPY
        most = term.most_by_cpu(key.cpu_milli)
        value -= term.weight * (copies if most is None else min(copies, most))
    return value


def _copies(term: Term, catalogue: Catalogue, key: Key) -> int:
    """Copies of a task that the GPUs of a node hold."""
    copies = 0
    for device in key.devices:
        size = catalogue.kinds[device.kind].size_of(term.request)
        copies += device.milli // size if size else 0
    return copies // term.gpus if term.gpus else copies


def options(catalogue: Catalogue, key: Key, row: Shape) -> Iterator[Taken]:
    """The ways to place a job on a node, as far as they differ."""
    if key.gpus < 0 or key.cpu_milli < row.cpu_milli:
        return
    if row.is_share:
        for device in dict.fromkeys(key.devices):
            if catalogue.takes_share(row, device):
                yield (device,)
    elif (taken := whole_devices(catalogue, key.gpus, key.devices, row)) is not None:
        yield taken


def whole_devices(
    catalogue: Catalogue, gpus: int, devices: Sequence[Device], row: Shape
) -> Taken | None:
    """The free devices that a job takes on a node of so many GPUs: all of one kind where one has
    enough, of the first such; None where there are too few."""
    grants = catalogue.grants(row)
    free = [d for d in devices if d.milli == WHOLE_GPU_MILLI and grants[d.kind][0]]
    if row.all_gpus:
        return tuple(free) if free and len(free) == gpus else None
    if len(free) < row.gpus:
        return None
    for kind, count in Counter(device.kind for device in free).items():
        if count >= row.gpus:
            return (Device(kind, WHOLE_GPU_MILLI),) * row.gpus
    return tuple(free[: row.gpus])


def after(catalogue: Catalogue, key: Key, row: Shape, taken: Taken) -> Key:
    """A node with a job placed on it; how much memory shares leave on a device is not told."""
    devices = list(key.devices)
    for device in taken:
        devices.remove(device)
        if row.is_share:
            left = device.milli - catalogue.grants(row)[device.kind][0]
            if left:
                guests = catalogue.joined(device.guests, row)
                devices.append(Device(device.kind, left, guests=guests))
    return Key(key.cpu_milli - row.cpu_milli, key.gpus, tuple(sorted(devices)))
