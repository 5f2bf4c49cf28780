"""From a message that somebody published to an event for the core. Pure; it never raises.

A body that is a map with `image` is a job, with `cancel` a cancel; everything else is refused with
every fault named, so that intake never stops.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpuyard import codec
from gpuyard.errors import FieldFault, InvalidJob, RemoteProtocolError
from gpuyard.messages import MAX_SPEC_BYTES
from gpuyard.model import ids
from gpuyard.model.intake import parse_spec
from gpuyard.model.job import spec_digest
from gpuyard_coordinator.core.events import CancelRequested, Refused, Submitted

Submission = Submitted | Refused | CancelRequested
_MESSAGE_ID: Final = "Nats-Msg-Id"


def read_submission(
    *,
    tenant: str,
    user: str | None,
    data: bytes,
    headers: Mapping[str, str] | None,
    assigned_id: str,
    sequence: int | None = None,
    ref: object = None,
) -> Submission:
    """The event of a body sent by `tenant`; `assigned_id` is its id if it brings none.

    `user` None means a tenant-wide key: a user in the body is then a claim.
    """
    sender = user or "_"
    try:
        body = _body(data, headers)
    except InvalidJob as error:
        return Refused(
            tenant, sender, assigned_id, error.faults, spec={}, sequence=sequence, ref=ref
        )
    if "cancel" in body and "image" not in body:
        return _cancel(
            body, tenant=tenant, user=sender, assigned_id=assigned_id, sequence=sequence, ref=ref
        )
    job_id, note = _id_of(body, headers or {}, tenant, assigned_id)
    try:
        spec = parse_spec(body)
    except InvalidJob as error:
        return Refused(
            tenant, sender, job_id, error.faults, spec=_readable(body), sequence=sequence, ref=ref
        )
    normalised = spec.normalised()
    return Submitted(
        tenant=tenant,
        user=user or spec.user or "_",
        user_verified=False,
        id=job_id,
        spec=normalised,
        spec_sha256=spec_digest(normalised),
        sequence=sequence,
        note=note,
        ref=ref,
    )


def _body(data: bytes, headers: Mapping[str, str] | None) -> dict[str, Any]:
    if len(data) > MAX_SPEC_BYTES:
        text = f"the body has {len(data)} bytes, the limit is {MAX_SPEC_BYTES}"
        raise InvalidJob([FieldFault("", "too_large", text)], code="too_large")
    try:
        return codec.decode(data, headers=headers)
    except RemoteProtocolError as error:
        text = f"the body is neither a JSON nor a msgpack map: {error}"
        raise InvalidJob([FieldFault("", "invalid", text)]) from error


def _cancel(
    body: Mapping[str, Any],
    *,
    tenant: str,
    user: str,
    assigned_id: str,
    sequence: int | None,
    ref: object,
) -> CancelRequested | Refused:
    target, message = body["cancel"], body.get("reason")
    if isinstance(target, str) and ids.is_any_id(target):
        text = message if isinstance(message, str) else None
        return CancelRequested(tenant, target, user, message=text, ref=ref)
    fault = FieldFault("cancel", "invalid", f"{target!r} is not a job's id")
    return Refused(tenant, user, assigned_id, (fault,), spec={}, sequence=sequence, ref=ref)


def _id_of(
    body: Mapping[str, Any], headers: Mapping[str, str], tenant: str, assigned_id: str
) -> tuple[str, str | None]:
    """(id, note for the submitter): the spec's own, else the message id, else the given one."""
    own = body.get("id")
    if own is not None:
        fits = isinstance(own, str) and ids.is_job_id(own)
        return (str(own) if fits else assigned_id), None
    message_id = headers.get(_MESSAGE_ID)
    if not message_id:
        return assigned_id, None
    job_id, hashed = ids.id_from_message_id(message_id, tenant)
    note = f"{_MESSAGE_ID} is no job id; its digest is the id" if hashed else None
    return job_id, note


def _readable(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader may be shown of a refused spec: its plain top-level values."""
    return {
        key: value
        for key in ("name", "image")
        if isinstance(value := body.get(key), str) and len(value) <= 512
    }
