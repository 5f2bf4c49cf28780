"""Leadership on a real server: one leader, quick fail-over, no claim without a lease."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard import subjects
from gpuyard.bus import Bus, Publication, Stale
from gpuyard.errors import LocalProtocolError, Unavailable
from gpuyard_coordinator.leader import Holder, Leadership, Timing, is_running, this_process
from gpuyard_coordinator.yard_memory import YardMemory
from tests.support.nats_server import NatsServer

FAST = Timing(ttl_s=1.0, renew_s=0.2, poll_s=0.1)
ME = this_process(name="coordinator-1", machine_id="m1", boot_id="b1")
ELSEWHERE = replace(ME, name="coordinator-2", machine_id="m2")


def candidate(
    bus: Bus,
    holder: Holder = ME,
    *,
    timing: Timing = FAST,
    memory: YardMemory | None = None,
    is_alive: Callable[[Holder], bool] = is_running,
) -> Leadership:
    return Leadership(
        bus.jetstream,
        holder=holder,
        timing=timing,
        clock=time.monotonic,
        wall_ms=lambda: 1_777_000_000_000,
        memory=memory,
        is_alive=is_alive,
    )


async def die(leadership: Leadership) -> None:
    """As kill -9 would: it renews no more, and resigns never."""
    assert leadership._renewing is not None
    leadership._renewing.cancel()
    await asyncio.gather(leadership._renewing, return_exceptions=True)


async def seconds(work: "asyncio.Future[object]", within_s: float) -> float:
    start = time.monotonic()
    await asyncio.wait_for(work, within_s)
    return time.monotonic() - start


async def test_the_first_candidate_makes_the_yard_and_leads(bus: Bus) -> None:
    leadership = candidate(bus)
    with pytest.raises(LocalProtocolError):
        _ = leadership.token

    token = await leadership.acquire()

    epoch = await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.EPOCH_KEY))
    assert epoch is not None
    assert token == leadership.token == (1_777_000_000_000, epoch.sequence)
    assert re.fullmatch("[a-z0-9]{6}", leadership.yard)
    assert leadership.is_valid(time.monotonic())
    assert not leadership.is_valid(time.monotonic() + FAST.ttl_s)
    await leadership.resign()


async def test_the_lease_is_kept_by_renewals(bus: Bus) -> None:
    leadership = candidate(bus)
    await leadership.acquire()
    other = asyncio.ensure_future(candidate(bus, ELSEWHERE).acquire())

    for _ in range(12):
        await asyncio.sleep(0.2)
        assert leadership.is_valid(time.monotonic())

    assert not other.done()
    assert not leadership.lost.is_set()
    other.cancel()
    await leadership.resign()


async def test_a_dead_leaders_lease_ends_by_itself(bus: Bus) -> None:
    first, second = candidate(bus), candidate(bus, ELSEWHERE)
    old = await first.acquire()
    waiting: asyncio.Future[object] = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0.3)

    await die(first)

    assert await seconds(waiting, 3) < FAST.ttl_s + 0.6
    assert second.token > old
    assert second.yard == first.yard
    await second.resign()


async def test_the_timing_of_a_single_server_fails_over_within_three_seconds(bus: Bus) -> None:
    timing = Timing.for_replicas(1)
    first, second = candidate(bus, timing=timing), candidate(bus, ELSEWHERE, timing=timing)
    await first.acquire()
    waiting: asyncio.Future[object] = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0.9)

    await die(first)

    assert await seconds(waiting, 5) < 3
    await second.resign()


async def test_resigning_hands_over_at_once(bus: Bus) -> None:
    first, second = candidate(bus), candidate(bus, ELSEWHERE)
    await first.acquire()
    await first.resign()
    assert not first.is_leading
    assert first.lost.is_set()

    assert await seconds(asyncio.ensure_future(second.acquire()), 1) < 0.5
    assert await seconds(asyncio.ensure_future(second.resign()), 1) < 0.5
    assert (await first.acquire()) > (0, 0)
    assert not first.lost.is_set()
    await first.resign()


async def test_a_zombie_learns_that_it_lost(bus: Bus) -> None:
    zombie, second = candidate(bus), candidate(bus, ELSEWHERE)
    await zombie.acquire()
    await die(zombie)
    await second.acquire()

    zombie._renewing = asyncio.create_task(zombie._keep(zombie.token))

    await asyncio.wait_for(zombie.lost.wait(), 2)
    assert not zombie.is_leading
    assert not zombie.is_valid(0.0)
    assert second.is_leading
    await zombie.resign()
    assert second.is_leading
    await asyncio.sleep(0.5)
    assert not second.lost.is_set()
    await second.resign()


async def test_a_leader_that_was_fenced_stands_for_election_again(bus: Bus) -> None:
    fenced, second = candidate(bus), candidate(bus, ELSEWHERE)
    await fenced.acquire()
    await die(fenced)
    await second.acquire()
    assert fenced.is_leading

    waiting = asyncio.ensure_future(fenced.acquire())
    await asyncio.sleep(0.1)
    assert not fenced.is_leading
    await second.resign()

    assert await asyncio.wait_for(waiting, 2) > (0, 0)
    assert fenced.is_leading
    await fenced.resign()


async def test_a_renewal_whose_answer_was_lost_is_recognised(bus: Bus) -> None:
    leadership = candidate(bus, timing=replace(FAST, renew_s=60))
    await leadership.acquire()
    before = leadership._lease
    await leadership._renew()
    leadership._lease = before

    assert await leadership._renew()
    assert leadership._lease > before
    await leadership.resign()


async def test_a_restarted_coordinator_takes_the_lease_of_its_dead_self(bus: Bus) -> None:
    slow = replace(FAST, ttl_s=30)
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        first = candidate(bus, replace(ME, pid=process.pid, started=""), timing=slow)
        old = await first.acquire()
        await die(first)
    finally:
        process.kill()
        await process.wait()

    second = candidate(bus, timing=slow)
    assert await seconds(asyncio.ensure_future(second.acquire()), 2) < 1
    assert second.token > old
    await second.resign()


@pytest.mark.parametrize(
    "other",
    [
        replace(ME, machine_id="m2"),
        replace(ME, boot_id="b2"),
        replace(ME, pid_namespace="pid:[1]"),
    ],
    ids=["machine", "boot", "namespace"],
)
async def test_a_process_that_cannot_be_seen_from_here_is_not_taken_for_dead(
    bus: Bus, other: Holder
) -> None:
    first = candidate(bus, other, timing=replace(FAST, ttl_s=30))
    await first.acquire()
    await die(first)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(candidate(bus, is_alive=lambda holder: False).acquire(), 0.6)


async def test_a_living_leader_on_the_same_machine_keeps_its_lease(bus: Bus) -> None:
    first = candidate(bus)
    await first.acquire()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(candidate(bus).acquire(), 0.6)
    assert not first.lost.is_set()
    await first.resign()


async def test_two_candidates_never_lead_under_one_token(bus: Bus) -> None:
    candidates = [candidate(bus, replace(ME, machine_id=f"m{n}")) for n in range(4)]
    tokens = []
    waiting = {asyncio.ensure_future(one.acquire()): one for one in candidates}
    while waiting:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert len(done) == 1
        leader = waiting.pop(done.pop())
        assert [one for one in candidates if one.is_leading] == [leader]
        tokens.append(leader.token)
        await leader.resign()

    assert tokens == sorted(set(tokens))


async def test_a_short_outage_of_the_bus_costs_no_leadership(
    nats_server: NatsServer, bus: Bus
) -> None:
    leadership = candidate(bus, timing=replace(FAST, ttl_s=8))
    token = await leadership.acquire()
    nats_server.kill()
    nats_server.start()
    await asyncio.sleep(1.5)

    assert leadership.token == token
    assert leadership.is_valid(time.monotonic())
    await leadership.resign()


async def test_while_the_bus_is_down_nobody_may_answer_and_nothing_is_proven(
    nats_server: NatsServer, bus: Bus
) -> None:
    leadership = candidate(bus)
    await leadership.acquire()
    nats_server.kill()
    await asyncio.sleep(FAST.ttl_s + 0.2)
    assert not leadership.is_valid(time.monotonic())
    assert not leadership.lost.is_set()

    nats_server.start()

    await asyncio.wait_for(leadership.lost.wait(), 10)
    assert await asyncio.wait_for(leadership.acquire(), 10)
    await leadership.resign()


async def test_a_candidate_waits_through_an_outage(nats_server: NatsServer, bus: Bus) -> None:
    nats_server.kill()
    waiting = asyncio.ensure_future(candidate(bus).acquire())
    await asyncio.sleep(0.5)
    nats_server.start()

    assert await asyncio.wait_for(waiting, 10)


async def test_a_resignation_that_comes_too_late_counts_as_refused(bus: Bus) -> None:
    """A leader that a read told that it was deposed writes nothing else."""
    deposed, second = candidate(bus), candidate(bus, ELSEWHERE)
    await deposed.acquire()
    await die(deposed)
    await second.acquire()

    await deposed.resign()

    assert deposed.refused == 1
    assert second.is_leading
    assert await second._renew()
    await second.resign()
    assert second.refused == 0


async def test_resigning_while_a_renewal_is_under_way_hands_over_at_once(bus: Bus) -> None:
    leadership = candidate(bus, timing=replace(FAST, ttl_s=60.0, renew_s=60))
    await leadership.acquire()
    before = leadership._lease
    await leadership._renew()
    leadership._lease = before

    await leadership.resign()

    assert leadership.refused == 0
    second = candidate(bus, ELSEWHERE)
    await asyncio.wait_for(second.acquire(), 2)
    await second.resign()


async def test_the_fence_refuses_a_write_of_the_leader_before(bus: Bus) -> None:
    first, second = candidate(bus), candidate(bus, ELSEWHERE)
    old = await first.acquire()
    await first.resign()
    await second.acquire()

    with pytest.raises(Stale):
        await bus.jetstream.publish(
            Publication(
                subjects.state("job.a.b"),
                b"zombie",
                expected=old[1],
                expected_on=subjects.state(subjects.EPOCH_KEY),
            )
        )
    await second.resign()


def test_a_process_is_told_from_its_successor_under_the_same_id() -> None:
    assert is_running(ME)
    assert not is_running(replace(ME, started="1"))
    assert not is_running(replace(ME, pid=2**22 + 1))


async def test_a_candidate_that_is_told_to_look_does_not_wait_for_its_turn(bus: Bus) -> None:
    patient = replace(FAST, poll_s=60.0)
    first, second = candidate(bus), candidate(bus, ELSEWHERE, timing=patient)
    await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    await asyncio.sleep(0.3)
    await first.resign()
    second.look()
    assert await asyncio.wait_for(waiting, 5) > (0, 0)
    await second.resign()


async def test_who_may_not_lead_leaves_the_lease_to_others(bus: Bus) -> None:
    ready = asyncio.Event()
    slow = candidate(bus)
    waiting = asyncio.ensure_future(slow.acquire(ready.is_set))
    other = candidate(bus, ELSEWHERE)
    await asyncio.wait_for(other.acquire(), 5)
    await other.resign()
    assert not waiting.done()
    ready.set()
    await asyncio.wait_for(waiting, 5)
    await slow.resign()


async def test_a_bus_that_lost_its_yard_gets_no_new_one(bus: Bus, tmp_path: Path) -> None:
    url = "nats://secret@10.0.0.5:4222"
    first = candidate(bus, memory=YardMemory(tmp_path, url=url))
    await first.acquire()
    await first.resign()
    await bus.jetstream.purge(subjects.STATE_STREAM)
    moved = YardMemory(tmp_path, url="nats://secret@10.0.0.5:4222,nats://secret@10.0.0.6:4222")

    with pytest.raises(Unavailable, match=f"it had yard {first.yard}.*restore.*remove"):
        moved.require_none()
    again = candidate(bus, memory=moved)
    standing = asyncio.create_task(again.acquire())
    await asyncio.wait({standing}, timeout=3 * FAST.poll_s)
    assert not standing.done()
    assert (
        await bus.jetstream.last(subjects.STATE_STREAM, subjects.state(subjects.YARD_KEY)) is None
    )

    (file,) = tmp_path.glob("*.json")
    assert "secret" not in file.read_text()
    file.unlink()
    await asyncio.wait_for(standing, 5)
    assert again.yard != first.yard
    await again.resign()


async def test_a_standby_remembers_the_yard_too(bus: Bus, tmp_path: Path) -> None:
    leader = candidate(bus)
    await leader.acquire()
    memory = YardMemory(tmp_path, url="nats://10.0.0.5:4222")
    standing = asyncio.create_task(candidate(bus, ELSEWHERE, memory=memory).acquire())
    async with asyncio.timeout(5):
        while not list(tmp_path.glob("yard.json")):
            await asyncio.sleep(0.01)
    standing.cancel()
    await asyncio.gather(standing, return_exceptions=True)
    await leader.resign()
    with pytest.raises(Unavailable, match=leader.yard):
        memory.require_none()


async def test_another_bus_is_another_yards(tmp_path: Path) -> None:
    YardMemory(tmp_path, url="nats://10.0.0.5:4222").keep("abc123")
    YardMemory(tmp_path, url="nats://10.0.0.9:4222").require_none()


async def test_a_folder_that_cannot_be_written_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = YardMemory(tmp_path / "file" / "folder", url="nats://10.0.0.5:4222")
    memory.keep("abc123")
    memory.require_none()
