"""Shapes in plain values, for what is kept of a planner; jobs are stored with their specs instead."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from gpuyard.model import where
from gpuyard_coordinator.core.state import Shape

_NAMES: Final = tuple(each.name for each in fields(Shape) if each.init)
_LINES: Final = ("where", "prefer")


def shape_document(shape: Shape) -> dict[str, Any]:
    """`read_shape` reads it back equal."""
    document = {name: getattr(shape, name) for name in _NAMES}
    for name in _LINES:
        document[name] = [line.text for line in document[name]]
    document["excluded"] = sorted(shape.excluded)
    return document


def read_shape(document: Mapping[str, Any]) -> Shape:
    """Raises KeyError, TypeError or ValueError where the document is none of `shape_document`."""
    kept: dict[str, Any] = {name: document[name] for name in _NAMES if name in document}
    kept = {n: tuple(value) if isinstance(value, list) else value for n, value in kept.items()}
    for name in _LINES:
        kept[name] = tuple(map(where.parse, kept[name]))
    kept["excluded"] = frozenset(kept["excluded"])
    return Shape(**kept)
