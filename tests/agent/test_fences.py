"""A whole agent, its keeper and its lease, in the loop's own fake time."""

import asyncio

import pytest

from gpuyard_agent.keeper.ledger import Fence as Held
from tests.support.agent_builders import NODE, TOKEN, WALL, entry, key, stop
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime
NAME = f"{NODE}/{key()}"


def now() -> float:
    return asyncio.get_running_loop().time()


def held(yard: Yard) -> Held:
    return yard.keeper.fences[NAME]


def is_fenced(yard: Yard) -> bool | None:
    reports = yard.last_beat["attempts"]
    return reports[0].get("fenced") if reports else None


async def running(yard: Yard, fence_s: float | None = 900, **spec: object) -> None:
    await yard.coordinator.assign(entry(fence_s=fence_s, **spec))  # type: ignore[arg-type]
    await yard.until(lambda: "running" in yard.told(key()))


@in_yard
async def test_a_fence_is_held_before_the_start_and_reported(yard: Yard) -> None:
    at_start: list[tuple[float, tuple[str, str] | None]] = []
    launch = yard.runtime.launch

    async def watched(*args: object) -> object:
        at_start.append((held(yard).deadline, held(yard).reach))
        return await launch(*args)  # type: ignore[arg-type]

    yard.runtime.launch = watched  # type: ignore[assignment, method-assign]
    await running(yard)
    deadline, _ = at_start[0]
    assert deadline == pytest.approx(now() + 900, abs=3)
    await asyncio.sleep(3)
    beat = yard.last_beat
    assert (beat["self_stop"], is_fenced(yard)) == (True, True)
    container = yard.runtime.containers[key()].seen.container_id
    assert held(yard).reach == ("container", container)


@in_yard
async def test_without_a_fence_nothing_is_held_or_claimed(yard: Yard) -> None:
    await running(yard, None)
    await asyncio.sleep(3)
    assert yard.keeper.fences == {}
    assert "fenced" not in yard.last_beat["attempts"][0]


@in_yard
async def test_a_renewed_lease_moves_the_fence_at_most_once_a_minute(yard: Yard) -> None:
    await running(yard)
    await asyncio.sleep(5)
    count = len(yard.keeper.told)
    for _ in range(31):
        await asyncio.sleep(6)
        assert now() + 900 - 65 <= held(yard).deadline <= now() + 900
    assert 2 <= len(yard.keeper.told) - count <= 3
    assert yard.runtime.signals == []


@in_yard
async def test_a_healthy_node_with_a_short_fence_loses_nothing(yard: Yard) -> None:
    await running(yard, 6.5)
    await asyncio.sleep(60)
    assert yard.runtime.signals == []
    assert held(yard).deadline > now()


@in_yard
async def test_the_agent_ends_it_in_time_while_the_bus_is_away(yard: Yard) -> None:
    yard.runtime.obeys = False
    await running(yard, 40, stop_grace="10s")
    yard.bus.cut()
    lost_at = now()
    await yard.until(lambda: yard.runtime.signals)
    assert 23 <= now() - lost_at <= 30, "SIGTERM at the fence less the grace"
    assert held(yard).stopping
    await yard.until(lambda: len(yard.runtime.signals) == 2)
    assert 33 <= now() - lost_at <= 40, "SIGKILL at the fence"
    yard.bus.mend()
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["exit_code"]) == ("node_lost", 137)
    assert "on_partition: stop_after 40s" in (end["message"] or "")


@in_yard
async def test_what_is_to_go_on_goes_on(yard: Yard) -> None:
    await running(yard, None)
    yard.bus.cut()
    await asyncio.sleep(120)
    assert yard.runtime.signals == []
    yard.bus.mend()
    yard.runtime.end(key(), 0)
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "exited"


@in_yard
async def test_answers_of_a_deposed_leader_renew_nothing(yard: Yard) -> None:
    await running(yard, 40)
    yard.coordinator.token = (TOKEN[0], TOKEN[1] - 1)
    await yard.until(lambda: yard.runtime.signals)
    assert yard.agent.tokens_refused > 3


@in_yard
async def test_a_refused_name_renews_nothing(yard: Yard) -> None:
    await running(yard, 40)
    yard.coordinator.status = "duplicate_name"
    await yard.until(lambda: yard.runtime.signals)


@in_yard
async def test_without_a_keeper_it_runs_unfenced_and_the_agent_still_ends_it(yard: Yard) -> None:
    yard.keeper.answers = False
    await running(yard, 40)
    await asyncio.sleep(3)
    assert (yard.last_beat["self_stop"], is_fenced(yard)) == (False, False)
    yard.bus.cut()
    await yard.until(lambda: yard.runtime.signals)


@in_yard
async def test_a_keeper_that_comes_back_is_told_everything(yard: Yard) -> None:
    yard.keeper.answers = False
    await running(yard)
    yard.keeper.answers = True
    yard.agent.fences.keeper_changed()
    await yard.until(lambda: is_fenced(yard), timeout_s=3)
    assert held(yard).reach is not None
    yard.keeper.answers = False
    yard.agent.fences.keeper_changed()
    await yard.until(lambda: is_fenced(yard) is False, timeout_s=3)


@in_yard
async def test_what_the_keeper_cannot_find_is_not_called_fenced(yard: Yard) -> None:
    yard.keeper.finds = False
    await running(yard)
    await asyncio.sleep(3)
    assert is_fenced(yard) is False


@in_yard
async def test_the_end_by_the_keeper_is_reported_as_such(yard: Yard) -> None:
    await running(yard)
    await yard.kill()
    fence = held(yard)
    await asyncio.sleep(fence.deadline - now())
    fence.killed = (now(), WALL + now())
    await asyncio.sleep(0.1)
    yard.runtime.end(key(), 137)
    await asyncio.sleep(5)
    await yard.start()
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["exit_code"]) == ("node_lost", 137)
    assert (end["message"] or "").startswith("ended by the keeper: the node had no word")
    await yard.until(lambda: NAME not in yard.keeper.fences)


@in_yard
async def test_an_end_of_its_own_past_the_fence_stays_its_own(yard: Yard) -> None:
    await running(yard)
    await yard.kill()
    yard.runtime.end(key(), 5)
    await asyncio.sleep(1000)
    await yard.start()
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "exited"


@in_yard
async def test_a_restarted_agent_without_the_bus_keeps_to_the_fence(yard: Yard) -> None:
    await running(yard, 50)
    deadline = held(yard).deadline
    yard.bus.cut()
    await yard.restart()
    await yard.until(lambda: yard.runtime.signals)
    assert now() == pytest.approx(deadline - 25, abs=1)


@in_yard
async def test_a_reply_to_an_old_beat_starts_and_prolongs_nothing(yard: Yard) -> None:
    await running(yard, 200)
    yard.coordinator.answers = False
    await asyncio.sleep(5)
    sent_at = now()
    yard.bus.cut()
    await yard.coordinator.assign(entry("late", fence_s=40))
    reply = {
        "v": 1,
        "yard": yard.coordinator.yard,
        "token": list(TOKEN),
        "lease_s": 30.0,
        "status": "ok",
        "message": None,
        "log_chunks": {},
        "wanted": yard.coordinator.document(),
    }
    await asyncio.sleep(35)
    yard.agent.on_reply(reply, seq=10_000, sent_at=sent_at)
    await asyncio.sleep(3)
    assert yard.runtime.starts == [key()]
    assert held(yard).deadline <= sent_at + 200
    assert f"{NODE}/{key('late')}" not in yard.keeper.fences


@in_yard
async def test_a_push_starts_nothing_while_no_leader_answers(yard: Yard) -> None:
    yard.coordinator.answers = False
    await asyncio.sleep(40)
    await yard.coordinator.assign(entry())
    await asyncio.sleep(20)
    assert yard.runtime.starts == []
    yard.coordinator.answers = True
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=3)


@in_yard
async def test_a_fence_shorter_than_the_lease_puts_a_start_off_until_the_next_answer(
    yard: Yard,
) -> None:
    await yard.until(lambda: bool(yard.coordinator.beats))
    await asyncio.sleep(3)
    yard.coordinator.answers = False
    await asyncio.sleep(20)
    await yard.coordinator.assign(entry(fence_s=10))
    await asyncio.sleep(2)
    assert yard.runtime.starts == []
    yard.coordinator.answers = True
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=5)


@in_yard
async def test_a_start_that_is_late_behind_its_create_is_not_asked_for(yard: Yard) -> None:
    ask = yard.keeper.ask

    async def slow(**question: object) -> object:
        if (question.get("arm") or {}) and not yard.runtime.starts:
            await asyncio.sleep(40)
        return await ask(**question)  # type: ignore[arg-type]

    yard.coordinator.answers = True
    yard.keeper.ask = slow  # type: ignore[assignment, method-assign]
    await yard.coordinator.assign(entry(fence_s=900))
    await asyncio.sleep(1)
    yard.coordinator.answers = False
    await asyncio.sleep(100)
    assert yard.runtime.starts == []
    yard.coordinator.answers = True
    await yard.until(lambda: yard.runtime.starts == [key()])


@in_yard
async def test_a_long_stop_on_a_healthy_node_is_not_cut_short(yard: Yard) -> None:
    yard.runtime.obeys = False
    await running(yard, 60)
    await yard.coordinator.stop(key(), stop("preempted", grace_s=300))
    await yard.until(lambda: yard.runtime.signals)
    await asyncio.sleep(100)
    assert held(yard).deadline > now()
    assert held(yard).stopping


@in_yard
async def test_what_no_document_names_is_kept_alive_while_the_leader_answers(yard: Yard) -> None:
    await running(yard, 60)
    yard.coordinator.entries.clear()
    yard.coordinator.token = (TOKEN[0] + 1, 1)
    yard.coordinator.revision = 1
    await asyncio.sleep(100)
    assert yard.last_beat["adopting"]
    assert yard.runtime.signals == []
    assert held(yard).deadline > now()


@in_yard
async def test_the_keeper_lets_go_of_what_nobody_knows(yard: Yard) -> None:
    other = "node-2/team-a/job-1/1"
    for name in (f"{NODE}/team-a/gone/1", other):
        yard.keeper.fences[name] = Held(now() + 900, 900, 30)
    await running(yard)
    await yard.restart()
    await yard.until(lambda: set(yard.keeper.fences) == {NAME, other}, timeout_s=5)
