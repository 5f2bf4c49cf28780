"""Why an attempt ended is told from our will and the engine's facts, in a fixed order."""

import pytest

from gpuyard_agent.core.judge import CLOCK_SLACK_S, judge, signal_message, vanished
from tests.support.agent_builders import exited, intent


@pytest.mark.parametrize("code", [0, 1, 3, 126, 127])
def test_a_code_by_itself_is_an_exit(code: int) -> None:
    result = judge(exited(code), None)
    assert (result.reason, result.exit_code, result.message) == ("exited", code, None)


@pytest.mark.parametrize(
    ("code", "name"), [(137, "9 (SIGKILL)"), (143, "15 (SIGTERM)"), (139, "11 (SIGSEGV)")]
)
def test_a_signal_from_outside_is_named_and_its_cause_not_guessed(code: int, name: str) -> None:
    result = judge(exited(code), None)
    assert (result.reason, result.exit_code) == ("exited", code)
    assert result.message == f"killed by signal {name}, not by the yard; cause unknown"


@pytest.mark.parametrize("code", [0, 128, 200, 255])
def test_other_codes_name_no_signal(code: int) -> None:
    assert signal_message(code) is None


@pytest.mark.parametrize("reason", ["cancelled", "time_limit", "preempted", "yard_stopped"])
@pytest.mark.parametrize("code", [0, 1, 137, 143, None])
def test_our_intent_comes_first(reason: str, code: int | None) -> None:
    facts = {"out_of_memory": True, "engine_restarted": True}
    result = judge(exited(code, after_s=1, **facts), intent(reason))
    assert (result.reason, result.exit_code) == (reason, code)


def test_what_ended_before_we_meant_to_end_it_keeps_its_own_code() -> None:
    assert judge(exited(0, after_s=1), intent(at=2)).reason == "exited"
    assert judge(exited(7, after_s=1), intent(at=2)).exit_code == 7


def test_where_the_clocks_cannot_tell_it_was_us() -> None:
    result = judge(exited(143, after_s=2 - CLOCK_SLACK_S / 2), intent("time_limit", at=2))
    assert result.reason == "time_limit"


def test_memory_kill_needs_flag_and_code() -> None:
    assert judge(exited(137, out_of_memory=True), None).reason == "out_of_memory"
    # The flag alone may speak of a child, the code alone of anybody's SIGKILL.
    assert judge(exited(0, out_of_memory=True), None).reason == "exited"
    assert judge(exited(137), None).reason == "exited"


def test_an_engine_that_went_away_comes_before_a_memory_kill() -> None:
    result = judge(exited(255, engine_restarted=True, out_of_memory=True), None)
    assert result.reason == "runtime_restarted"


def test_a_code_that_nobody_saw_is_a_lost_container() -> None:
    result = judge(exited(None), None)
    assert (result.reason, result.exit_code) == ("runtime_lost", None)


def test_the_engines_own_message_is_kept() -> None:
    assert judge(exited(127, message="exec: no such file"), None).message == "exec: no such file"


def test_a_container_that_outlived_its_grace_says_so() -> None:
    from dataclasses import replace

    killed = replace(intent(grace_s=2), killed_at=2.0)
    result = judge(exited(137, after_s=2), killed)
    assert result.message == "it did not end within 2 s of SIGTERM and was killed"
    assert judge(exited(0, after_s=2), killed).message is None
    at_once = replace(killed, signal="SIGKILL")
    assert judge(exited(137, after_s=2), at_once).message is None


def test_a_vanished_container_is_lost_unless_we_were_ending_it() -> None:
    assert vanished(ended_at="now", intent=None).reason == "runtime_lost"
    assert vanished(ended_at="now", intent=intent("cancelled")).reason == "cancelled"
