"""What `status` counts: nodes by state, GPUs by what they are now, waiting jobs by reason.

The GPUs of a node are counted once and then kept with it, until the planner hears that the node
changed: the placer goes by the same news, so what changes a GPU's word is among them. That makes
sums over a large fleet cheap enough to be taken between two turns.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from gpuyard.model.states import NodeState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import filters, instances
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import MOST_LOOKS, code_in_steps
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu, Node, Settings

GPU_WORDS: Final = ("free", "used", "foreign", "ill", "cordoned", "unready")
_DONE: Final = object()
NODES_AT_ONCE: Final = 200
"""Of nodes with 8 GPUs that takes some 4 ms; a turn of the loop changes hardly more."""


def node_totals(cluster: Cluster) -> dict[str, int]:
    """Nodes by state; ready ones that are put aside count as `failing`."""
    return dict(Counter(map(_node_word, cluster.nodes.values())))


def _node_word(node: Node) -> str:
    is_failing = node.state is NodeState.READY and node.aside is not None
    return filters.PUT_ASIDE if is_failing else str(node.state)


def count_some(cluster: Cluster) -> bool:
    """Counts the GPUs of nodes that `gpu_totals` would have to count, some of them at a time; True
    where it may have left some."""
    uncounted = (node for node in cluster.nodes.values() if node.gpu_counts is None)
    counted = 0
    for node in islice(uncounted, NODES_AT_ONCE):
        _counts_of(node, cluster.settings)
        counted += 1
    return counted == NODES_AT_ONCE


def gpu_totals(cluster: Cluster) -> dict[str, int]:
    """GPUs of the yard by what they are now: each is in `total` and in one of the others. Of a GPU
    that is split, its MIG instances are."""
    for name in cluster.nodes_changed:  # the planner has not looked at these yet
        if (node := cluster.nodes.get(name)) is not None:
            node.gpu_counts = None
    # Most nodes of a fleet count alike, so there are few to sum up.
    alike = Counter(_counts_of(node, cluster.settings) for node in cluster.nodes.values())
    sums = [
        sum(counts[place] * nodes for counts, nodes in alike.items())
        for place in range(len(GPU_WORDS))
    ]
    return {"total": sum(sums), **dict(zip(GPU_WORDS, sums, strict=True))}


def _counts_of(node: Node, settings: Settings) -> tuple[int, ...]:
    if node.gpu_counts is None:
        counts = Counter(_gpu_words(node, settings))
        node.gpu_counts = tuple([counts[word] for word in GPU_WORDS])
    return node.gpu_counts


def _gpu_words(node: Node, settings: Settings) -> Iterator[str]:
    is_down, is_sampled = filters.is_down(node), filters.is_sampled(node)
    takes_work = filters.node_block(node) is None
    for gpu in node.gpus.values():
        if instances.is_split(gpu):
            continue
        if gpu.free_milli < WHOLE_GPU_MILLI:
            yield "used"
        elif is_down:
            yield "unready"
        else:
            yield _free_word(gpu, settings, is_sampled=is_sampled, takes_work=takes_work)


def _free_word(gpu: Gpu, settings: Settings, *, is_sampled: bool, takes_work: bool) -> str:
    """A cordon, a drain and being put aside keep work off alike."""
    fault = filters.gpu_block(gpu, settings)
    if not is_sampled or fault not in (None, VerdictCode.FOREIGN_MEMORY):
        return "ill"
    if not takes_work or gpu.cordon is not None:
        return "cordoned"
    return "free" if fault is None else "foreign"


class Reasons:
    """The reasons of waiting jobs, found a few nodes at a time, for those shapes first of which
    most wait; for as many as `MOST_LOOKS` allows."""

    def __init__(self) -> None:
        self._codes: dict[Shape, str] = {}
        self._work: Iterator[None] | None = None

    def look_some(self, cluster: Cluster) -> bool:
        """Looks at the next nodes; True where there is more to look at."""
        if self._work is None:
            self._work = self._look(cluster)
        return next(self._work, _DONE) is not _DONE

    def count(self, cluster: Cluster) -> dict[str, int]:
        """Waiting jobs by verdict code, or `unknown` where too many are unlike to ask."""
        counts: Counter[str] = Counter()
        for shape, orders in cluster.queue.by_shape.items():
            counts[self._codes.get(shape, "unknown")] += len(orders)
        for parked in cluster.queue.parked.values():
            counts[str(parked.code)] += parked.weight
        return dict(counts)

    def _look(self, cluster: Cluster) -> Iterator[None]:
        numbers = {shape: len(orders) for shape, orders in cluster.queue.by_shape.items()}
        by_number = sorted(numbers, key=lambda shape: -numbers[shape])
        # The first is looked at however large the fleet is.
        for shape in by_number[: 1 + (MOST_LOOKS - 1) // max(len(cluster.nodes), 1)]:
            self._codes[shape] = str((yield from code_in_steps(cluster, shape, NODES_AT_ONCE)))
            yield
