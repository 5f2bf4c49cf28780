"""Fences in the deciding core: from when they count, what they hold back, how they end."""

import pytest

from gpuyard.errors import RemoteProtocolError
from gpuyard_agent.core.document import parse_document
from gpuyard_agent.core.fence import Fence, absence, fence_of
from gpuyard_agent.core.stepping import next_step, wake_at
from gpuyard_agent.core.steps import Arm, End, Inquire, Launch, Prepare, Signal
from tests.support.agent_builders import (
    NODE,
    WALL,
    attempt,
    document,
    entry,
    exited,
    here,
    intent,
    parsed,
    running,
    stop,
)

FENCE = Fence(fence_s=900, grace_s=30, deadline=900)


def test_a_fence_counts_from_the_sending_of_the_answered_beat() -> None:
    fence = fence_of(entry(fence_s=900), 40, beat_s=2)
    assert fence == Fence(900, 30, 940)
    assert fence_of(entry(), 40, beat_s=2) is None


@pytest.mark.parametrize(
    ("fence_s", "stop_grace", "grace_s"),
    [(900, "30s", 30), (900, "1h", 450), (20, "30s", 10), (8, "30s", 2), (3, "30s", 0)],
)
def test_the_grace_lies_inside_the_fence_and_leaves_a_healthy_node_its_beats(
    fence_s: float, stop_grace: str, grace_s: float
) -> None:
    fence = fence_of(entry(fence_s=fence_s, stop_grace=stop_grace), 0, beat_s=2)
    assert fence is not None
    assert fence.grace_s == grace_s


def test_a_fence_never_goes_back() -> None:
    assert FENCE.renewed(100).deadline == 1000
    assert FENCE.renewed(-50) == FENCE


@pytest.mark.parametrize(
    ("fence_s", "later_s", "worth"),
    [(900, 59, False), (900, 60, True), (3600, 60, True), (10, 0.9, False), (10, 1, True)],
)
def test_the_keeper_is_told_once_a_minute_and_of_short_fences_more_often(
    fence_s: float, later_s: float, worth: bool
) -> None:
    fence = Fence(fence_s, 0, 1000)
    assert fence.is_worth(fence.renewed(1000 - fence_s + later_s)) is worth


def test_the_fence_is_armed_before_anything_is_made() -> None:
    want = entry(fence_s=900, pull="always")
    here_ = here(renewed_at=5.0)
    assert next_step(want, attempt(want), here_, 6) == Arm(Fence(900, 30, 905))
    armed = attempt(want, fence=Fence(900, 30, 905))
    assert next_step(want, armed, here_, 6) == Prepare()
    armed.prepared = True
    assert next_step(want, armed, here_, 6) == Launch()


@pytest.mark.parametrize("fence_s", [None, 900])
def test_nothing_is_started_without_a_living_lease(fence_s: float | None) -> None:
    want = entry(fence_s=fence_s)
    waiting = attempt(want, fence=FENCE if fence_s else None)
    over = here(renewed_at=0.0, lease_until=30.0)
    assert next_step(want, waiting, over, 31) is None
    assert next_step(want, waiting, over, 29) == Launch()


def test_nothing_is_started_whose_fence_is_about_to_be_over() -> None:
    want = entry(fence_s=900)
    assert next_step(want, attempt(want, fence=FENCE, is_inquired=True), here(), 870) is None
    assert next_step(want, attempt(want), here(renewed_at=0.0), 870) is None, "not armed either"


def test_a_running_attempt_is_ended_inside_its_fence() -> None:
    want = entry(fence_s=900)
    mine = running(want, fence=FENCE)
    assert next_step(want, mine, here(), 869) is None
    assert wake_at(want, mine, here(), 869) == 870
    assert next_step(want, mine, here(), 870) == Inquire()
    mine.is_inquired = True
    step = next_step(want, mine, here(wall=WALL + 870), 871)
    assert isinstance(step, Signal)
    assert (step.signal, step.intent.reason, step.intent.grace_s) == ("SIGTERM", "node_lost", 29)
    assert step.intent.message == absence(FENCE, 871)
    assert "871 s (on_partition: stop_after 900s)" in step.intent.message
    mine.intent = step.intent
    assert wake_at(want, mine, here(), 872) == 900
    kill = next_step(want, mine, here(), 900)
    assert isinstance(kill, Signal)
    assert kill.signal == "SIGKILL"


def test_past_the_fence_there_is_no_grace_left() -> None:
    want = entry(fence_s=900)
    step = next_step(want, running(want, fence=FENCE, is_inquired=True), here(), 5000)
    assert isinstance(step, Signal)
    assert step.signal == "SIGKILL"


@pytest.mark.parametrize("adopting", [False, True])
def test_the_fence_binds_what_no_document_names_too(adopting: bool) -> None:
    mine = running(None, fence=FENCE, is_inquired=True)
    step = next_step(None, mine, here(adopting=adopting), 870)
    assert isinstance(step, Signal)
    assert step.intent.reason == "node_lost"


def test_an_order_of_the_yard_comes_before_the_fence() -> None:
    want = entry(fence_s=900, stop=stop("cancelled"))
    step = next_step(want, running(want, fence=FENCE, is_inquired=True), here(), 880)
    assert isinstance(step, Signal)
    assert step.intent.reason == "cancelled"


def test_an_end_past_the_fence_is_judged_only_after_the_keeper_was_asked() -> None:
    want = entry(fence_s=900)
    mine = running(want, fence=FENCE, exit=exited(137, after_s=900))
    assert next_step(want, mine, here(), 5000) == Inquire()
    mine.is_inquired, mine.intent = True, intent("node_lost", at=900)
    step = next_step(want, mine, here(), 5000)
    assert isinstance(step, End)
    assert (step.result.reason, step.result.exit_code) == ("node_lost", 137)


def test_an_end_within_the_fence_needs_no_asking() -> None:
    want = entry(fence_s=900)
    step = next_step(want, running(want, fence=FENCE, exit=exited(3, after_s=1)), here(), 10)
    assert isinstance(step, End)
    assert (step.result.reason, step.result.exit_code) == ("exited", 3)


def test_a_document_may_name_a_fence_or_none() -> None:
    entries = parsed(entry("a", fence_s=90), entry("b")).entries
    assert [want.get("fence_s") for want in entries.values()] == [90, None]


@pytest.mark.parametrize("fence_s", [0, -1, "900s", True, float("inf"), float("nan")])
def test_a_fence_that_cannot_be_meant_spoils_the_document(fence_s: object) -> None:
    body = document(entry(fence_s=fence_s))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError):
        parse_document(body, node=NODE)
