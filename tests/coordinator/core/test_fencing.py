"""When a job may move off a silent node, and what it waits for until then."""

from typing import Any

import pytest

from gpuyard_coordinator.core.fencing import MARGIN_S
from tests.support.yard import Yard

FENCE_S = 60.0
OVER_S = FENCE_S + MARGIN_S


def yard_with(*, retries: int = 1, **spec: Any) -> Yard:
    """A job runs on `a`; `b` would take it."""
    yard = Yard()
    yard.node("a", gpus=1)
    spec = {"on_partition": {"stop_after": FENCE_S}} | spec
    yard.submit("j", gpus=1, retries=retries and {"max": retries, "backoff": 0}, **spec)
    yard.plan()
    yard.start()
    yard.node("b", gpus=1)
    return yard


def silent(yard: Yard, seconds: float) -> None:
    """Node `a` is cut off; `b` goes on beating."""
    yard.mono += seconds
    yard.beat("b")
    yard.tick()


def test_a_fence_that_is_over_on_a_silent_node_lets_the_job_move() -> None:
    yard = yard_with()

    silent(yard, OVER_S - 1)
    assert yard.states("j") == ["running"]
    silent(yard, 1)

    first = yard.job().attempts[0]
    assert (first.reason, yard.states("j")) == ("node_lost", ["queued"])
    assert first.next_allowed_because == (
        "its fence of 1m is over and node a stayed silent; retry 1 of 1 after node_lost"
    )
    yard.plan()
    assert yard.attempt().node == "b"


def test_a_job_without_a_retry_left_ends_with_its_fence() -> None:
    yard = yard_with(retries=0)

    silent(yard, 31)
    silent(yard, OVER_S)

    assert yard.states("j") == ["failed"]
    assert (yard.job().reason, yard.done()["message"]) == (
        "node_lost",
        "node a was silent for longer than the fence of 1m",
    )


@pytest.mark.parametrize(
    "spec",
    [{"on_partition": "keep"}, {"on_partition": None, "retries": 0}],
    ids=["keep", "no retries"],
)
def test_time_alone_never_ends_an_attempt_that_is_to_go_on(spec: dict[str, Any]) -> None:
    yard = yard_with(**spec)

    for _ in range(10):
        silent(yard, 3600)

    assert yard.states("j") == ["running"]
    assert yard.agents["a"].fences == {}


@pytest.mark.parametrize("fault", ["not held", "no keeper"])
def test_time_alone_never_ends_an_attempt_whose_fence_no_keeper_holds(fault: str) -> None:
    yard = yard_with()
    if fault == "no keeper":
        yard.agents["a"].self_stop = False
        yard.beat("a")
    else:
        yard.report(fenced=False)
    assert not yard.attempt().fenced

    for _ in range(10):
        silent(yard, 3600)

    assert yard.states("j") == ["running"]


def test_every_accepted_beat_puts_the_fence_off() -> None:
    yard = yard_with()
    for _ in range(5):
        silent(yard, OVER_S - 1)
        yard.beat("a")

    silent(yard, OVER_S - 1)
    assert yard.states("j") == ["running"]
    silent(yard, 1)
    assert yard.states("j") == ["queued"]


def test_a_new_leader_counts_a_fence_from_its_own_take_over() -> None:
    yard = yard_with()
    silent(yard, OVER_S - 1)
    yard.restart()
    assert yard.attempt().fenced

    silent(yard, OVER_S - 1)
    assert yard.states("j") == ["running"]
    silent(yard, 1)

    assert yard.states("j") == ["queued"]


def test_what_another_machine_does_under_the_name_puts_no_fence_off() -> None:
    yard = yard_with()
    silent(yard, 31)
    old = yard.agents["a"]
    new = yard.agents["a"] = type(old)("a", old.facts, machine_id="machine-new")
    new.samples, new.instance, new.boot_id = old.samples, "instance-new", "boot-new"
    yard.beat("a")

    for _ in range(3):
        silent(yard, 25)
        yard.beat("a")
        yard.tick()
    assert yard.states("j") == ["running"]
    silent(yard, 25)

    assert yard.states("j") == ["queued"]


def test_a_machine_that_lost_its_name_counts_from_the_take_over_of_a_new_leader() -> None:
    yard = yard_with()
    silent(yard, 31)
    old = yard.agents["a"]
    new = yard.agents["a"] = type(old)("a", old.facts, machine_id="machine-new")
    new.samples, new.instance, new.boot_id = old.samples, "instance-new", "boot-new"
    yard.beat("a")
    yard.restart()

    for _ in range(5):
        yard.beat("a")
        silent(yard, 23)
    assert yard.states("j") == ["running"]
    yard.beat("a")
    silent(yard, 5)

    assert yard.states("j") == ["queued"]


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"retries": 0}, "keep"),
        ({"retries": 2}, {"stop_after": "900s"}),
        ({"retries": 2, "on_partition": "keep"}, "keep"),
        ({"on_partition": {"stop_after": "2m"}}, {"stop_after": "120s"}),
    ],
)
def test_the_rule_is_settled_when_the_job_is_accepted(spec: dict[str, Any], kept: Any) -> None:
    yard = Yard()
    yard.submit("j", **spec)

    assert yard.job().spec["on_partition"] == kept


def test_a_fence_shorter_than_a_node_may_be_silent_is_refused_with_the_least() -> None:
    yard = Yard()

    outcome = yard.submit("j", on_partition={"stop_after": 5})

    assert "on_partition.stop_after: stop_after must be at least 6s" in str(outcome.error)
    assert yard.submit("k", on_partition={"stop_after": 6}).error is None


def test_a_job_on_a_lost_node_says_what_would_free_it() -> None:
    yard = yard_with()
    assert yard.why()["verdict"] is None
    silent(yard, 31)

    verdict = yard.why()["verdict"]

    assert verdict is not None
    assert verdict["code"] == "node_lost_waiting"
    heard = yard.core_node("a").last_beat_at
    assert verdict["since"] == heard
    for words in ("the node is back", "its host restarts", "'gpuyard forget a'", "fence of 1m"):
        assert words in verdict["message"]


def test_a_job_without_a_fence_does_not_promise_a_time() -> None:
    yard = yard_with(on_partition="keep")
    silent(yard, 31)

    verdict = yard.why()["verdict"]

    assert verdict is not None and "fence" not in verdict["message"]


def test_many_fences_are_over_in_several_turns() -> None:
    yard = Yard()
    yard.node("a")
    ids = [f"j{number}" for number in range(200)]
    yard.submit_all(ids, on_partition={"stop_after": FENCE_S})
    yard.plan()
    yard.beat("a")
    yard.tick(31)

    yard.tick(OVER_S)
    left = len(yard.cluster.jobs)
    assert 0 < left < 200
    yard.tick(1)

    assert yard.cluster.jobs == {}
