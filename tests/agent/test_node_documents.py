"""Which documents an agent follows, and which it refuses; what no document names is stopped."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gpuyard import subjects
from tests.support.agent_builders import NODE, TOKEN, YARD, entry, key
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


@in_yard
async def test_a_lost_push_is_repaired_by_the_next_beat(yard: Yard) -> None:
    yard.coordinator.pushes = False
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=2.5)


@in_yard
async def test_a_container_that_no_document_names_any_more_is_stopped_after_two_beats(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await asyncio.sleep(2)
    yard.coordinator.pushes = False
    await yard.coordinator.drop(key())
    await yard.until(lambda: any(a["unexpected"] for a in yard.last_beat["attempts"]), timeout_s=5)
    assert yard.runtime.signals == []
    await yard.until(lambda: yard.runtime.signals, timeout_s=6)
    await yard.until(lambda: yard.runtime.removed == [key()], timeout_s=10)


@in_yard
async def test_without_answers_nothing_unexpected_is_stopped(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.coordinator.answers = False
    await yard.coordinator.drop(key())
    await asyncio.sleep(60)
    assert yard.runtime.signals == []


@in_yard
async def test_a_lower_token_is_refused_even_after_a_restart(yard: Yard) -> None:
    yard.coordinator.token = (TOKEN[0], TOKEN[1] + 1)
    await asyncio.sleep(5)
    assert yard.last_beat["applied"] == {"token": [TOKEN[0], TOKEN[1] + 1], "revision": 1}
    yard.coordinator.token = TOKEN
    await yard.coordinator.assign(entry())
    await asyncio.sleep(5)
    assert yard.runtime.starts == []
    assert yard.agent.tokens_refused > 0
    await yard.restart()
    await asyncio.sleep(5)
    assert yard.runtime.starts == []


@in_yard
async def test_a_document_older_than_the_applied_one_is_refused_and_that_is_told_once(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    with capture_logs() as told:
        await asyncio.sleep(10)
        assert "document refused" not in [line["event"] for line in told]
        yard.coordinator.revision -= 1
        yard.coordinator.entries.clear()
        await asyncio.sleep(10)

    (refused,) = [line for line in told if line["event"] == "document refused"]
    assert refused["why"] == "it is not newer than the applied one"
    assert (refused["order"], refused["applied"]) == ((TOKEN, 1), (TOKEN, 2))
    assert yard.runtime.signals == []


@in_yard
async def test_an_unreadable_document_is_no_empty_set(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.bus.publish(subjects.wanted(NODE), yard.coordinator.document() | {"entries": None})
    await asyncio.sleep(20)
    assert yard.link.replies_refused == 1
    assert yard.runtime.signals == []
    assert [a["unexpected"] for a in yard.last_beat["attempts"]] == [False]


@in_yard
async def test_a_duplicate_name_starts_nothing(yard: Yard) -> None:
    yard.coordinator.status = "duplicate_name"
    yard.coordinator.pushes = False
    await yard.coordinator.assign(entry())
    with capture_logs() as told:
        await asyncio.sleep(10)
        assert yard.runtime.starts == []
        yard.coordinator.status = "ok"
        await asyncio.sleep(10)
    events = [line["event"] for line in told if "name" in line["event"]]
    assert events == ["this node's name is taken", "this node's name is its own again"]


@in_yard
async def test_another_yard_is_refused_while_attempts_of_ours_are_left(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.coordinator.yard = "xyz789"
    yard.coordinator.entries.clear()
    await asyncio.sleep(10)
    assert yard.last_beat["yard"] == YARD
    assert yard.runtime.signals == []


@in_yard
async def test_an_idle_node_joins_another_yard(yard: Yard) -> None:
    yard.coordinator.yard = "xyz789"
    await yard.until(lambda: yard.last_beat["yard"] == "xyz789" and yard.last_beat["applied"])
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts == [key()])
