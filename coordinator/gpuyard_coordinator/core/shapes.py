"""Shapes: what placing a job depends on, and nothing else of it.

Jobs of one shape are interchangeable to the placer, so what is known of a shape is known of all of
them. A job is stored with its spec; a shape is written down only with what is kept of a planner.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final

from gpuyard.model.grace import stop_grace_s
from gpuyard.model.mig import is_uuid as is_instance_uuid
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.where import Condition, parse
from gpuyard_coordinator import fast_codec

_ENTRY_BYTES: Final = 512
ENTRY_GPU_BYTES: Final = 128
_GPUS_OF_ALL: Final = 16

Mask = tuple[tuple[Condition, ...], tuple[str, ...] | None, str | bool | None]
"""What selects GPUs: the lines of `where`, the models that the tenant may use, and the sort of
device (`instances.Sort`)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one request asks of a node, and what its tenant may use there."""

    gpus: int = 0
    all_gpus: bool = False
    gpu_ids: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    node: str | None = None
    excluded: frozenset[str] = frozenset()
    """Nodes that failed the job before, while others could run it."""
    tenant: str = ""
    where: tuple[Condition, ...] = ()
    prefer: tuple[Condition, ...] = ()
    tolerate: tuple[str, ...] = ()
    share_mib: int | None = None
    """GPU memory of a share; None where only a fraction was asked for."""
    share_core_percent: float | None = None
    models: tuple[str, ...] | None = None
    """What the tenant may use, as globs over the label `gpu-name`; None: everything."""
    is_shared_across_tenants: bool = False
    document_kib: int = 2
    """Room that an attempt takes in its node's wanted document, rounded up to a power of two."""
    busy_s: int | None = None
    """The longest that it holds its grant once it runs: its time limit and its grace; None: no
    limit."""
    mig: str | None = None
    """The profile of MIG instances, of which `gpus` are asked for; None: no instances."""
    nodes: int = 1
    """Above 1 a gang: all else is asked for on each of so many different nodes."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Kept: a job's shape is looked up several times while it is placed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _ASKED)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def wants_gpus(self) -> bool:
        return bool(self.gpus or self.all_gpus or self.gpu_ids or self.is_share)

    @property
    def is_share(self) -> bool:
        return self.share_mib is not None or self.share_core_percent is not None

    @property
    def names_instances(self) -> bool:
        """True where a UUID of a MIG instance is among the ids."""
        return any(map(is_instance_uuid, self.gpu_ids))


_ASKED: Final = tuple(each.name for each in fields(Shape) if each.init)
_LINES: Final = ("where", "prefer")


def shape_of(
    spec: dict[str, Any],
    tenant: str = "",
    document: Mapping[str, Any] | None = None,
    *,
    packed: bytes | None = None,
) -> Shape:
    """What placing a normalised spec depends on, with what its tenant's `document` adds.

    Equal shapes are mostly the same object. `packed` is the spec in msgpack, if it is at hand.
    """
    gpus, document = spec.get("gpus") or {}, document or {}
    count, ids, is_all = int(gpus.get("count") or 0), tuple(gpus.get("ids") or ()), gpus.get("all")
    return _shape(
        gpus=count,
        all_gpus=bool(is_all),
        gpu_ids=ids,
        cpu_milli=round(float(spec.get("cpus") or 0) * 1000),
        memory_mib=int(spec.get("memory_mib") or 0),
        node=spec.get("node"),
        tenant=tenant,
        where=tuple(spec.get("where") or ()),
        prefer=tuple(spec.get("prefer") or ()),
        tolerate=tuple(spec.get("tolerate") or ()),
        share_mib=gpus.get("memory_mib"),
        share_core_percent=gpus.get("core_percent"),
        models=None if (models := document.get("models")) is None else tuple(models),
        is_shared_across_tenants=bool(document.get("share_across_tenants")),
        document_kib=_document_kib(
            len(packed or fast_codec.encode(spec)), _GPUS_OF_ALL if is_all else count + len(ids)
        ),
        busy_s=_busy_s(spec),
        mig=gpus.get("mig"),
        nodes=int(spec.get("nodes") or 1),
    )


@lru_cache(maxsize=10_000)
def _shape(*, where: tuple[str, ...], prefer: tuple[str, ...], **rest: Any) -> Shape:
    """Kept, since parsing is dear and a hundred thousand jobs have few shapes."""
    return Shape(where=tuple(map(parse, where)), prefer=tuple(map(parse, prefer)), **rest)


def _document_kib(spec_bytes: int, devices: int) -> int:
    """A power of two, so that specs of about the same size share a shape."""
    size = spec_bytes + _ENTRY_BYTES + devices * ENTRY_GPU_BYTES
    return 1 << (size // 1024).bit_length()


def _busy_s(spec: dict[str, Any]) -> int | None:
    limit = spec.get("max_runtime")
    return math.ceil(parse_duration_s(limit) + stop_grace_s(spec)) if limit else None


def without_nodes(shape: Shape, nodes: frozenset[str]) -> Shape:
    """The same request, kept off these nodes and no others."""
    return shape if shape.excluded == nodes else replace(shape, excluded=nodes)


def shape_document(shape: Shape) -> dict[str, Any]:
    """`read_shape` reads it back equal."""
    document = {name: getattr(shape, name) for name in _ASKED}
    for name in _LINES:
        document[name] = [line.text for line in document[name]]
    document["excluded"] = sorted(shape.excluded)
    return document


def read_shape(document: Mapping[str, Any]) -> Shape:
    """Raises KeyError, TypeError or ValueError where the document is none of `shape_document`."""
    kept: dict[str, Any] = {name: document[name] for name in _ASKED if name in document}
    kept = {n: tuple(value) if isinstance(value, list) else value for n, value in kept.items()}
    for name in _LINES:
        kept[name] = tuple(map(parse, kept[name]))
    kept["excluded"] = frozenset(kept["excluded"])
    return Shape(**kept)
