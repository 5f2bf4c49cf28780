"""What is kept of ended jobs, looked up on the bus while the event that needs it waits its turn."""

import asyncio
from collections.abc import Iterable
from typing import Final

from gpuyard.errors import Unavailable
from gpuyard.messages import JobDocument
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard_coordinator.core import arrays
from gpuyard_coordinator.core.events import AwaitedLookedUp, CancelRequested, Submitted
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import Arrival
from gpuyard_coordinator.store import Store
from gpuyard_coordinator.submissions import Submission

_NEXT_TRY_S: Final = 0.5


def arrival(store: Store, event: Submission) -> Arrival:
    """An event whose id, and those that it waits for, are looked up; an id that was just given
    away stands for no ended job."""
    arrived = Arrival(event)
    if isinstance(event, Submitted) and event.spec["after"]:
        arrived.ended = asyncio.create_task(states_awaited(store, event))
    if isinstance(event, CancelRequested) or not ids.is_assigned_id(event.id):
        arrived.look_up = asyncio.create_task(store.get_done(event.tenant, event.id))
    return arrived


async def states_awaited(store: Store, event: Submitted) -> dict[str, str]:
    """Final states, by id, of the jobs that a spec waits for and whose records are kept."""
    found = {}
    for item in event.spec["after"]:
        state = await final_state(store, (event.tenant, item["job"]))
        if state is not None:
            found[item["job"]] = state
    return found


async def final_state(store: Store, key: JobKey) -> str | None:
    """None where no record is kept; that of a refusal is no job's."""
    record = await get_record(store, key)
    return record["state"] if record is not None and record["spec_sha256"] else None


async def get_record(store: Store, key: JobKey) -> JobDocument | None:
    """The kept record of a job; of a task that never started, what that of its array says of it."""
    record = await store.get_done(*key)
    array = arrays.array_key(key)
    if record is None and array is not None:
        record = await store.get_done(*array)
        if record is not None:
            record = arrays.never_started(record, key[1])
    return record


async def look_up_awaited(store: Store, inbox: Inbox, keys: Iterable[JobKey]) -> None:
    """Has those told that wait for jobs which ended under the last leader."""
    for tenant, id in keys:
        while True:
            try:
                state = await final_state(store, (tenant, id))
                break
            except Unavailable:
                await asyncio.sleep(_NEXT_TRY_S)
        inbox.put(Arrival(AwaitedLookedUp(tenant, id, state)))
