"""A job on its way into the yard: stored on the bus once, then accepted or refused by the leader.

The id is made here, so that sending again after a lost answer cannot make a second job.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import Bus, NoResponders, NotFound, Publication, StorageFull, StreamRefusal
from gpuyard.client.api import Api
from gpuyard.client.event_order import refusal_of
from gpuyard.client.follow import LOOK_S, Follower
from gpuyard.client.jobs import Job
from gpuyard.errors import FieldFault, InvalidJob, TooLarge, Unavailable, UnknownThing
from gpuyard.messages import MAX_SPEC_BYTES, VERSION
from gpuyard.model import ids
from gpuyard.model.plain import unusable

STORE_S: Final = 10.0
"""How long storing is tried."""
NO_INTAKE_S: Final = 3.0
"""How long a bus without an intake is given: a coordinator that starts makes it."""
REVOKE_S: Final = 3.0
STORE_TRY_S: Final = 2.0
ANSWER_S: Final = 5.0
"""How long the leader's answer is waited for once the job is stored."""
DUPLICATE_S: Final = 1.0
"""After this without an answer the job may be one that the yard has had before."""
UNLIMITED: Final = (
    "tenant '{}' has no document: nothing limits it; if the name is right, gpuyard apply -f FILE"
)
NO_LEADER: Final = "the job is stored; no coordinator has answered yet, it starts once one does"


def as_map(spec: Any) -> dict[str, Any]:
    """A job as a map: one already, or anything with `model_dump`; raises InvalidJob."""
    if hasattr(spec, "model_dump"):
        spec = spec.model_dump(mode="json", exclude_unset=True)
    if not isinstance(spec, Mapping):
        raise InvalidJob([FieldFault("", "wrong_type", "a job is a map or a JobSpec")])
    return dict(spec)


def prepared(spec: Any) -> dict[str, Any]:
    """The body to submit, with an id: from a map, or from anything with `model_dump`."""
    body = {"v": VERSION, **as_map(spec)}
    if body.get("id") is None:
        body["id"] = ids.job_id_from_bytes(os.urandom(10))
    elif not isinstance(body["id"], str) or not ids.is_job_id(body["id"]):
        text = "must be 1 to 48 lower-case letters, digits and hyphens, and not j<…>-<number>"
        raise InvalidJob([FieldFault("id", "invalid", text)])
    return body


def encoded(body: Mapping[str, Any]) -> bytes:
    if faults := list(unusable(body)):
        raise InvalidJob(faults)
    data = codec.encode(body)
    if len(data) > MAX_SPEC_BYTES:
        raise TooLarge(f"the job has {len(data)} bytes, and {MAX_SPEC_BYTES} are allowed")
    return data


async def store(bus: Bus, *, tenant: str, user: str, job: str, data: bytes) -> None:
    """Put the job into the intake stream; returns once the bus has it on disk.

    Raises `Unavailable` where that stayed unknown or undone until the deadline.
    """
    subject = subjects.submit(tenant, user)
    await _publish(
        bus, Publication(subject, data, message_id=f"{tenant}/{job}", headers=_HEADERS), STORE_S
    )


async def revoke(bus: Bus, *, tenant: str, user: str, job: str, reason: str) -> None:
    """Cancel a job whose submission may be under way: by the same stream, so never before it."""
    data = codec.encode({"v": VERSION, "cancel": job, "reason": reason})
    await _publish(
        bus, Publication(subjects.submit(tenant, user), data, headers=_HEADERS), REVOKE_S
    )


async def _publish(bus: Bus, publication: Publication, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + limit_s
    while True:
        try:
            await bus.jetstream.publish(publication, timeout_s=STORE_TRY_S)
            return
        except StorageFull as fault:
            raise _full(fault) from fault
        except StreamRefusal as fault:
            raise Unavailable(f"the bus does not take the job: {fault}") from fault
        except Unavailable as fault:
            after = loop.time() + 0.2
            if isinstance(fault, NoResponders) and after >= min(began + NO_INTAKE_S, deadline):
                await _check_intake(bus)
            if after >= deadline:
                raise await _not_stored(bus, fault, limit_s) from fault
        await asyncio.sleep(0.2)


_HEADERS: Final = {codec.CONTENT_TYPE: codec.MSGPACK_TYPE}


def _full(fault: StorageFull) -> Unavailable:
    """Refused by a limit, at once: waiting for a few seconds would not make room."""
    return Unavailable(
        f"the bus has no room for more jobs: {fault}; nothing was stored, and what runs is not "
        "touched: submit again later, or ask an operator to make room",
        code=fault.code,
    )


async def _check_intake(bus: Bus) -> None:
    """Raise where there is no stream for jobs; one that only has no leader now will get one."""
    try:
        await bus.jetstream.call(f"STREAM.INFO.{subjects.SUBMIT_STREAM}", timeout_s=1.0)
    except NotFound as fault:
        raise Unavailable(
            f"{bus.url} has no intake for jobs: no coordinator has ever run on this bus",
            code="no_leader",
        ) from fault
    except (Unavailable, StreamRefusal):
        return


async def _not_stored(bus: Bus, fault: Unavailable, limit_s: float) -> Unavailable:
    if await bus.hears():
        return Unavailable(
            f"{bus.url} answers, but its storage does not: it did not confirm the job within "
            f"{limit_s:g} s, and may have it all the same; its disk may be full or slow, or its "
            "cluster without a majority",
            code="storage_silent",
        )
    return Unavailable(f"the job was not stored within {limit_s:g} s: {fault}", code=fault.code)


async def settle(follower: Follower, api: Api, *, name: str | None, looks: bool) -> Job:
    """The job once the leader has answered, or with a warning that none has.

    Raises what the yard found wrong with it. Without `looks` an accepted job is not asked for:
    the caller follows it anyway.
    """
    if await follower.decided(DUPLICATE_S):
        return await _answered(follower, api, name, looks=looks)
    # A repeated submission brings no event of its own; the yard has the job already.
    if found := await _known(follower, api):
        return found
    if await follower.decided(ANSWER_S - DUPLICATE_S):
        return await _answered(follower, api, name, looks=looks)
    return await _known(follower, api) or _unseen(follower, api, name, warning=NO_LEADER)


async def _answered(follower: Follower, api: Api, name: str | None, *, looks: bool) -> Job:
    if follower.refusal is not None:
        raise refusal_of(follower.refusal)
    warning = UNLIMITED.format(api.tenant) if follower.is_unlimited else None
    if not looks:
        return _unseen(follower, api, name, warning=warning)
    try:
        answer = await api.call("wait", {"id": follower.job, "timeout_s": LOOK_S})
    except Unavailable:
        # Accepted is accepted, even where the leader went away right after.
        return _unseen(follower, api, name, warning=warning)
    return Job.from_view(answer["job"], warning=warning)


def _unseen(follower: Follower, api: Api, name: str | None, *, warning: str | None) -> Job:
    view = {
        "v": VERSION,
        "id": follower.job,
        "name": name,
        "tenant": api.tenant,
        "user": api.user,
        "state": "queued",
    }
    return Job.from_view(view, warning=warning)


async def _known(follower: Follower, api: Api) -> Job | None:
    try:
        answer = await api.call("job", {"id": follower.job}, answer_s=0.5)
    except (UnknownThing, Unavailable):
        return None
    return Job.from_view(answer["job"])
