"""What an agent keeps and tells again: through a bus that is away, restarts and stuck removals."""

import asyncio
from functools import partial
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import LogChunk
from gpuyard.model.node import ProbeResult
from gpuyard_agent.core.launch import AttemptKey
from tests.support.agent_builders import GPU, entry, gpu, key
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


def text_of(yard: Yard, stream: int = 1) -> bytes:
    """What a reader makes of the chunks, duplicates dropped by offset; a hole fails."""
    text = bytearray()
    for chunk in yard.coordinator.logs:
        if chunk["stream"] == stream and chunk["data"]:
            assert chunk["offset"] <= len(text)
            text[chunk["offset"] : chunk["offset"] + len(chunk["data"])] = chunk["data"]
    return bytes(text)


def busy(yard: Yard, percent: int, memory_mib: int) -> None:
    """What the node's GPU is seen to do from now on."""
    read = type(yard.prober).sample

    async def sample(own: Any) -> ProbeResult:
        result = await read(yard.prober, own)
        for one in result["samples"]:
            one["utilization_percent"], one["memory_used_mib"] = percent, memory_mib
        return result

    yard.prober.sample = sample  # type: ignore[method-assign]


async def running(yard: Yard, job: str = "job-1", **spec: Any) -> AttemptKey:
    await yard.coordinator.assign(entry(job, gpus=[gpu(GPU)], **spec))
    await yard.until(lambda: "running" in yard.told(key(job)))
    return key(job)


@in_yard
async def test_an_end_is_on_the_disk_although_nobody_can_be_told(yard: Yard) -> None:
    which = await running(yard)
    yard.bus.cut()
    yard.runtime.end(which, 3)
    await asyncio.sleep(1)
    (position,) = [n for n, r in enumerate(yard.journal.records) if r["k"] == "ended"]
    assert yard.journal.synced > position


@pytest.mark.parametrize("wait_s", [0, 10])
async def test_an_agent_killed_in_the_dark_replays_everything_in_order(wait_s: float) -> None:
    """Whether or not the end was written down before it was killed for the second time."""

    async def test(yard: Yard) -> None:
        await _outage_with_two_kills(yard, wait_s)

    await in_yard(test)()


async def _outage_with_two_kills(yard: Yard, wait_s: float) -> None:
    which = await running(yard)
    yard.runtime.say(which, b"one ")
    await asyncio.sleep(1)
    yard.bus.cut()
    yard.runtime.say(which, b"two ")
    await asyncio.sleep(30)
    await yard.restart()
    yard.runtime.say(which, b"three ")
    yard.runtime.say(which, b"oops", stream=2)
    await asyncio.sleep(30)
    yard.runtime.end(which, 4)
    await asyncio.sleep(wait_s)
    await yard.restart()
    await asyncio.sleep(30)
    assert which not in yard.coordinator.ends
    yard.bus.mend()
    await yard.until(lambda: which in yard.coordinator.ends)
    assert yard.coordinator.ends[which]["exit_code"] == 4
    assert (text_of(yard), text_of(yard, 2)) == (b"one two three ", b"oops")
    assert sum(chunk["lost_bytes"] for chunk in yard.coordinator.logs) == 0
    assert [chunk["end"] for chunk in yard.coordinator.logs].count(True) == 1


@in_yard
async def test_an_end_waits_for_output_that_is_still_on_its_way(yard: Yard) -> None:
    which = await running(yard)
    yard.bus.cut()
    said = bytes(range(256)) * 3600  # 900 KiB
    yard.runtime.say(which, said)
    yard.runtime.end(which)
    await asyncio.sleep(20)
    publish = yard.link.publish_chunk

    async def slowly(subject: str, chunk: LogChunk) -> None:
        await asyncio.sleep(1)
        await publish(subject, chunk)

    yard.link.publish_chunk = slowly  # type: ignore[method-assign]
    yard.bus.mend()
    await yard.until(lambda: which in yard.coordinator.ends, timeout_s=300)
    assert text_of(yard) == said
    assert yard.coordinator.logs[-1]["end"]


@in_yard
async def test_a_known_end_waits_for_an_engine_that_has_its_output_and_not_for_ever(
    yard: Yard,
) -> None:
    for job in ("soon", "late"):
        which = await running(yard, job)
        yard.bus.cut()
        yard.runtime.say(which, b"said")
        yard.runtime.end(which, 5)
        await asyncio.sleep(10)
        yard.runtime.down = RuntimeFailure("no engine answers", temporary=True)
        await yard.restart()
        yard.bus.mend()
        await asyncio.sleep(60)
        assert which not in yard.coordinator.ends
        if job == "soon":
            yard.runtime.down = None
        await yard.until(partial(yard.coordinator.ends.get, which), timeout_s=90)
        assert yard.coordinator.ends[which]["exit_code"] == 5
        assert text_of(yard) == b"said"


@in_yard
async def test_output_that_does_not_come_on_holds_no_end_up_for_ever(yard: Yard) -> None:
    which = await running(yard)

    async def never(subject: str, chunk: LogChunk) -> None:
        await asyncio.Event().wait()

    yard.link.publish_chunk = never  # type: ignore[method-assign]
    yard.runtime.say(which, b"lost in the wire")
    yard.runtime.end(which)
    await yard.until(lambda: which in yard.coordinator.ends, timeout_s=30)


@in_yard
async def test_an_end_waits_for_output_that_is_known_to_be_lost_in_the_wire(yard: Yard) -> None:
    which = await running(yard)
    publish = yard.link.publish_chunk

    async def lost(subject: str, chunk: LogChunk) -> None:
        await asyncio.sleep(0)

    yard.link.publish_chunk = lost  # type: ignore[method-assign]
    yard.runtime.say(which, b"said")
    yard.coordinator.stored[str(which)] = 0
    await asyncio.sleep(15)
    yard.link.publish_chunk = publish  # type: ignore[method-assign]
    yard.runtime.end(which)
    await asyncio.sleep(8)
    assert which not in yard.coordinator.ends
    await yard.until(lambda: text_of(yard) == b"said", timeout_s=60)
    yard.coordinator.stored[str(which)] = 2
    await yard.until(lambda: which in yard.coordinator.ends, timeout_s=10)


@in_yard
async def test_means_and_peaks_survive_the_agent(yard: Yard) -> None:
    which = await running(yard)
    busy(yard, 90, 5000)
    for _ in range(60):
        await asyncio.sleep(2)
        await yard.agent.sample()
    busy(yard, 0, 100)
    await yard.restart()
    await yard.until(lambda: yard.agent.memory.attempts[which].container)
    yard.runtime.end(which)
    await yard.until(lambda: which in yard.coordinator.ends)
    usage = yard.coordinator.ends[which]["usage"]
    assert usage is not None
    mean = usage["utilization_mean_percent"]
    assert mean is not None and mean > 80
    assert usage["memory_peak_mib"] == 5000
    assert usage["gpu_seconds"] == pytest.approx(120, abs=5)


@in_yard
async def test_seconds_held_end_with_the_container_and_not_with_its_report(yard: Yard) -> None:
    which = await running(yard)
    await asyncio.sleep(100)
    await yard.kill()
    await asyncio.sleep(50)
    yard.runtime.end(which)
    await asyncio.sleep(300)
    await yard.start()
    await yard.until(lambda: which in yard.coordinator.ends)
    usage = yard.coordinator.ends[which]["usage"]
    assert usage is not None
    assert usage["gpu_seconds"] == pytest.approx(150, abs=5)


@in_yard
async def test_a_removal_that_is_stuck_is_tried_ever_more_slowly_beside_all_else(
    yard: Yard,
) -> None:
    tries: list[float] = []
    remove, loop = yard.runtime.remove, asyncio.get_running_loop()

    async def stuck(which: AttemptKey) -> None:
        if which != key("stuck"):
            return await remove(which)
        tries.append(loop.time())
        raise RuntimeFailure("device or resource busy", temporary=True)

    yard.runtime.remove = stuck  # type: ignore[method-assign]
    which = await running(yard, "stuck")
    yard.runtime.end(which)
    await yard.until(lambda: which in yard.coordinator.ends)
    other = await running(yard, "other")
    yard.runtime.end(other)
    await yard.until(lambda: other in yard.coordinator.ends)
    await asyncio.sleep(1200)
    assert tries[1] - tries[0] < 10
    assert 250 < tries[-1] - tries[-2] < 350
    assert len(tries) < 40
    yard.runtime.remove = remove  # type: ignore[method-assign]
    await asyncio.sleep(350)
    assert which not in yard.runtime.containers
