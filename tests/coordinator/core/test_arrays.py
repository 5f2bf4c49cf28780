"""Arrays: one submission, many tasks, each a job like any other once it is handed out."""

from typing import Any

import pytest

from gpuyard.errors import Conflict
from gpuyard.model.arrays import MOST_TASKS
from gpuyard_coordinator import job_list, reads
from gpuyard_coordinator.core import arrays, effects
from gpuyard_coordinator.core.explain import Words
from gpuyard_coordinator.core.state import Job
from tests.support.yard import TENANT, Yard


@pytest.fixture
def yard() -> Yard:
    yard = Yard()
    yard.node("a", gpus=4)
    return yard


def live(yard: Yard, id: str = "x") -> list[str]:
    """Numbers of the tasks that are handed out and not over."""
    return sorted(
        (task.id.rpartition("_")[2] for task in arrays.live(yard.cluster, yard.job(id))), key=int
    )


def run(yard: Yard, *numbers: int, exit_code: int = 0) -> None:
    for number in numbers:
        yard.start(f"x_{number}")
        yard.end(f"x_{number}", exit_code=exit_code)
        yard.plan()


def shown(yard: Yard, id: str = "x") -> Any:
    """As `gpuyard job` shows it."""
    found = reads.find(yard.cluster, TENANT, id)
    if isinstance(found, Job):
        return job_list.live_job(yard.cluster, found, Words(yard.cluster).of(found.shape), None)
    return job_list.ended_job(found) if found is not None else None


def test_tasks_start_as_there_is_room_and_are_jobs_of_their_own(yard: Yard) -> None:
    yard.submit("x", array="0-9", gpus=1, after=[], env={"A": "1"})
    assert yard.plan() == 4
    assert [yard.held(f"x_{n}") for n in range(4)] == [[0], [1], [2], [3]]
    task = yard.job("x_2")
    assert task.spec["array"] is None and task.spec["env"] == {"A": "1"}
    view = shown(yard)
    assert view["state"] == "running"
    assert view["array"]["tasks"] == 10
    assert view["array"]["states"] == {"assigned": 4, "queued": 6}
    run(yard, 2)
    assert yard.attempt("x_4").node == "a"
    run(yard, *range(2), *range(3, 10))
    done = yard.done("x")
    assert (done["state"], done["reason"], done["exit_code"]) == ("succeeded", "exited", 0)
    assert done["message"] == "10 succeeded of 10 tasks"
    assert shown(yard)["array"]["states"] == {"succeeded": 10}


def test_no_more_are_under_way_than_may_be_at_once(yard: Yard) -> None:
    yard.submit("x", array="0-9%2", gpus=1)
    yard.plan()
    assert live(yard) == ["0", "1"]
    verdict = yard.why("x")["verdict"]
    assert verdict is not None and verdict["code"] == "waiting_turn"
    assert (
        verdict["message"] == "2 of its tasks are under way, and its array allows no more at once"
    )
    told = reads.why_of(yard.cluster, TENANT, "x_9", yard.now)
    assert told is not None and told["verdict"] == verdict
    run(yard, 1)
    assert live(yard) == ["0", "2"]
    run(yard, 2, 3, 4, 5, 6, 7, 8)
    assert yard.why("x")["verdict"] is None, "none is left that could wait"


def test_tasks_wait_in_the_order_of_their_numbers_and_by_the_age_of_their_array(yard: Yard) -> None:
    yard.submit("x", array="0-20", gpus=4)
    yard.submit("later", gpus=4)
    for number in range(12):
        yard.plan()
        assert yard.held(f"x_{number}") == [0, 1, 2, 3]
        run(yard, number)


def test_a_hundred_thousand_tasks_are_one_document_until_they_start(yard: Yard) -> None:
    yard.submit("x", array=f"0-{MOST_TASKS - 1}", gpus=1)
    assert len(yard.store.jobs) == 1 + arrays.FRESH
    assert len(yard.store.jobs[TENANT, "x"]) < 2048
    assert yard.cluster.queue.waiting[TENANT] == MOST_TASKS
    yard.restart()
    assert yard.cluster.queue.waiting[TENANT] == MOST_TASKS


def test_why_tells_of_the_first_that_waits(yard: Yard) -> None:
    yard.submit("x", array="0-9", gpus=2, priority=60)
    yard.plan()
    assert yard.why("x")["verdict"]["code"] == "insufficient_gpus"  # type: ignore[index]
    assert yard.why("x")["state"] == "running"


def test_the_worst_task_says_how_the_array_ended(yard: Yard) -> None:
    yard.submit("x", array="0-2", gpus=1)
    yard.plan()
    run(yard, 0, exit_code=3)
    run(yard, 1, exit_code=7)
    run(yard, 2)
    done = yard.done("x")
    assert (done["state"], done["reason"], done["exit_code"]) == ("failed", "exited", 7)
    assert done["message"] == "2 failed, 1 succeeded of 3 tasks; task x_1"


def test_retries_are_each_tasks_own(yard: Yard) -> None:
    yard.submit("x", array="0-1", gpus=1, retries={"max": 1, "when": ["user"], "backoff": 0})
    yard.plan()
    run(yard, 0, exit_code=1)
    assert yard.attempt("x_0").number == 2
    run(yard, 0, 1)
    assert yard.done("x")["state"] == "succeeded"


def test_cancelling_an_array_ends_all_of_its_tasks(yard: Yard) -> None:
    yard.submit("x", array="0-999", gpus=1)
    yard.plan()
    yard.start("x_0")
    yard.cancel("x")
    assert live(yard) == ["0", "1", "2", "3"], "those that wait are over at once"
    assert set(yard.states("x_0", "x_1")) == {"stopping"}
    assert shown(yard)["state"] == "stopping"
    assert yard.cluster.queue.waiting[TENANT] == 0
    for number in range(4):
        yard.end(f"x_{number}", reason="cancelled", exit_code=143)
    done = yard.done("x")
    assert (done["state"], done["reason"]) == ("cancelled", "cancelled")
    assert "1000 cancelled of 1000 tasks" in (done["message"] or "")
    record = yard.store.record((TENANT, "x_700"))
    assert record is not None and record["state"] == "cancelled", "it never started"
    assert yard.store.record((TENANT, "x_1000")) is None


def test_a_cancel_of_more_than_one_commit_holds_goes_on_under_the_next_leader(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_KEYS", 20)
    yard.submit("x", array="0-99", node="elsewhere")
    while len(live(yard)) < 50:
        yard.tick()
    yard.cancel("x")
    assert live(yard)
    yard.restart()
    while (TENANT, "x") in yard.cluster.jobs:
        yard.tick()
    assert yard.done("x")["array"]["ended"] == {"cancelled": 100}  # type: ignore[index]


def test_one_task_can_be_cancelled_before_it_is_handed_out(yard: Yard) -> None:
    yard.submit("x", array="0-4%1", gpus=1)
    yard.cancel("x_3")
    yard.cancel("x_1")
    assert yard.states("x_3", "x_1") == ["cancelled", "cancelled"]
    assert yard.job("x").array.ahead == [3]  # type: ignore[union-attr]
    yard.plan()
    run(yard, 0)
    assert live(yard) == ["2"]
    run(yard, 2)
    assert live(yard) == ["4"]
    yard.restart()
    yard.beat("a")
    run(yard, 4)
    assert yard.done("x")["array"]["ended"] == {"succeeded": 3, "cancelled": 2}  # type: ignore[index]


def test_a_task_that_waits_in_its_array_is_shown_as_the_job_it_will_be(yard: Yard) -> None:
    yard.submit("array-x", array="0-999", gpus=1)
    view = shown(yard, "array-x_700")
    assert (view["id"], view["state"], view["queue_position"]) == ("array-x_700", "queued", None)
    assert shown(yard, "arra_700")["id"] == "array-x_700"
    assert shown(yard, "arra")["id"] == "array-x"
    assert shown(yard, "array-x_1000") is None


def test_a_held_array_hands_out_nothing_and_its_tasks_wait(yard: Yard) -> None:
    yard.submit("x", array="0-9", gpus=1, hold=True)
    yard.plan()
    assert live(yard) == []
    yard.release("x")
    yard.plan()
    assert len(live(yard)) == 10
    yard.hold("x")
    run(yard, 0)
    assert yard.states("x_4") == ["queued"]
    assert yard.why("x_4")["verdict"]["code"] == "held"  # type: ignore[index]
    yard.restart()
    yard.beat("a")
    yard.beat("a")
    assert yard.plan() == 0
    yard.release("x")
    assert yard.plan() == 1
    yard.submit("y", array="0-999")
    assert isinstance(yard.hold("y_700").error, Conflict)


def test_after_an_array_means_after_all_of_its_tasks(yard: Yard) -> None:
    yard.submit("x", array="0-1", gpus=1)
    yard.submit("all", after=[{"job": "x"}])
    yard.submit("one", after=[{"job": "x_1"}])
    yard.plan()
    run(yard, 1)
    assert yard.states("one", "all") == ["assigned", "queued"]
    run(yard, 0)
    assert yard.states("all") == ["assigned"]


def test_an_array_waits_for_others_as_one(yard: Yard) -> None:
    yard.submit("first", gpus=1)
    yard.submit("x", array="0-1", gpus=1, after=[{"job": "first"}])
    yard.plan()
    assert live(yard) == []
    assert yard.why("x")["verdict"]["code"] == "dependency"  # type: ignore[index]
    yard.start("first")
    yard.end("first", exit_code=0)
    assert yard.plan() == 2


def test_who_waits_for_a_task_that_never_starts_ends_with_the_array(yard: Yard) -> None:
    yard.submit("x", array="0-999", hold=True)
    yard.submit("w", after=[{"job": "x_700"}])
    assert "no job x_1000" in str(yard.submit("v", after=[{"job": "x_1000"}]).error)
    yard.cancel("x")
    assert yard.done("w")["reason"] == "dependency_failed"
    yard.submit("late", after=[{"job": "x_700", "when": "ended"}])
    assert yard.plan() == 1


def test_the_deadline_of_an_array_ends_its_tasks_and_those_that_never_started(yard: Yard) -> None:
    yard.submit("x", array="0-99", gpus=1, deadline="100s")
    yard.plan()
    yard.start("x_0")
    yard.spend(101)
    for number in range(4):
        yard.end(f"x_{number}", reason="deadline_exceeded", exit_code=143)
    yard.tick()
    done = yard.done("x")
    assert (done["state"], done["reason"]) == ("failed", "deadline_exceeded")
    assert done["array"]["ended"] == {"failed": 100}  # type: ignore[index]


def test_each_task_counts_against_the_limit_of_queued_jobs(yard: Yard) -> None:
    yard.tenant(limits={"queued_jobs": 10})
    assert "11 tasks asked" in str(yard.submit("x", array="0-10", node="elsewhere").error)
    yard.submit("x", array="0-7", node="elsewhere")
    outcome = yard.submit("y", array="0-2", node="elsewhere")
    assert "has 8 queued jobs, its limit is 10; the array has 3 tasks" in str(outcome.error)
    yard.submit("z", array="0-1", node="elsewhere")


def test_an_array_submitted_again_is_the_same_one(yard: Yard) -> None:
    yard.submit("x", array="0-1", gpus=1)
    assert yard.submit("x", array="0-1", gpus=1).error is None
    assert isinstance(yard.submit("x", array="0-2", gpus=1).error, Conflict)
    assert "must be" in str(yard.submit("x_0").error)
    yard.plan()
    run(yard, 0, 1)
    assert yard.submit("x", array="0-1", gpus=1).error is None
    assert not yard.cluster.jobs


def test_after_a_restore_no_task_runs_twice(yard: Yard) -> None:
    yard.submit("x", array="0-9%2", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("x_0")
    yard.restore(backup)
    for _ in range(3):
        yard.beat("a")
    yard.plan()
    assert yard.attempt("x_0").number == 1
    assert yard.job("x").array.next >= 2  # type: ignore[union-attr]
