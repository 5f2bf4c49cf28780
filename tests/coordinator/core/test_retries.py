"""How long a retry waits, which nodes it keeps off, what a refusal by a node's policy means."""

import itertools

import pytest

from gpuyard_coordinator.core import retries
from tests.support.yard import Yard


def yard_with_retry(*, nodes: str = "a", backoff: object = "10s", times: int = 5) -> Yard:
    yard = Yard()
    for name in nodes:
        yard.node(name, gpus=1)
    yard.submit("j", gpus=1, retries={"max": times, "backoff": backoff})
    yard.plan()
    return yard


def fail(yard: Yard, reason: str = "runtime_lost") -> None:
    yard.plan()
    yard.start()
    yard.end(reason=reason)


def test_a_retry_waits_its_backoff_and_says_until_when() -> None:
    yard = yard_with_retry()
    fail(yard)

    assert yard.plan() == 0
    verdict = yard.why()["verdict"]
    assert verdict is not None and verdict["code"] == "not_before"
    not_before = yard.job().not_before
    assert not_before is not None and not_before in verdict["message"]
    assert "retry 1 of 5 after runtime_lost" in verdict["message"]
    assert yard.events()[-1]["data"] == {"reason": "runtime_lost", "not_before": not_before}
    yard.spend(7)
    assert yard.plan() == 0
    yard.spend(3)

    assert yard.plan() == 1
    assert yard.job().not_before is None


def test_each_further_retry_waits_twice_as_long_up_to_five_minutes() -> None:
    yard = yard_with_retry()
    job = yard.job()

    waits = [retries.backoff_s(job, {"backoff": "10s"}, used) for used in range(8)]

    whole = [10, 20, 40, 80, 160, 300, 300, 300]
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, whole, strict=True))
    assert waits == [retries.backoff_s(job, {"backoff": "10s"}, used) for used in range(8)]
    assert 450 <= retries.backoff_s(job, {"backoff": "600s"}, 3) <= 600


def test_jobs_that_failed_together_come_back_spread() -> None:
    yard = Yard()
    for number in range(20):
        yard.submit(f"j{number}")

    waits = {retries.backoff_s(yard.job(f"j{n}"), {"backoff": "10s"}, 0) for n in range(20)}

    assert len(waits) > 15


def test_a_new_leader_waits_what_is_left_of_a_backoff() -> None:
    yard = yard_with_retry(backoff="100s")
    fail(yard)
    yard.spend(50)
    yard.restart()
    yard.spend(1)
    yard.spend(1)

    assert yard.plan() == 0
    yard.spend(50)
    yard.spend(1)
    assert yard.plan() == 1


def test_a_waiting_retry_counts_as_queued_and_can_be_cancelled() -> None:
    yard = yard_with_retry()
    fail(yard)
    assert yard.cluster.queue.waiting["default"] == 1

    yard.cancel()

    assert yard.states("j") == ["cancelled"]
    assert len(yard.cluster.delays) == 0
    yard.spend(20)
    assert yard.plan() == 0


def test_a_waiting_retry_stays_waiting_when_its_tenant_changes() -> None:
    yard = yard_with_retry()
    fail(yard)
    yard.tenant(models=["*4090"])

    assert yard.plan() == 0
    yard.spend(10)
    assert yard.plan() == 1


def test_a_retry_keeps_off_every_node_that_failed_it_as_far_as_others_are_left() -> None:
    yard = yard_with_retry(nodes="abc", backoff=0)
    for _ in range(5):
        fail(yard)
    yard.plan()

    nodes = [attempt.node for attempt in yard.job().attempts]
    assert nodes[:3] == ["a", "b", "c"]
    assert all(one != other for one, other in itertools.pairwise(nodes))


def test_what_a_job_did_itself_keeps_it_off_no_node() -> None:
    yard = Yard()
    yard.node("a")
    yard.node("b")
    yard.submit("j", retries={"max": 1, "when": ["exit:75"], "backoff": 0})
    yard.plan()
    yard.start()
    yard.end(exit_code=75)
    yard.plan()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "a"]


def test_a_job_takes_the_node_again_that_failed_it_once_the_others_are_gone() -> None:
    yard = yard_with_retry(nodes="ab", backoff=0)
    yard.cordon("b")
    fail(yard)
    assert yard.plan() == 0, "b could run it"
    view = yard.why()
    assert view["nodes"][0]["reasons"][0]["have"] == "failed this job before"
    assert view["verdict"] is not None
    assert "1 failed this job before" in view["verdict"]["message"]
    del yard.agents["b"]

    yard.spend(31)
    yard.spend(1)

    assert yard.plan() == 1
    assert yard.attempt().node == "a"
    yard.restart()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("policy", "the node's policy does not allow mounting /data"),
        ("runtime", "the node's runtime cannot do that: mounting /data at /d needs docker"),
    ],
)
def test_a_refusal_by_one_node_is_tried_on_another_for_free(what: str, told: str) -> None:
    yard = yard_with_retry(nodes="ab", times=0)
    yard.end(reason="invalid", message=told)
    yard.plan()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "b"]
    why = yard.job().attempts[0].next_allowed_because or ""
    assert f"the {what} of a refuses it" in why and why.endswith("not charged")
    yard.end(reason="invalid", message=told)

    assert yard.states("j") == ["failed"]
    assert yard.done()["message"] == told


@pytest.mark.parametrize("told", ["no command specified", None])
def test_what_an_engine_cannot_mean_is_not_tried_on_other_nodes(told: str | None) -> None:
    yard = yard_with_retry(nodes="ab", times=0)
    yard.end(reason="invalid", message=told)

    assert yard.states("j") == ["failed"]
    assert [attempt["next_allowed_because"] for attempt in yard.done()["attempts"]] == [None]


@pytest.mark.parametrize("reason", ["preempted", "node_drained"])
def test_whom_the_yard_stopped_waits_for_nothing(reason: str) -> None:
    yard = yard_with_retry()
    yard.start()
    yard.end(reason=reason)

    assert yard.plan() == 1
