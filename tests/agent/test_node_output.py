"""A job's output on its way from the agent to the bus."""

import asyncio
from typing import Any

import pytest

from gpuyard import subjects
from tests.support.agent_builders import NODE, entry, key
from tests.support.agent_yard import Yard, in_yard

pytestmark = pytest.mark.looptime


@in_yard
async def test_output_is_shipped_before_the_end_is_told(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts)
    yard.runtime.say(key(), b"hello ")
    yard.runtime.say(key(), b"oops", stream=2)
    await asyncio.sleep(0.2)
    yard.runtime.say(key(), b"world")
    yard.runtime.end(key())
    await yard.until(lambda: key() in yard.coordinator.ends)
    chunks = yard.coordinator.logs
    assert b"".join(c["data"] for c in chunks if c["stream"] == 1) == b"hello world"
    assert b"".join(c["data"] for c in chunks if c["stream"] == 2) == b"oops"
    assert [c["n"] for c in chunks] == list(range(len(chunks)))
    assert [c["end"] for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert yard.coordinator.ends[key()]["log_chunks"] == len(chunks)


@in_yard
async def test_while_the_bus_is_away_output_and_end_wait(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.bus.cut()
    yard.runtime.say(key(), b"said in the dark")
    yard.runtime.end(key(), 2)
    await asyncio.sleep(60)
    yard.bus.mend()
    await yard.until(lambda: key() in yard.coordinator.ends, timeout_s=10)
    assert b"".join(c["data"] for c in yard.coordinator.logs) == b"said in the dark"
    assert yard.coordinator.ends[key()]["exit_code"] == 2


@in_yard
async def test_output_goes_on_after_a_restart_without_gap(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts)
    yard.runtime.say(key(), b"one ")
    await asyncio.sleep(1)
    await yard.restart()
    yard.runtime.say(key(), b"two")
    yard.runtime.end(key())
    await yard.until(lambda: key() in yard.coordinator.ends)
    text = bytearray()
    for chunk in yard.coordinator.logs:
        if chunk["offset"] <= len(text):
            text[chunk["offset"] :] = chunk["data"] or text[chunk["offset"] :]
    assert text == b"one two"


@in_yard
async def test_a_gap_in_the_log_is_mended_on_request(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts)
    for word in (b"one ", b"two ", b"three"):
        yard.runtime.say(key(), word)
    answers: list[Any] = []
    await yard.bus.subscribe(
        f"{subjects.COORDINATOR_INBOX}.>", lambda message: answers.append(message.body())
    )
    request = {
        "v": 1,
        "tenant": "team-a",
        "job": "job-1",
        "attempt": 1,
        "stdout": 4,
        "stderr": 0,
        "max_bytes": 1000,
    }
    command = subjects.command(NODE, "logs")
    await yard.bus.publish(command, request, reply=f"{subjects.COORDINATOR_INBOX}.x.1")
    await yard.bus.publish(command, request, reply="_INBOX.a.other.x")
    await yard.bus.publish(
        command, request | {"job": "unknown"}, reply=f"{subjects.COORDINATOR_INBOX}.x.2"
    )
    await yard.until(lambda: len(answers) == 2)
    answers.sort(key=lambda answer: len(answer["pieces"]), reverse=True)
    assert b"".join(piece["data"] for piece in answers[0]["pieces"]) == b"two three"
    assert answers[0]["end"] is False
    assert answers[1]["message"] == "this node does not know the attempt"
