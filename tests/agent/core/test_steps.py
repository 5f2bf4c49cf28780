"""One attempt, one step: each rule of `next_step` by itself."""

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import STALE_INVENTORY
from gpuyard_agent.core.containers import Status
from gpuyard_agent.core.judge import REBOOTED
from gpuyard_agent.core.policy import NodePolicy
from gpuyard_agent.core.stepping import ABSENCES, GIVE_UP_S, after_failure, next_step, wake_at
from gpuyard_agent.core.steps import (
    AbandonPrepare,
    Accept,
    End,
    Forget,
    Launch,
    Prepare,
    Remove,
    Signal,
)
from gpuyard_agent.core.stopping import CONFIRMATIONS, KILL_AGAIN_S
from tests.support.agent_builders import (
    GPU,
    attempt,
    ended,
    entry,
    exited,
    gpu,
    here,
    intent,
    running,
    seen,
    stop,
)


def test_an_attempt_is_accepted_then_launched() -> None:
    want = entry()
    assert next_step(want, attempt(want, accepted=False), here(), 0) == Accept()
    assert next_step(want, attempt(want), here(), 0) == Launch()


def test_one_step_at_a_time() -> None:
    want = entry()
    for busy in ("prepare", "launch", "remove"):
        assert next_step(want, attempt(want, busy=busy), here(), 0) is None


def test_nothing_starts_before_the_first_listing() -> None:
    want = entry()
    assert next_step(want, attempt(want), here(listed=False), 0) is None


def test_nothing_starts_for_another_machine_or_boot() -> None:
    for want in (entry(boot_id="boot-0"), entry(machine_id="machine-0")):
        assert next_step(want, attempt(want, accepted=False), here(), 0) is None


def test_what_ran_in_an_earlier_boot_is_lost_and_never_started_again() -> None:
    want = entry(boot_id="boot-0")
    step = next_step(want, attempt(want, launched="boot-0"), here(), 0)
    assert isinstance(step, End)
    assert (step.result.reason, step.result.message) == ("node_lost", REBOOTED)


@pytest.mark.parametrize("changes", [{"gpus": frozenset()}, {"generation": 2}])
def test_a_stale_inventory_is_refused_before_anything_starts(changes: dict[str, object]) -> None:
    want = entry(gpus=[gpu()])
    step = next_step(want, attempt(want), here(**changes), 0)
    assert isinstance(step, End)
    assert (step.result.reason, step.result.exit_code) == ("runtime_error", None)
    assert step.result.message is not None
    assert step.result.message.startswith(STALE_INVENTORY)


def test_a_job_without_gpus_does_not_mind_the_generation() -> None:
    assert next_step(entry(), attempt(entry()), here(generation=2), 0) == Launch()


def test_an_attempt_that_was_started_is_not_refused_for_a_later_inventory() -> None:
    want = entry(gpus=[gpu()])
    created = attempt(want, launched="boot-1", container=seen(status=Status.CREATED))
    assert next_step(want, created, here(gpus=frozenset()), 0) == Launch()


def test_the_nodes_policy_refuses() -> None:
    want = entry(mounts=[{"source": "/var/run/docker.sock", "target": "/s", "read_only": True}])
    step = next_step(want, attempt(want), here(), 0)
    assert isinstance(step, End)
    assert step.result.reason == "invalid"
    other = here(policy=NodePolicy(images=("nvcr.io/*",)))
    assert isinstance(next_step(entry(), attempt(entry()), other, 0), End)


def test_a_missing_image_is_prepared_and_then_launched() -> None:
    want = entry()
    missing = attempt(want, image_missing=True)
    assert next_step(want, missing, here(), 0) == Prepare()
    assert next_step(want, attempt(want, prepared=True), here(), 0) == Launch()


def test_pull_always_prepares_first() -> None:
    want = entry(pull="always")
    assert next_step(want, attempt(want), here(), 0) == Prepare()


def test_a_start_that_left_no_container_is_lost_after_two_listings() -> None:
    want = entry()
    once = attempt(want, launched="boot-1", absences=1)
    assert next_step(want, once, here(), 0) is None
    twice = attempt(want, launched="boot-1", absences=ABSENCES)
    step = next_step(want, twice, here(), 0)
    assert isinstance(step, End)
    assert step.result.reason == "runtime_lost"


def test_a_running_container_needs_nothing() -> None:
    want = entry()
    assert next_step(want, running(want), here(), 5) is None


@pytest.mark.parametrize("reason", ["cancelled", "preempted", "node_drained", "yard_stopped"])
def test_a_stop_order_is_followed(reason: str) -> None:
    want = entry(stop=stop(reason, grace_s=7))
    step = next_step(want, running(want), here(), 5)
    assert isinstance(step, Signal)
    assert (step.signal, step.intent.reason, step.intent.grace_s) == ("SIGTERM", reason, 7)


def test_after_the_grace_comes_sigkill_and_then_again() -> None:
    want = entry(stop=stop(grace_s=7))
    stopping = running(want, intent=intent(at=5, grace_s=7))
    assert next_step(want, stopping, here(), 11.9) is None
    assert wake_at(want, stopping, here(), 6) == 12
    step = next_step(want, stopping, here(), 12)
    assert isinstance(step, Signal)
    assert (step.signal, step.intent.killed_at, step.intent.at) == ("SIGKILL", 12, 5)
    killed = running(want, intent=step.intent)
    assert next_step(want, killed, here(), 12 + KILL_AGAIN_S - 0.1) is None
    assert isinstance(next_step(want, killed, here(), 12 + KILL_AGAIN_S), Signal)


def test_an_order_to_kill_cuts_the_grace_short() -> None:
    want = entry(stop=stop(signal="SIGKILL", grace_s=0))
    step = next_step(want, running(want, intent=intent(at=5)), here(), 6)
    assert isinstance(step, Signal)
    assert (step.signal, step.intent.reason) == ("SIGKILL", "cancelled")


def test_a_known_end_comes_before_a_signal_that_is_due() -> None:
    want = entry(stop=stop())
    step = next_step(want, running(want, exit=exited(0)), here(), 5)
    assert isinstance(step, End)
    assert step.result.reason == "exited"


def test_the_time_limit_counts_from_the_start() -> None:
    want = entry(max_runtime="60s", stop_grace="5s")
    assert next_step(want, running(want, at=100), here(), 159.9) is None
    assert wake_at(want, running(want, at=100), here(), 120) == 160
    step = next_step(want, running(want, at=100), here(), 160)
    assert isinstance(step, Signal)
    assert (step.intent.reason, step.intent.grace_s, step.signal) == ("time_limit", 5, "SIGTERM")


def test_a_stop_before_the_start_ends_it_without_one() -> None:
    want = entry(stop=stop("preempted"))
    assert next_step(want, attempt(want, accepted=False), here(), 0) == Accept()
    step = next_step(want, attempt(want), here(), 0)
    assert isinstance(step, End)
    assert (step.result.reason, step.result.exit_code) == ("preempted", None)


def test_a_preparation_is_abandoned_for_a_stop_or_a_lost_entry() -> None:
    preparing = attempt(entry(), busy="prepare")
    assert next_step(entry(), preparing, here(), 0) is None
    assert next_step(entry(stop=stop()), preparing, here(), 0) == AbandonPrepare()
    assert next_step(None, preparing, here(), 0) == AbandonPrepare()
    assert next_step(None, preparing, here(adopting=True), 0) is None, "it may be named yet"
    assert next_step(entry(), preparing, here(stopping=True), 0) == AbandonPrepare()


def test_an_end_stays_until_its_entry_is_gone() -> None:
    over = running(entry(), result=ended(), container=seen(status=Status.EXITED))
    assert next_step(entry(), over, here(), 0) is None
    assert next_step(None, over, here(), 0) == Remove()
    unstarted = attempt(result=ended("runtime_error", None))
    assert next_step(None, unstarted, here(), 0) == Forget()


def test_nothing_is_removed_while_adopting() -> None:
    over = running(result=ended(), container=seen(status=Status.EXITED))
    assert next_step(None, over, here(adopting=True), 0) is None


def test_an_accepted_attempt_that_never_started_is_forgotten_with_its_entry() -> None:
    assert next_step(None, attempt(), here(), 0) == Forget()


def test_an_unexpected_container_is_stopped_only_after_two_confirmations() -> None:
    stray = running(accepted=False, launched=None, confirmations=CONFIRMATIONS - 1)
    assert next_step(None, stray, here(), 0) is None
    stray.confirmations = CONFIRMATIONS
    step = next_step(None, stray, here(), 0)
    assert isinstance(step, Signal)
    assert step.intent.message == "no wanted document names it"
    assert next_step(None, stray, here(adopting=True), 0) is None


def test_an_unexpected_container_that_ended_is_removed_only_after_two_confirmations() -> None:
    stray = running(accepted=False, result=ended(), container=seen(status=Status.EXITED))
    assert next_step(None, stray, here(), 0) is None
    stray.confirmations = CONFIRMATIONS
    assert next_step(None, stray, here(), 0) == Remove()


def test_a_found_container_is_taken_over_when_a_document_names_it() -> None:
    assert next_step(entry(), running(entry(), accepted=False), here(), 0) == Accept()


def test_a_container_that_comes_back_after_its_end_is_killed() -> None:
    back = running(entry(), result=ended("runtime_lost", None))
    step = next_step(entry(), back, here(), 5)
    assert isinstance(step, Signal)
    assert (step.signal, step.intent.reason) == ("SIGKILL", "runtime_lost")


def test_going_down_stops_what_runs_and_starts_nothing() -> None:
    want = entry(stop_grace="3s")
    step = next_step(want, running(want), here(stopping=True), 0)
    assert isinstance(step, Signal)
    assert (step.intent.reason, step.intent.grace_s) == ("yard_stopped", 3)
    assert next_step(want, attempt(want), here(stopping=True), 0) is None
    assert next_step(want, attempt(want, accepted=False), here(stopping=True), 0) is None


def failure(reason: str, *, temporary: bool) -> RuntimeFailure:
    return RuntimeFailure("refused", temporary=temporary, reason=reason)


@pytest.mark.parametrize("temporary", [False, True])
def test_a_launch_without_image_asks_for_it_and_once_more_where_it_was_removed(
    temporary: bool,
) -> None:
    made = attempt(entry())
    fault = failure("image_not_found", temporary=temporary)
    for _ in range(2):
        assert after_failure(made, "launch", fault, here(), 0) is None
        assert next_step(made.entry, made, here(), 0) == Prepare()
        made.prepared, made.image_missing = True, False
    end = after_failure(made, "launch", fault, here(), 0)
    assert end is not None
    assert end.result.reason == "image_not_found"


def test_pull_never_ends_without_image() -> None:
    fault = failure("image_not_found", temporary=False)
    end = after_failure(attempt(entry(pull="never")), "launch", fault, here(), 0)
    assert end is not None
    assert end.result.reason == "image_not_found"


def test_temporary_failures_are_tried_again_ever_more_slowly_and_given_up() -> None:
    made = attempt(entry())
    fault = failure("runtime_error", temporary=True)
    assert after_failure(made, "launch", fault, here(), 10) is None
    assert made.retry_at == 11
    assert next_step(entry(), made, here(), 10.5) is None
    assert wake_at(entry(), made, here(), 10.5) == 11
    assert next_step(entry(), made, here(), 11) == Launch()
    assert after_failure(made, "launch", fault, here(), 30) is None
    assert made.retry_at == 50
    end = after_failure(made, "launch", fault, here(), 10 + GIVE_UP_S)
    assert end is not None
    assert (end.result.reason, end.result.message) == ("runtime_error", "refused")


def test_a_failure_for_good_is_an_end() -> None:
    fault = failure("no_space", temporary=False)
    end = after_failure(attempt(entry()), "prepare", fault, here(), 0)
    assert end is not None
    assert (end.result.reason, end.result.message) == ("no_space", "busybox: refused")


def test_a_grant_that_is_here_starts() -> None:
    want = entry(gpus=[gpu(GPU)])
    assert next_step(want, attempt(want), here(), 0) == Launch()
