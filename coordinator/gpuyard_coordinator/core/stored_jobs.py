"""Stored jobs, read by the hundred thousand: most of a spec is not taken apart once its like was seen."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gpuyard import codec
from gpuyard.model.job import JobSpec
from gpuyard.model.states import JobState
from gpuyard_coordinator.core.documents import (
    ENTRY_GPU_BYTES,
    array_from_document,
    attempt_from_document,
    fence_s,
    shape_of,
)
from gpuyard_coordinator.core.state import Awaited, Hold, Job, Shape


class _Traits(NamedTuple):
    """What a job takes over from its spec, but for its name and its image."""

    shape: Shape
    priority: int
    fence_s: float | None
    is_preemptible: bool


_TRAITS: Final = frozenset(
    [
        "gpus",
        "cpus",
        "memory_mib",
        "node",
        "where",
        "prefer",
        "tolerate",
        "max_runtime",
        "stop_grace",
        "priority",
        "preemptible",
        "on_partition",
        "nodes",
    ]
)
"""The keys of a spec that they depend on. A normalised spec has `gpus` first of them, behind what
tells one job of a hundred thousand from the next."""
_GPUS_AT: Final = list(JobSpec(image="_").normalised()).index("gpus")
_TRAITS_KEPT: Final = 10_000
_traits: dict[tuple[object, ...], _Traits] = {}
"""By the packed end of a spec from its `gpus` on, and what else a shape depends on."""


def read_job(data: bytes, tenants: Mapping[str, Mapping[str, Any]]) -> Job:
    """A stored job as it stood at its last commit; reads back equal to what was written.

    `tenants` are the documents of tenants. Raises RemoteProtocolError, KeyError, TypeError or
    ValueError for a document that cannot be understood.
    """
    document, packed = _split_job(data)
    tenant = sys.intern(document["tenant"])
    spec, traits = _read_spec(packed, tenant, tenants.get(tenant) or {})
    shape, array = traits.shape, document.get("array")
    if avoid := document.get("avoid"):
        shape = replace(shape, excluded=frozenset(avoid))
    return Job(
        tenant=tenant,
        id=document["id"],
        user=sys.intern(document["user"]),
        user_verified=document["user_verified"],
        packed_spec=packed,
        name=spec.get("name"),
        spec_sha256=document["spec_sha256"],
        shape=shape,
        priority=traits.priority,
        submitted_at=document["submitted_at"],
        submit_seq=document["submit_seq"],
        state=JobState(document["state"]),
        reason=document["reason"],
        exit_code=document["exit_code"],
        message=document["message"],
        started_at=document["started_at"],
        ended_at=document["ended_at"],
        events=document["events"],
        attempts=[attempt_from_document(attempt) for attempt in document["attempts"]],
        not_charged=document["not_charged"],
        image=sys.intern(str(spec.get("image") or "")),
        fence_s=traits.fence_s,
        not_before=document.get("not_before"),
        deadline=spec.get("deadline"),
        is_preemptible=traits.is_preemptible,
        hold=None if (hold := document.get("hold")) is None else Hold(*hold),
        after=tuple(Awaited(*awaited) for awaited in document.get("after") or ()),
        array=array_from_document(spec["array"], array) if array is not None else None,
        age_seq=document.get("age_seq"),
    )


def _split_job(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A job's document, and its spec, packed; as we store it that is the last entry."""
    parts = codec.split_own(data, "spec", at=-1)
    if parts is not None:
        return parts
    document = codec.decode_own(data)
    return document, codec.encode(document["spec"])


def _read_spec(
    packed: bytes, tenant: str, document: Mapping[str, Any]
) -> tuple[Mapping[str, Any], _Traits]:
    """(what tells the spec from its like, its traits): most of it is not taken apart once its like
    was seen."""
    parts = codec.split_own(packed, "gpus", at=_GPUS_AT)
    if parts is not None and _TRAITS.isdisjoint(parts[0]):
        spec, end = parts
    else:
        spec, end = codec.decode_own(packed), packed
    models = document.get("models")
    key = (
        end,
        # Only so much of the length counts for a shape: see `_document_kib`.
        len(packed) // ENTRY_GPU_BYTES,
        tenant,
        bool(document.get("share_across_tenants")),
        None if models is None else tuple(models),
    )
    traits = _traits.get(key)
    if traits is None:
        spec = codec.decode_own(packed)
        if len(_traits) >= _TRAITS_KEPT:
            _traits.clear()
        traits = _traits[key] = _Traits(
            shape=shape_of(spec, tenant, document, packed=packed),
            priority=int(spec.get("priority", 50)),
            fence_s=fence_s(spec),
            is_preemptible=bool(spec.get("preemptible")),
        )
    return spec, traits
