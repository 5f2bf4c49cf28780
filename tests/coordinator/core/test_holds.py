"""Hold and release: who is held does not start, whatever room there is and whoever leads."""

import pytest

from gpuyard.errors import Conflict, UnknownThing
from gpuyard_coordinator.core import recovery
from gpuyard_coordinator.core.cluster import Cluster
from tests.support.yard import Yard, queue_by_reason


@pytest.fixture
def yard() -> Yard:
    yard = Yard()
    yard.node("a", gpus=1)
    return yard


def test_a_job_submitted_held_waits_until_it_is_released(yard: Yard) -> None:
    yard.submit("j", hold=True, gpus=1)
    assert yard.plan() == 0
    verdict = yard.why("j")["verdict"]
    assert verdict is not None and verdict["code"] == "held"
    assert "held by mia" in verdict["message"]
    assert queue_by_reason(yard.cluster) == {"held": 1}
    assert yard.release("j").error is None
    assert yard.plan() == 1
    told = yard.events("j")
    assert [(e["kind"], e["data"].get("code")) for e in told[:3]] == [
        ("accepted", None),
        ("queued", "held"),
        ("queued", None),
    ]
    assert told[2]["message"] == "released by mia" and told[2]["actor"] == "mia"


def test_a_held_job_keeps_its_place_by_age(yard: Yard) -> None:
    yard.submit("first", gpus=1)
    yard.submit("second", gpus=1)
    yard.hold("first")
    yard.plan()
    assert yard.states("first", "second") == ["queued", "assigned"]
    yard.submit("third", gpus=1)
    yard.release("first")
    assert yard.cluster.queue.position(yard.job("first")) == 1


def test_a_hold_outlives_its_leader(yard: Yard) -> None:
    yard.submit("j")
    yard.hold("j")
    yard.restart()
    yard.beat("a")
    yard.beat("a")
    assert yard.plan() == 0
    assert yard.job("j").hold is not None
    yard.cancel("j")
    assert yard.states("j") == ["cancelled"]


def test_a_standby_says_held_too(yard: Yard) -> None:
    yard.submit("j", hold=True)
    standby = Cluster("yard01", (1, 1))
    recovery.take_job(standby, yard.store.jobs["default", "j"])
    assert queue_by_reason(standby) == {"held": 1}


def test_holding_twice_tells_it_once(yard: Yard) -> None:
    yard.submit("j")
    yard.hold("j")
    told = len(yard.events("j"))
    assert yard.hold("j").error is None
    assert len(yard.events("j")) == told


def test_only_queued_jobs_are_held_and_released(yard: Yard) -> None:
    yard.submit("j")
    yard.plan()
    for outcome in (yard.hold("j"), yard.release("j")):
        assert isinstance(outcome.error, Conflict)
        assert "only a queued job" in str(outcome.error)
    yard.start("j")
    yard.end("j", exit_code=0)
    outcome = yard.hold("j")
    assert isinstance(outcome.error, Conflict) and "is over" in str(outcome.error)
    assert isinstance(yard.hold("nobody").error, UnknownThing)


def test_a_hold_during_a_backoff_goes_on_with_what_is_left_of_it(yard: Yard) -> None:
    yard.submit("j", retries={"max": 1, "when": ["user"], "backoff": 100})
    yard.plan()
    yard.start("j")
    yard.end("j", exit_code=1)
    yard.hold("j")
    yard.tick(10)
    assert yard.why("j")["verdict"]["code"] == "held"  # type: ignore[index]
    yard.release("j")
    assert yard.why("j")["verdict"]["code"] == "not_before"  # type: ignore[index]
    yard.hold("j")
    yard.tick(200)
    yard.release("j")
    assert yard.why("j")["verdict"]["code"] != "not_before"  # type: ignore[index]


def test_a_dry_run_says_what_it_does_not_wait_for(yard: Yard) -> None:
    yard.submit("first")
    tried = yard.try_submit(hold=True, after=[{"job": "first"}], not_before="100s")
    assert tried["fits"]
    assert tried["notes"] == [
        "it would wait until it is released",
        "it would wait until job first has ended succeeded",
        "it would wait until 2026-01-01T00:18:20.000Z",
    ]
