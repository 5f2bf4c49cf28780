"""A whole agent between a fake engine and a fake coordinator, in the loop's own fake time."""

import asyncio
from typing import Any

import pytest

from gpuyard import codec, subjects
from gpuyard.messages import Beat
from tests.support.agent_builders import (
    BOOT,
    GPU,
    MACHINE,
    NODE,
    TOKEN,
    YARD,
    entry,
    gpu,
    key,
    stop,
)
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


@in_yard
async def test_the_first_beats_say_who_and_what_is_here(yard: Yard) -> None:
    first = yard.coordinator.beats[0]
    assert (first["node"], first["machine_id"], first["boot_id"]) == (NODE, MACHINE, BOOT)
    assert (first["yard"], first["applied"], first["adopting"]) == (None, None, True)
    await asyncio.sleep(3)
    beat = yard.last_beat
    assert (beat["yard"], beat["adopting"], beat["reasons"]) == (YARD, False, [])
    assert beat["applied"] == {"token": list(TOKEN), "revision": 1}
    assert [g["uuid"] for g in beat["facts"]["gpus"]] == [GPU]
    assert beat["facts"]["docker_version"] == "28.0.0"
    assert beat["facts"]["gpu_injection"] == "toolkit"
    assert [s["uuid"] for s in beat["samples"]] == [GPU]


@in_yard
async def test_beats_keep_their_interval(yard: Yard) -> None:
    await asyncio.sleep(3)
    count = len(yard.coordinator.beats)
    await asyncio.sleep(20)
    assert len(yard.coordinator.beats) == count + 10
    seqs = [beat["seq"] for beat in yard.coordinator.beats]
    assert seqs == sorted(set(seqs))


@in_yard
async def test_that_a_pull_began_is_told_before_the_next_beat_is_due(yard: Yard) -> None:
    yard.runtime.images.clear()
    yard.runtime.pull_s = 1.0
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "preparing" in yard.told(key()))
    began = asyncio.get_running_loop().time()
    await yard.until(lambda: any(told["pull"] for told in yard.last_beat["attempts"]))
    assert asyncio.get_running_loop().time() - began < 1.2
    await yard.until(lambda: "running" in yard.told(key()))


@in_yard
async def test_the_lease_counts_from_the_send_time_of_the_answered_beat(yard: Yard) -> None:
    await asyncio.sleep(2.1)
    now = asyncio.get_running_loop().time
    assert 27.5 < yard.agent.here().lease_until - now() <= 30
    yard.coordinator.answers = False
    await asyncio.sleep(20)
    assert 7 < yard.agent.here().lease_until - now() < 11


@in_yard
async def test_a_job_runs_to_its_end_and_is_removed_after_the_commit(yard: Yard) -> None:
    yard.coordinator.commits = False
    await yard.coordinator.assign(entry(gpus=[gpu()]))
    await yard.until(lambda: "running" in yard.told(key()))
    await asyncio.sleep(10)
    yard.runtime.end(key(), 3)
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["exit_code"], end["container_id"] is not None) == ("exited", 3, True)
    assert end["usage"] is not None
    assert end["usage"]["gpu_seconds"] == pytest.approx(10, abs=0.5)
    await asyncio.sleep(10)
    assert yard.runtime.removed == []
    assert [a["state"] for a in yard.last_beat["attempts"]] == ["ended"]
    yard.coordinator.commits = True
    await yard.until(lambda: yard.runtime.removed == [key()])
    await asyncio.sleep(3)
    assert yard.last_beat["attempts"] == []
    assert yard.told(key()) == [s for s in yard.told(key()) if s]
    assert yard.agent.memory.attempts == {}


@in_yard
async def test_states_are_told_in_order(yard: Yard) -> None:
    yard.runtime.images.clear()
    await yard.coordinator.assign(entry(stop_grace="5s"))
    await yard.until(lambda: "running" in yard.told(key()))
    yard.runtime.obeys = False
    await yard.coordinator.stop(key(), stop(grace_s=5))
    await yard.until(lambda: key() in yard.coordinator.ends)
    told = yard.told(key())
    order = ["accepted", "preparing", "running", "stopping", "ended"]
    assert told == [state for state in order if state in told]
    assert told[-3:] == ["running", "stopping", "ended"]
    assert yard.runtime.prepared == [key()]


@in_yard
async def test_a_dispatch_needs_no_beat_and_no_sync_before_the_create(yard: Yard) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts == [key()])
    assert loop.time() - began < 0.02


@in_yard
async def test_what_a_beat_claims_is_on_the_disk(yard: Yard) -> None:
    claims: list[bool] = []
    publish = yard.bus.publish

    async def watched(subject: str, body: Any, **more: Any) -> None:
        if subject == subjects.beat(NODE):
            claims.append(yard.journal.is_synced)
        await publish(subject, body, **more)

    yard.bus.publish = watched  # type: ignore[method-assign]
    for i in range(5):
        await yard.coordinator.assign(entry(f"job-{i}"))
        await asyncio.sleep(0.5)
        yard.runtime.end(key(f"job-{i}"))
    await asyncio.sleep(5)
    assert len(yard.coordinator.ends) == 5
    assert len(claims) > 10
    assert all(claims)


@in_yard
async def test_a_stop_is_followed_with_its_grace(yard: Yard) -> None:
    loop = asyncio.get_running_loop()
    yard.runtime.obeys = False
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    began = loop.time()
    await yard.coordinator.stop(key(), stop("preempted", grace_s=7))
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert loop.time() - began == pytest.approx(7, abs=0.3)
    assert yard.runtime.signals == [(key(), "SIGTERM"), (key(), "SIGKILL")]
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["exit_code"]) == ("preempted", 137)


@in_yard
async def test_the_time_limit_holds_while_the_bus_is_away(yard: Yard) -> None:
    await yard.coordinator.assign(entry(max_runtime="60s"))
    await yard.until(lambda: "running" in yard.told(key()))
    yard.bus.cut()
    await asyncio.sleep(100)
    assert yard.runtime.signals == [(key(), "SIGTERM")]
    assert key() not in yard.coordinator.ends
    yard.bus.mend()
    await yard.until(lambda: key() in yard.coordinator.ends, timeout_s=1)
    assert yard.coordinator.ends[key()]["reason"] == "time_limit"


@in_yard
async def test_going_down_ends_what_runs_and_tells_it(yard: Yard) -> None:
    await yard.coordinator.assign(entry("a"), entry("b"))
    await yard.until(lambda: "running" in yard.told(key("b")))
    yard.agent.stop_jobs()
    await yard.until(lambda: yard.agent.is_settled)
    assert {end["reason"] for end in yard.coordinator.ends.values()} == {"yard_stopped"}
    assert any(beat["stopping"] for beat in yard.coordinator.beats)
    assert yard.runtime.containers == {}


@in_yard
async def test_beats_pass_the_coordinators_door(yard: Yard) -> None:
    from pydantic import TypeAdapter

    await yard.coordinator.assign(entry(gpus=[gpu()]))
    await yard.until(lambda: "running" in yard.told(key()))
    adapter = TypeAdapter(Beat)
    for beat in yard.coordinator.beats:
        adapter.validate_python(codec.decode(codec.encode(beat)), strict=True)
