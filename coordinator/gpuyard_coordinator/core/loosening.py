"""Changes of what a job asks its place to be: another GPU model, fewer lines; see `changes`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from gpuyard.model import where
from gpuyard.model.verdicts import VerdictCode
from gpuyard.model.where import Condition
from gpuyard.views.why import Change
from gpuyard_coordinator.core import explain, filters, selection
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Node

_MODEL: Final = "gpu-name"
_MOST_TOGETHER: Final = 3
_MOST_LINES: Final = 6
_MOST_NODES: Final = 16
"""Bounds of the search for lines that only together keep a job off: at most 35 sets a node."""


def fewer_lines(
    cluster: Cluster, shape: Shape, refusing: dict[str, NodeVerdict]
) -> Iterator[Change]:
    """One line of `where`, or the node's name, without which some node takes it; for a line that
    asks for a model the model that would do. Where no single line is enough, a few together."""
    mismatched = [
        cluster.nodes[name]
        for name, verdict in refusing.items()
        if verdict.code is VerdictCode.WHERE_MISMATCH and shape.node in (None, name)
    ]
    alone = list(_each_line(cluster, shape, mismatched))
    yield from alone or _lines_together(cluster, shape, mismatched)
    if shape.node is not None:
        anywhere = replace(shape, node=None)
        if any(explain.fits(cluster, node, anywhere) for node in cluster.nodes.values()):
            yield {"kind": "drop_node", "text": f"do not ask for node {shape.node}"}


def all_of(changes: Sequence[Change]) -> Change:
    """Changes that are enough only together, as one; a single one as it is."""
    if len(changes) == 1:
        return changes[0]
    text = " and ".join(change["text"] for change in changes)
    return {"kind": "all_of", "changes": list(changes), "text": text}


def _each_line(cluster: Cluster, shape: Shape, nodes: Sequence[Node]) -> Iterator[Change]:
    looser = {line: _without(shape, [line]) for line in shape.where}
    offered: set[str] = set()
    for node in nodes:
        for line in selection.lines_alone(node, shape):
            if str(line) in offered or not explain.fits(cluster, node, looser[line]):
                continue
            offered.add(str(line))
            yield _other_model(cluster, node, shape, line) or _drop(line)


def _other_model(cluster: Cluster, node: Node, shape: Shape, line: Condition) -> Change | None:
    """The first model of the node's with which it takes the shape, in place of a line that asks
    for another."""
    if line.key != _MODEL:
        return None
    rest = _without(shape, [line])
    for uuid in filters.takers(node, rest, cluster.settings):
        model = node.gpus[uuid].facts["labels"].get(_MODEL)
        if not model:
            continue
        other = where.parse(f"{_MODEL}={model}")
        if explain.fits(cluster, node, replace(rest, where=(*rest.where, other))):
            return {
                "kind": "other_model",
                "line": str(line),
                "to": str(other),
                "text": f"ask for {other} instead of {line}",
            }
    return None


def _lines_together(cluster: Cluster, shape: Shape, nodes: Sequence[Node]) -> Iterator[Change]:
    """The fewest lines without which a node takes it."""
    if len(shape.where) > _MOST_LINES:
        return
    for size in range(2, min(_MOST_TOGETHER, len(shape.where)) + 1):
        for lines in combinations(shape.where, size):
            looser = _without(shape, lines)
            if any(explain.fits(cluster, node, looser) for node in nodes[:_MOST_NODES]):
                yield all_of([_drop(line) for line in lines])
                return


def _without(shape: Shape, lines: Sequence[Condition]) -> Shape:
    return replace(shape, where=tuple(line for line in shape.where if line not in lines))


def _drop(line: Condition) -> Change:
    return {"kind": "drop_where", "line": str(line), "text": f"drop the line {line}"}
