"""Start times and deadlines: absolute from the acceptance on, kept by whoever leads."""

from typing import Any

import pytest

from gpuyard.errors import InvalidJob
from tests.support.yard import Yard

DAY_S = 86_400.0


@pytest.fixture
def yard() -> Yard:
    yard = Yard()
    yard.node("a", gpus=1)
    return yard


def code(yard: Yard, id: str = "j") -> str:
    verdict = yard.why(id)["verdict"]
    assert verdict is not None
    return verdict["code"]


@pytest.mark.parametrize("written", ["100s", 100, "2026-01-01T01:18:20+01:00"])
def test_a_job_starts_at_its_time_and_not_before(yard: Yard, written: Any) -> None:
    yard.submit("j", not_before=written)
    assert yard.job().spec["not_before"] == yard.job().not_before == "2026-01-01T00:18:20.000Z"
    assert yard.plan() == 0
    assert code(yard) == "not_before"
    assert "not to start before 2026-01-01T00:18:20.000Z" in yard.why()["verdict"]["message"]  # type: ignore[index]
    yard.spend(99)
    assert yard.plan() == 0
    yard.spend(2)
    assert yard.plan() == 1


def test_a_time_far_ahead_outlives_leaders_and_days(yard: Yard) -> None:
    yard.submit("j", not_before="3d")
    for _ in range(2):
        yard.spend(DAY_S + 1)
        assert yard.plan() == 0
        yard.restart()
        yard.spend(1)
        yard.spend(1)
    assert code(yard) == "not_before"
    yard.spend(DAY_S)
    assert yard.plan() == 1


def test_a_retry_does_not_wait_for_a_time_that_is_past(yard: Yard) -> None:
    yard.submit("j", not_before="10s", retries={"max": 1, "when": ["user"], "backoff": 0})
    yard.spend(11)
    yard.plan()
    yard.start()
    yard.end(exit_code=1)
    assert yard.plan() == 1


@pytest.mark.parametrize("ahead_s", [-3600.0, -1.0])
def test_a_clock_that_is_put_right_keeps_no_retry_waiting(yard: Yard, ahead_s: float) -> None:
    """A leader that took over with a wrong clock counted from there how long each has to wait."""
    yard.submit("j", retries={"max": 1, "when": ["user"], "backoff": "10s"})
    yard.plan()
    yard.start()
    yard.end(exit_code=1)
    yard.clock_ahead_s = ahead_s
    yard.restart()
    yard.spend(1)
    yard.clock_ahead_s = 0.0
    for _ in range(14):
        yard.spend(1)
    assert yard.plan() == 1


def test_a_clock_that_is_put_right_keeps_start_and_deadline_true(yard: Yard) -> None:
    yard.submit("starts", not_before="100s")
    yard.submit("ends", deadline="100s", hold=True)
    yard.clock_ahead_s = -3600.0
    yard.restart()
    yard.spend(1)
    assert yard.plan() == 0
    yard.clock_ahead_s = 0.0
    yard.spend(90)
    assert yard.plan() == 0
    assert yard.states("starts", "ends") == ["queued", "queued"]
    yard.spend(10)
    yard.spend(1)
    assert yard.states("ends") == ["failed"] and yard.job("ends").reason == "deadline_exceeded"
    assert yard.plan() == 1


def test_a_job_that_waits_at_its_deadline_ends_there(yard: Yard) -> None:
    yard.submit("j", deadline="100s", hold=True)
    yard.restart()
    yard.tick(99)
    assert yard.states("j") == ["queued"]
    yard.tick(2)
    done = yard.done()
    assert (done["state"], done["reason"]) == ("failed", "deadline_exceeded")
    assert done["message"] == "its deadline, 2026-01-01T00:18:20.000Z, is over"


def test_a_job_that_runs_at_its_deadline_is_stopped_and_not_tried_again(yard: Yard) -> None:
    yard.submit("j", deadline="100s", retries=5)
    yard.plan()
    yard.start()
    yard.tick(101)
    assert yard.states("j") == ["stopping"]
    stop = yard.attempt().stop
    assert stop is not None and stop["reason"] == "deadline_exceeded"
    yard.end(reason="deadline_exceeded", exit_code=143)
    assert yard.done()["reason"] == "deadline_exceeded"


def test_a_deadline_that_passes_while_another_stop_is_under_way_ends_what_would_follow(
    yard: Yard,
) -> None:
    yard.submit("j", deadline="100s", preemptible=True)
    yard.plan()
    yard.start()
    yard.drain("a", after_s=50)
    yard.tick(51)
    yard.tick(50)
    assert yard.attempt().stop["reason"] == "node_drained"  # type: ignore[index]
    yard.end(reason="node_drained", exit_code=143)
    assert yard.states("j") == ["queued"]
    yard.tick(1)
    assert yard.done()["reason"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ({"deadline": "2025-12-31T00:00:00Z"}, "deadline: 2025-12-31T00:00:00.000Z is over; it is"),
        ({"deadline": "1h", "not_before": "2h"}, "is not after not_before"),
    ],
)
def test_times_that_cannot_be_kept_are_refused(
    yard: Yard, times: dict[str, str], text: str
) -> None:
    outcome = yard.submit("j", **times)
    assert text in str(outcome.error)
    with pytest.raises(InvalidJob):
        yard.try_submit(**times)


def test_the_same_text_submitted_later_is_the_same_job(yard: Yard) -> None:
    yard.submit("j", deadline="100s")
    before = yard.job().deadline
    yard.tick(10)
    assert yard.submit("j", deadline="100s").error is None
    assert yard.job().deadline == before
