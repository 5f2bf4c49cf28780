"""Kinds of GPUs: what of a device decides who may use it and how large a share of it is.

Devices of one kind are interchangeable to packing, whatever node they are of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from gpuyard.model import where
from gpuyard.model.where import Condition
from gpuyard_coordinator.core import filters, instances, ledger, selection
from gpuyard_coordinator.core.mix import is_of_kind
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Cordon, Gpu


@dataclass(frozen=True, slots=True)
class Kind:
    labels: tuple[tuple[str, str], ...]
    """What the lines of `where` about a GPU are held against, but for its UUID; sorted."""
    memory_mib: int | None
    cordon: tuple[str | None] | None = None
    """The reason of an operator's cordon, in a tuple since a cordon may have none."""
    profile: str | None = None
    """Of a MIG instance; empty where it is not known. None for a GPU."""
    example: Gpu | None = field(default=None, compare=False, repr=False)
    """A device of this kind, as first seen: a device changes, a kind does not."""

    def document(self) -> dict[str, Any]:
        """In plain values; `of` reads it back equal."""
        document = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "example"}
        gpu = self.example
        document["facts"] = None if gpu is None else gpu.facts
        document["kept_off"] = None if gpu is None or gpu.cordon is None else [*gpu.cordon]
        return document

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Kind":
        kept = {name: value for name, value in document.items() if name in _KIND_FIELDS}
        facts, cordon = document["facts"], document["kept_off"]
        if facts is not None:
            kept["example"] = Gpu(facts, cordon=None if cordon is None else Cordon(*cordon))
        return cls(**{name: _frozen(value) for name, value in kept.items()})

    def grant_of(self, request: Shape) -> tuple[int, int]:
        """(thousandths, MiB of shared memory) of one device that a job of this request would hold;
        (0, 0) if it may not."""
        gpu = self.example
        if gpu is None or not selection.is_allowed_model(gpu, request):
            return 0, 0
        view = dict(self.labels)
        if not all(where.holds(c, view) for c in request.where if is_of_kind(c)):
            return 0, 0
        granted = ledger.grant(gpu, request)
        return (ledger.part_of(gpu, granted), granted["memory_mib"] or 0) if granted else (0, 0)

    def size_of(self, request: Shape) -> int:
        """The thousandths of `grant_of`."""
        return self.grant_of(request)[0]

    def takes(self, shape: Shape) -> bool:
        """False if a cordon of the device keeps a shape off that does not tolerate it."""
        return self.example is None or not filters.is_cordoned(self.example, shape)


_KIND_FIELDS: Final = frozenset(each.name for each in fields(Kind))


def _frozen(value: Any) -> Any:
    """Lists as the tuples that they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def kind_of(gpu: Gpu, node_labels: Mapping[str, str]) -> Kind:
    """The kind of a device on a node with these labels, as of `selection.labels_of`."""
    view = where.gpu_view(node_labels, gpu.facts["labels"], "")
    labels = sorted((name, value) for name, value in view.items() if _tells_of_kind(name))
    cordon = None if gpu.cordon is None else (gpu.cordon.reason,)
    example = Gpu(facts=gpu.facts, cordon=gpu.cordon)
    profile = (instances.profile_of(gpu) or "") if instances.is_instance(gpu) else None
    return Kind(tuple(labels), gpu.facts["memory_total_mib"], cordon, profile, example)


@lru_cache(maxsize=1024)
def _tells_of_kind(label: str) -> bool:
    """Kept, since a yard has few labels and thousands of devices with them."""
    return is_of_kind(Condition(label, label, "has"))
