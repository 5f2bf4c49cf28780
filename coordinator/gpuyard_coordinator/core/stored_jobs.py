"""Stored jobs, read by the hundred thousand: a spec whose like was seen is hardly taken apart."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gpuyard.model.job import DEFAULT_PRIORITY
from gpuyard.model.states import JobState
from gpuyard_coordinator.core.documents import (
    array_from_document,
    attempt_from_document,
    fence_s,
)
from gpuyard_coordinator.core.shapes import ENTRY_GPU_BYTES, Shape, shape_of
from gpuyard_coordinator.core.state import Awaited, Hold, Job
from gpuyard_coordinator.fast_codec import NIL, Raw, Struct, Version, decode_own, fields_of, reader


class _Document(Struct):
    """A job as it is stored; what has a default may be absent in one of an earlier release."""

    tenant: str
    id: str
    user: str
    user_verified: bool
    spec: Raw
    spec_sha256: str
    state: JobState
    reason: str | None
    exit_code: int | None
    message: str | None
    submitted_at: str
    submit_seq: int
    started_at: str | None
    ended_at: str | None
    events: int
    attempts: list[Any]
    not_charged: int
    v: Version = 1
    avoid: tuple[str, ...] = ()
    not_before: str | None = None
    hold: Hold | None = None
    after: tuple[Awaited, ...] = ()
    array: Any = None
    age_seq: int | None = None


class _Request(Struct):
    """The keys of a spec on which `_Traits` depend, packed as they are."""

    gpus: Raw = NIL
    cpus: Raw = NIL
    memory_mib: Raw = NIL
    node: Raw = NIL
    where: Raw = NIL
    prefer: Raw = NIL
    tolerate: Raw = NIL
    max_runtime: Raw = NIL
    stop_grace: Raw = NIL
    priority: Raw = NIL
    preemptible: Raw = NIL
    on_partition: Raw = NIL
    nodes: Raw = NIL


class _Spec(_Request):
    """What a job takes over from its spec; the rest of it is passed over."""

    name: str | None = None
    image: str | None = None
    deadline: str | None = None
    array: str | None = None


class _Traits(NamedTuple):
    """What is worked out of a request, once for all jobs with the same."""

    shape: Shape
    priority: int
    fence_s: float | None
    is_preemptible: bool


_read_document: Final = reader(_Document)
_read_spec: Final = reader(_Spec)
_REQUEST: Final = slice(len(_Request.__struct_fields__))
_TRAITS_KEPT: Final = 10_000
_traits: dict[tuple[object, ...], _Traits] = {}
"""By the packed request, and what else a shape depends on."""


def read_job(data: bytes, tenants: Mapping[str, Mapping[str, Any]]) -> Job:
    """A stored job as it stood at its last commit; reads back equal to what was written.

    `tenants` are the documents of tenants. Raises RemoteProtocolError, KeyError, TypeError or
    ValueError for a document that cannot be understood.
    """
    document = _read_document(data)
    packed, tenant = bytes(document.spec), sys.intern(document.tenant)
    spec = _read_spec(packed)
    traits = _traits_of(spec, packed, tenant, tenants.get(tenant) or {})
    shape, array = traits.shape, document.array
    if document.avoid:
        shape = replace(shape, excluded=frozenset(document.avoid))
    return Job(
        tenant=tenant,
        id=document.id,
        user=sys.intern(document.user),
        user_verified=document.user_verified,
        packed_spec=packed,
        name=spec.name,
        spec_sha256=document.spec_sha256,
        shape=shape,
        priority=traits.priority,
        submitted_at=document.submitted_at,
        submit_seq=document.submit_seq,
        state=document.state,
        reason=document.reason,
        exit_code=document.exit_code,
        message=document.message,
        started_at=document.started_at,
        ended_at=document.ended_at,
        events=document.events,
        attempts=[attempt_from_document(attempt) for attempt in document.attempts],
        not_charged=document.not_charged,
        image=sys.intern(spec.image or ""),
        fence_s=traits.fence_s,
        not_before=document.not_before,
        deadline=spec.deadline,
        is_preemptible=traits.is_preemptible,
        hold=document.hold,
        after=document.after,
        array=None if array is None else array_from_document(spec.array or "", array),
        age_seq=document.age_seq,
    )


def _traits_of(request: _Spec, packed: bytes, tenant: str, document: Mapping[str, Any]) -> _Traits:
    models = document.get("models")
    key = (
        # One behind another: in msgpack each value tells where it ends.
        b"".join(fields_of(request)[_REQUEST]),
        # Only so much of the length counts for a shape: see `_document_kib`.
        len(packed) // ENTRY_GPU_BYTES,
        tenant,
        bool(document.get("share_across_tenants")),
        None if models is None else tuple(models),
    )
    traits = _traits.get(key)
    if traits is None:
        spec = decode_own(packed)
        if len(_traits) >= _TRAITS_KEPT:
            _traits.clear()
        traits = _traits[key] = _Traits(
            shape=shape_of(spec, tenant, document, packed=packed),
            priority=int(spec.get("priority", DEFAULT_PRIORITY)),
            fence_s=fence_s(spec),
            is_preemptible=bool(spec.get("preemptible")),
        )
    return traits
