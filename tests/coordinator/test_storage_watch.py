"""What the coordinator says of the bus's storage, and what it does while there is room left."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Publication
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.events import CancelRequested, Refused, Submitted
from gpuyard_coordinator.leader import Leadership
from gpuyard_coordinator.outbox import Outbox
from gpuyard_coordinator.storage_watch import StorageWatch
from gpuyard_coordinator.store import Store, put
from tests.support.state_bucket import lead

JOB = Submitted("t", "mia", False, "j", {"image": "busybox"}, "sha", sequence=7, ref="asker")


class Lease:
    """A leadership of which only the lease matters."""

    is_held = True

    def is_valid(self, now: float) -> bool:
        return self.is_held


@pytest.fixture
async def watch(bus: Bus) -> AsyncIterator[StorageWatch]:
    token = await lead(bus)
    outbox = Outbox(bus.jetstream, token=token)
    store = Store(bus.jetstream, token=token)
    yield StorageWatch(bus.jetstream, cast(Leadership, Lease()), store, outbox, Clock())
    await outbox.close()


async def fill(bus: Bus, stream: str, share: float) -> None:
    """Lower the stream's limit until what it holds is `share` of it."""
    info = await bus.jetstream.call(f"STREAM.INFO.{stream}")
    limit = int(info["state"]["bytes"] / share)
    await bus.jetstream.call(f"STREAM.UPDATE.{stream}", info["config"] | {"max_bytes": limit})


async def test_all_is_well(watch: StorageWatch) -> None:
    await watch.look()

    assert watch.alarms() == []
    assert watch.admit(JOB) is JOB


async def test_a_full_intake_is_an_alarm_and_no_reason_to_refuse(
    bus: Bus, watch: StorageWatch
) -> None:
    await bus.jetstream.publish(Publication(subjects.submit("t"), bytes(2**20 - 100)))
    await fill(bus, subjects.SUBMIT_STREAM, 0.95)
    await watch.look()

    assert watch.alarms() == ["GPUYARD_SUBMIT uses 1 of 1 MiB"]
    assert watch.admit(JOB) is JOB


async def test_a_state_without_records_to_forget_refuses_new_jobs_alone(
    bus: Bus, watch: StorageWatch
) -> None:
    await bus.jetstream.publish(Publication(subjects.state("job.t.a"), bytes(10**6)))
    await fill(bus, subjects.STATE_STREAM, 0.95)
    await watch.look()

    refused = watch.admit(JOB)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.sequence, refused.ref) == ("j", 7, "asker")
    assert [fault.code for fault in refused.faults] == ["storage_full"]
    cancel = CancelRequested("t", "j", "mia")
    assert watch.admit(cancel) is cancel


async def test_the_oldest_records_of_ended_jobs_are_forgotten(
    bus: Bus, watch: StorageWatch
) -> None:
    await bus.jetstream.publish(Publication(subjects.state("job.t.live"), b"x" * 100))
    for n in range(40):
        await bus.jetstream.publish(Publication(subjects.state(f"done.t.{n:02d}"), bytes(1000)))
    await fill(bus, subjects.STATE_STREAM, 0.95)
    await watch.look()

    page = await bus.jetstream.read_page(subjects.STATE_STREAM, subject=subjects.state("done.>"))
    left = [stored.subject.rpartition(".")[2] for stored in page.messages]
    assert 20 < len(left) < 40
    assert left == [f"{n:02d}" for n in range(40 - len(left), 40)]
    assert await bus.jetstream.last(subjects.STATE_STREAM, subjects.state("job.t.live"))
    assert watch.alarms() == []


async def test_whoever_does_not_lead_any_more_forgets_nothing(
    bus: Bus, watch: StorageWatch
) -> None:
    await bus.jetstream.publish(Publication(subjects.state("done.t.a"), bytes(1000)))
    await fill(bus, subjects.STATE_STREAM, 0.95)
    cast(Any, watch.leadership).is_held = False
    await watch.look()

    assert (await bus.jetstream.last(subjects.STATE_STREAM, subjects.state("done.t.a"))) is not None
    assert "lease" in watch.alarms()[0]


async def test_a_commit_without_room_blocks_until_there_is_some(
    bus: Bus, watch: StorageWatch
) -> None:
    await fill(bus, subjects.STATE_STREAM, 1.0)
    commit = asyncio.create_task(watch.store.commit([put("job.t.a", bytes(5000))]))
    while not await watch.is_blocked():
        await asyncio.sleep(0.01)
    assert "maximum bytes exceeded" in watch.alarms()[0]
    assert not commit.done()

    info = await bus.jetstream.call(f"STREAM.INFO.{subjects.STATE_STREAM}")
    await bus.jetstream.call(
        f"STREAM.UPDATE.{subjects.STATE_STREAM}", info["config"] | {"max_bytes": 10**6}
    )
    assert await commit > 0
    assert not await watch.is_blocked()


async def test_a_deposed_leader_does_not_speak_of_the_commit_that_it_waits_for(
    bus: Bus, watch: StorageWatch
) -> None:
    watch.store.blocked = "no answer within 2 s"
    cast(Any, watch.leadership).is_held = False
    assert await watch.is_blocked()

    await lead(bus)
    assert not await watch.is_blocked()


async def test_events_without_room_are_an_alarm_until_they_are_stored(
    bus: Bus, watch: StorageWatch
) -> None:
    info = await bus.jetstream.call(f"STREAM.INFO.{subjects.EVENTS_STREAM}")
    await bus.jetstream.call(f"STREAM.DELETE.{subjects.EVENTS_STREAM}")
    event = {"subject": subjects.event("t", "j", "queued", 1), "body": {"v": 1}}
    watch.outbox.push(1, {"v": 1, "messages": [cast(Any, event)]})
    while not watch.alarms():
        await asyncio.sleep(0.01)
    assert "GPUYARD_EVENTS does not take what happened" in watch.alarms()[0]

    await bus.jetstream.call(f"STREAM.CREATE.{subjects.EVENTS_STREAM}", info["config"])
    while watch.outbox.pending:
        await asyncio.sleep(0.01)
    assert watch.alarms() == []
