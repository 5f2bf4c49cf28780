"""A whole agent between a fake engine and a fake coordinator, in the loop's own fake time."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpuyard import codec, subjects
from gpuyard.errors import RuntimeFailure
from gpuyard.messages import Beat
from gpuyard_agent.journal import JournalError
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


def last(yard: Yard) -> Beat:
    return yard.coordinator.beats[-1]


@in_yard
async def test_the_first_beats_say_who_and_what_is_here(yard: Yard) -> None:
    first = yard.coordinator.beats[0]
    assert (first["node"], first["machine_id"], first["boot_id"]) == (NODE, MACHINE, BOOT)
    assert (first["yard"], first["applied"], first["adopting"]) == (None, None, True)
    await asyncio.sleep(3)
    beat = last(yard)
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
    assert [a["state"] for a in last(yard)["attempts"]] == ["ended"]
    yard.coordinator.commits = True
    await yard.until(lambda: yard.runtime.removed == [key()])
    await asyncio.sleep(3)
    assert last(yard)["attempts"] == []
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
async def test_a_lost_push_is_repaired_by_the_next_beat(yard: Yard) -> None:
    yard.coordinator.pushes = False
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=2.5)


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
async def test_a_restarted_agent_adopts_what_runs(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await yard.restart()
    await asyncio.sleep(5)
    assert yard.runtime.starts == [key()]
    assert [a["state"] for a in last(yard)["attempts"]] == ["running"]
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
async def test_a_container_that_vanishes_under_the_agent_is_noticed(yard: Yard) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    yard.runtime.lose(key())
    await yard.until(lambda: key() in yard.coordinator.ends, timeout_s=40)
    assert yard.coordinator.ends[key()]["reason"] == "runtime_lost"


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
    assert not last(yard)["adopting"]


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
    beat = last(yard)
    assert beat["adopting"]
    assert [r["code"] for r in beat["reasons"]] == ["adopting"]
    assert {a["job"]: a["unexpected"] for a in beat["attempts"]} == {"mine": False, "stray": True}
    assert yard.runtime.signals == []
    await yard.coordinator.assign(entry("stray", stop=stop("cancelled")))
    await yard.until(lambda: key("stray") in yard.coordinator.ends)
    await asyncio.sleep(3)
    assert not last(yard)["adopting"]


@in_yard
async def test_a_container_that_no_document_names_any_more_is_stopped_after_two_beats(
    yard: Yard,
) -> None:
    await yard.coordinator.assign(entry())
    await yard.until(lambda: "running" in yard.told(key()))
    await asyncio.sleep(2)
    yard.coordinator.pushes = False
    await yard.coordinator.drop(key())
    await yard.until(lambda: any(a["unexpected"] for a in last(yard)["attempts"]), timeout_s=5)
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
    assert last(yard)["applied"] == {"token": [TOKEN[0], TOKEN[1] + 1], "revision": 1}
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
    assert [a["unexpected"] for a in last(yard)["attempts"]] == [False]


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
    assert last(yard)["yard"] == YARD
    assert yard.runtime.signals == []


@in_yard
async def test_an_idle_node_joins_another_yard(yard: Yard) -> None:
    yard.coordinator.yard = "xyz789"
    await yard.until(lambda: last(yard)["yard"] == "xyz789" and last(yard)["applied"])
    await yard.coordinator.assign(entry())
    await yard.until(lambda: yard.runtime.starts == [key()])


@in_yard
async def test_an_engine_that_is_away_is_a_reason_and_starts_wait(yard: Yard) -> None:
    await yard.kill()
    yard.runtime.down = RuntimeFailure("engine away", temporary=True)
    await yard.coordinator.assign(entry())
    await yard.start()
    await yard.until(lambda: last(yard)["reasons"])
    assert last(yard)["reasons"][0]["code"] == "docker_unreachable"
    assert last(yard)["applied"] != {"token": list(TOKEN), "revision": yard.coordinator.revision}
    yard.runtime.down = None
    await yard.until(lambda: yard.runtime.starts == [key()], timeout_s=10)
    await yard.until(lambda: not last(yard)["reasons"])


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
async def test_a_gpu_that_is_gone_is_a_stale_inventory(yard: Yard) -> None:
    await yard.coordinator.assign(entry(gpus=[gpu("GPU-gone")]))
    await yard.until(lambda: key() in yard.coordinator.ends)
    end = yard.coordinator.ends[key()]
    assert (end["reason"], end["container_id"], end["started_at"]) == ("runtime_error", None, None)
    assert yard.runtime.starts == []


@in_yard
async def test_a_change_of_the_gpus_is_a_new_generation_and_goes_out_at_once(yard: Yard) -> None:
    await asyncio.sleep(3)
    before = last(yard)["generation"]
    yard.prober.uuids.append("GPU-new")
    await yard.agent.sample()
    await asyncio.sleep(0.05)
    assert last(yard)["generation"] == before + 1
    await yard.restart()
    await asyncio.sleep(3)
    assert last(yard)["generation"] == before + 1


@in_yard
async def test_a_driver_that_cannot_be_read_is_a_reason(yard: Yard) -> None:
    yard.prober.error = ("driver_mismatch", "Driver/library version mismatch")
    await yard.agent.sample()
    await asyncio.sleep(2.1)
    assert [r["code"] for r in last(yard)["reasons"]] == ["driver_mismatch"]


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
async def test_a_full_disk_starts_nothing_and_says_so(yard: Yard) -> None:
    def refuse(records: object) -> None:
        raise JournalError("cannot write journal: No space left on device")

    yard.journal.append = refuse  # type: ignore[method-assign]
    await yard.coordinator.assign(entry())
    await asyncio.sleep(3)
    assert yard.runtime.starts == []
    assert [r["code"] for r in last(yard)["reasons"]] == ["disk_low"]
    del yard.journal.append
    await yard.until(lambda: yard.runtime.starts == [key()])


@in_yard
async def test_beats_pass_the_coordinators_door(yard: Yard) -> None:
    from pydantic import TypeAdapter

    await yard.coordinator.assign(entry(gpus=[gpu()]))
    await yard.until(lambda: "running" in yard.told(key()))
    adapter = TypeAdapter(Beat)
    for beat in yard.coordinator.beats:
        adapter.validate_python(codec.decode(codec.encode(beat)), strict=True)
