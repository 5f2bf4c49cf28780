"""Which nodes and GPUs a job selects: its lines of `where` and `prefer`, its tenant's models, ids.

Nothing here depends on what is granted or how a device is; that is for `filters`.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from gpuyard.model import where
from gpuyard.model.where import Condition
from gpuyard_coordinator.core import instances
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Gpu, Node

MASKS_KEPT: Final = 256
"""Of one node; with more, jobs' lines differ so much that remembering does not pay."""
_INDEX_DIGITS: Final = 9


def matching(node: Node, shape: Shape) -> frozenset[str] | None:
    """UUIDs of the sort that the job asks for that meet its lines and its tenant's models; None if
    the node itself fails a line, or if the job asks for no GPU and none meets its `gpu-*` lines."""
    mask, masks = (shape.where, shape.models, instances.sort_of(shape)), node.masks
    try:
        found = masks[mask]
    except KeyError:
        if len(masks) >= MASKS_KEPT:
            masks.clear()
        found = masks[mask] = _matching(node, shape)
    if found or found is None or shape.wants_gpus:
        return found
    has_gpu_lines = any(where.is_per_gpu(condition) for condition in shape.where)
    return None if has_gpu_lines else found


def _matching(node: Node, shape: Shape) -> frozenset[str] | None:
    labels = labels_of(node)
    per_gpu = [condition for condition in shape.where if where.is_per_gpu(condition)]
    if not all(where.holds(c, labels) for c in shape.where if not where.is_per_gpu(c)):
        return None
    return frozenset(
        uuid
        for uuid, gpu in node.gpus.items()
        if (not shape.wants_gpus or instances.is_asked_for(gpu, shape))
        and is_allowed_model(gpu, shape)
        and _holds_all(per_gpu, where.gpu_view(labels, gpu.facts["labels"], uuid))
    )


def labels_of(node: Node) -> dict[str, str]:
    """What lines about a node are held against."""
    facts = node.facts
    return where.node_view(facts["labels"], node.name, driver_version=facts["driver_version"])


def _holds_all(conditions: Iterable[Condition], labels: Mapping[str, str]) -> bool:
    return all(where.holds(condition, labels) for condition in conditions)


def lines_alone(node: Node, shape: Shape) -> list[Condition]:
    """The lines of `where` of which one alone may keep a shape off this node."""
    labels = labels_of(node)
    failing = [c for c in shape.where if not where.is_per_gpu(c) and not where.holds(c, labels)]
    if failing:
        return failing if len(failing) == 1 else []
    return [c for c in shape.where if where.is_per_gpu(c)]


def mismatch(node: Node, shape: Shape) -> tuple[str, str | None]:
    """The request that keeps a shape off a node which fails its selection, and what the node has
    instead: a line of `where`, its `node`, or its `gpus` by name; None where it has nothing."""
    if shape.node is not None and shape.node != node.name:
        return f"node={shape.node}", node.name
    labels = labels_of(node)
    for line in shape.where:
        if not where.is_per_gpu(line) and not where.holds(line, labels):
            return str(line), labels.get(line.key)
    named = find_ids(node, shape.gpu_ids)
    if named is None:
        return f"device={','.join(shape.gpu_ids)}", None
    lines = [line for line in shape.where if where.is_per_gpu(line)]
    gpus = [(uuid, node.gpus[uuid].facts["labels"]) for uuid in named or node.gpus]
    must_all = bool(named) or shape.all_gpus
    for line in lines:
        values = {where.gpu_value(labels, of_gpu, uuid, line.key) for uuid, of_gpu in gpus}
        failing = [v for v in values if not where.holds(line, {} if v is None else {line.key: v})]
        if failing and (must_all or len(failing) == len(values)):
            return str(line), ", ".join(sorted(filter(None, failing))) or None
    return ", ".join(map(str, lines)), None


def is_allowed_model(gpu: Gpu, shape: Shape) -> bool:
    """Models are compared as in `where`: `*` is any text, and case does not matter."""
    name = gpu.facts["labels"].get("gpu-name", "").casefold()
    return shape.models is None or any(fnmatchcase(name, m.casefold()) for m in shape.models)


def may_have_an_allowed_model(shape: Shape) -> bool:
    """False where the job's lines on `gpu-name` rule out each of its tenant's models, whatever GPUs
    there are; where both are written with `*`, that is often not certain."""
    lines = [line for line in shape.where if line.key == "gpu-name"]
    return shape.models is None or any(
        not model.strip("*")  # which allows a GPU without a name, too
        or not any(where.leaves_none(line, model) for line in lines)
        for model in shape.models
    )


def gpu_preference(node: Node, shape: Shape) -> dict[str, int]:
    """How many `gpu-*` lines of `prefer` hold on each GPU; empty where there are none."""
    lines = [condition for condition in shape.prefer if where.is_per_gpu(condition)]
    labels = labels_of(node) if lines else {}
    return {
        uuid: sum(where.holds(c, where.gpu_view(labels, gpu.facts["labels"], uuid)) for c in lines)
        for uuid, gpu in node.gpus.items()
        if lines
    }


def preference(node: Node, shape: Shape, uuids: Sequence[str]) -> int:
    """How many lines of `prefer` hold on a node and these GPUs of it; a `gpu-*` line holds on all
    of them, or, for a job without GPUs, on any of the node's."""
    labels = labels_of(node)
    views = {u: where.gpu_view(labels, gpu.facts["labels"], u) for u, gpu in node.gpus.items()}
    chosen = [views[uuid] for uuid in uuids]
    liked = 0
    for condition in shape.prefer:
        if not where.is_per_gpu(condition):
            liked += where.holds(condition, labels)
        elif chosen:
            liked += all(where.holds(condition, view) for view in chosen)
        else:
            liked += any(where.holds(condition, view) for view in views.values())
    return liked


def find_ids(node: Node, gpu_ids: Iterable[str]) -> list[str] | None:
    """The UUIDs that indexes, UUIDs or unique prefixes of them name on a node; None if one
    names nothing, or two name the same device."""
    found: list[str] = []
    for text in gpu_ids:
        if text.isdecimal() and len(text) <= _INDEX_DIGITS:
            matches = [
                uuid
                for uuid in instances.cards(node)
                if node.gpus[uuid].facts["index"] == int(text)
            ]
        else:
            prefix = text.lower()
            matches = [u for u in node.gpus if u.lower().startswith(prefix)]
            matches = [u for u in matches if u.lower() == prefix] or matches
        if len(matches) != 1 or matches[0] in found:
            return None
        found.append(matches[0])
    return found
