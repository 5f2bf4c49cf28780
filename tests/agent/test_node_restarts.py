"""What an agent makes of what ran before it: adopted, ended, lost, or of an older boot."""

import asyncio

import pytest

from tests.support.agent_builders import BOOT, entry, key, stop
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


@in_yard
async def test_a_restarted_agent_adopts_what_runs(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.restart()
    await asyncio.sleep(5)
    assert yard.runtime.starts == [key()]
    assert [a["state"] for a in yard.last_beat["attempts"]] == ["running"]
    yard.runtime.end(key(), 4)
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["exit_code"] == 4


@in_yard
async def test_an_end_while_the_agent_was_away_is_reported(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.kill()
    yard.runtime.end(key(), 5)
    await yard.start()
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["exit_code"] == 5


@in_yard
async def test_a_kill_intent_survives_the_restart(yard: Yard) -> None:
    yard.runtime.obeys = False
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.coordinator.stop(key(), stop("cancelled", grace_s=20))
    await yard.until(lambda: yard.runtime.signals)
    await yard.kill()
    await asyncio.sleep(3)
    yard.runtime.end(key(), 143)
    await yard.start()
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "cancelled"


@in_yard
async def test_the_time_limit_is_the_agents_own_and_survives_its_restart(yard: Yard) -> None:
    loop = asyncio.get_running_loop()
    await yard.coordinator.assign(entry(max_runtime="60s"))
    await yard.until(lambda: "running" in yard.told(key()))
    began = loop.time()
    yard.coordinator.answers = False
    await asyncio.sleep(30)
    await yard.restart()
    await yard.until(lambda: yard.runtime.signals, timeout_s=60)
    assert loop.time() - began == pytest.approx(60, abs=1)
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "time_limit"


@in_yard
async def test_a_container_that_vanished_is_lost_and_not_started_again(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.kill()
    yard.runtime.lose(key())
    await yard.start()
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "runtime_lost"
    assert yard.runtime.starts == [key()]


@in_yard
async def test_after_a_reboot_what_ran_is_over_and_nothing_of_the_old_boot_starts(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry("ran"), entry("waits", pull="always"))
    await yard.until(lambda: "running" in yard.told(key("ran")))
    await yard.kill()
    for container in list(yard.runtime.containers):
        yard.runtime.lose(container)
    starts = list(yard.runtime.starts)
    await yard.restart(boot_id="boot-2")
    await yard.coordinator.assign(entry("old", boot_id=BOOT))
    await yard.until(lambda: key("ran") in yard.coordinator.ends)
    await asyncio.sleep(5)
    end = yard.coordinator.ends[key("ran")]
    assert (end["reason"], end["message"]) == ("node_lost", "the node was rebooted while it ran")
    assert yard.runtime.starts == starts
    assert key("old") not in yard.coordinator.states


@in_yard
async def test_without_a_journal_what_runs_is_taken_over_and_what_is_gone_is_lost(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry("runs"), entry("gone"))
    await yard.until(lambda: "running" in yard.told(key("gone")))
    await yard.kill()
    yard.runtime.lose(key("gone"))
    await yard.restart(keeps_journal=False)
    await yard.until(lambda: key("gone") in yard.coordinator.ends)
    assert yard.coordinator.ends[key("gone")]["reason"] == "runtime_lost"
    await asyncio.sleep(5)
    assert yard.runtime.starts.count(key("gone")) == 1
    assert yard.runtime.starts.count(key("runs")) == 1
    assert yard.runtime.signals == []
    assert not yard.last_beat["adopting"]


@in_yard
async def test_while_adopting_an_unnamed_container_is_reported_and_not_stopped(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry("mine"), entry("stray"))
    await yard.until(lambda: "running" in yard.told(key("stray")))
    await yard.kill()
    del yard.coordinator.entries[key("stray")]
    yard.coordinator.revision += 1
    await yard.restart(keeps_journal=False)
    await asyncio.sleep(30)
    beat = yard.last_beat
    assert beat["adopting"]
    assert [r["code"] for r in beat["reasons"]] == ["adopting"]
    assert {a["job"]: a["unexpected"] for a in beat["attempts"]} == {"mine": False, "stray": True}
    assert yard.runtime.signals == []
    await yard.coordinator.assign(entry("stray", stop=stop("cancelled")))
    await yard.until(lambda: key("stray") in yard.coordinator.ends)
    await asyncio.sleep(3)
    assert not yard.last_beat["adopting"]
