"""Which waiting shapes may have a place since room grew on a few nodes.

A shape that was refused on every node is asked for again only where one that changed since may take
it. That is told by counting alone, which costs a fraction of asking the placer.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Node

FEW: Final = 16
"""Nodes up to which it pays to compare each with every shape."""


class _Free(NamedTuple):
    """What a node has left at most, whatever else keeps jobs off it."""

    gpus: int
    """Whole ones, or instances."""
    parts: int
    """GPUs of which some part is left."""
    cpu_milli: int
    memory_mib: int


def may_fit(nodes: Collection[Node], shapes: Iterable[Shape]) -> set[Shape]:
    """The shapes that one of these nodes may take, or may take a member of; never one too few."""
    if len(nodes) > FEW:
        return set(shapes)
    free = [_free(node) for node in nodes]
    return {shape for shape in shapes if any(_may_take(each, shape) for each in free)}


def _free(node: Node) -> _Free:
    gpus = node.gpus.values()
    return _Free(
        gpus=sum(gpu.free_milli == WHOLE_GPU_MILLI for gpu in gpus),
        parts=sum(gpu.free_milli > 0 for gpu in gpus),
        cpu_milli=filters.cpu_milli_free(node) or 0,
        memory_mib=filters.memory_mib_free(node) or 0,
    )


def _may_take(free: _Free, shape: Shape) -> bool:
    return (
        (shape.gpus or len(shape.gpu_ids) or int(shape.all_gpus)) <= free.gpus
        and shape.is_share <= free.parts
        and (not shape.cpu_milli or shape.cpu_milli <= free.cpu_milli)
        and (not shape.memory_mib or shape.memory_mib <= free.memory_mib)
    )
