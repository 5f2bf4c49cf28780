"""An engine, a GPU, a driver or a disk that fails under an agent: told, and survived."""

import asyncio

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.journal import JournalError
from tests.support.agent_builders import TOKEN, entry, gpu, key, stop
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


@in_yard
async def test_an_engine_that_is_away_is_a_reason_and_starts_wait(yard: Yard) -> None:
    await yard.kill()
    yard.runtime.down = RuntimeFailure("engine away", temporary=True)
    await yard.coordinator.assign(entry())
    await yard.start()
    await yard.until(lambda: yard.last_beat["reasons"])
    assert yard.last_beat["reasons"][0]["code"] == "docker_unreachable"
    assert yard.last_beat["applied"] != {
        "token": list(TOKEN),
        "revision": yard.coordinator.revision,
    }
    yard.runtime.down = None
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=10)
    await yard.until(lambda: not yard.last_beat["reasons"])


@in_yard
async def test_an_engine_that_goes_away_is_no_end(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.runtime.down = RuntimeFailure("engine away", temporary=True)
    await asyncio.sleep(90)
    assert key() not in yard.coordinator.ends
    yard.runtime.down = None
    yard.runtime.end(key(), 0)
    await yard.until(lambda: key() in yard.coordinator.ends, timeout_s=40)
    assert yard.coordinator.ends[key()]["reason"] == "exited"


@in_yard
async def test_a_signal_that_the_engine_did_not_take_is_sent_again(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.runtime.down = RuntimeFailure("engine away", temporary=True)
    await yard.coordinator.stop(key(), stop())
    await asyncio.sleep(5)
    yard.runtime.down = None
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "cancelled"


@in_yard
async def test_a_refused_start_ends_with_its_reason(yard: Yard) -> None:
    yard.runtime.refusal = RuntimeFailure("disk full", temporary=False, reason="no_space")
    await yard.coordinator.assign(entry())
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["message"], end["exit_code"]) == ("no_space", "disk full", None)


@in_yard
async def test_a_container_that_vanishes_under_the_agent_is_noticed(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.runtime.lose(key())
    await yard.until(lambda: key() in yard.coordinator.ends, timeout_s=40)
    assert yard.coordinator.ends[key()]["reason"] == "runtime_lost"


@in_yard
async def test_a_gpu_that_is_gone_is_a_stale_inventory(yard: Yard) -> None:
    await yard.coordinator.assign(entry(gpus=[gpu("GPU-gone")]))
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["container_id"], end["started_at"]) == ("runtime_error", None, None)
    assert yard.runtime.starts == []


@in_yard
async def test_a_change_of_the_gpus_is_a_new_generation_and_goes_out_at_once(yard: Yard) -> None:
    await asyncio.sleep(3)
    before = yard.last_beat["generation"]
    yard.prober.uuids.append("GPU-new")
    await yard.agent.sample()
    await asyncio.sleep(0.05)
    assert yard.last_beat["generation"] == before + 1
    await yard.restart()
    await asyncio.sleep(3)
    assert yard.last_beat["generation"] == before + 1


@in_yard
async def test_a_driver_that_cannot_be_read_is_a_reason(yard: Yard) -> None:
    yard.prober.error = ("driver_mismatch", "Driver/library version mismatch")
    await yard.agent.sample()
    await asyncio.sleep(2.1)
    assert [r["code"] for r in yard.last_beat["reasons"]] == ["driver_mismatch"]


@in_yard
async def test_a_full_disk_starts_nothing_and_says_so(yard: Yard) -> None:
    def refuse(records: object) -> None:
        raise JournalError("cannot write journal: No space left on device")

    yard.journal.append = refuse  # type: ignore[method-assign]
    await yard.coordinator.assign(entry())
    await asyncio.sleep(3)
    assert yard.runtime.starts == []
    assert [r["code"] for r in yard.last_beat["reasons"]] == ["disk_low"]
    del yard.journal.append
    await yard.until(lambda: yard.runtime.starts == [key()])
