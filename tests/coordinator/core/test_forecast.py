"""When a job starts: told by its reservation, by time limits, or not at all and why."""

from typing import Any

from gpuyard.views.jobs import JobView
from gpuyard_coordinator import job_list
from tests.support.yard import Yard


def forecast(found: Any) -> tuple[str | None, str | None, str]:
    told = found["forecast"]
    return told["expected_start_at"], told["node"], told["text"]


def view(yard: Yard, id: str = "j") -> JobView:
    return job_list.JobList(yard.cluster).view(yard.job(id), yard.mono)


def full(**spec: Any) -> Yard:
    """One node, which a job holds."""
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("run", gpus=4, stop_grace="10s", **spec)
    yard.plan()
    yard.start("run")
    return yard


def test_the_holder_of_a_reservation_starts_as_expected() -> None:
    yard = full(max_runtime="1h")
    yard.submit("j", gpus=2)
    yard.plan()
    at, node, text = forecast(yard.why())

    assert (at, node) == (yard._at(3600 + 10 + 5), "a")
    assert text == f"node a is reserved for it: it starts about {at} at the latest"
    assert view(yard)["expected_start_at"] == at
    assert view(yard, "run")["expected_start_at"] is None
    yard.spend(1800)
    yard.end("run", exit_code=0)
    yard.plan()
    assert yard.states("j") == ["assigned"]
    assert view(yard)["expected_start_at"] is None


def test_a_job_that_is_only_tried_is_told_where_now_or_when_at_the_earliest() -> None:
    yard = full(max_runtime="1h")
    yard.node("b", gpus=1)
    at = yard._at(3600 + 10 + 5)

    now = yard.try_submit(gpus=1)
    assert (now["fits"], now["node"]) == (True, "b")
    assert forecast(now["why"])[0] == yard.now.at
    tried = yard.try_submit(gpus=2)
    assert not tried["fits"]
    told = f"there is room for it on node a by {at}, unless a job before it takes it"
    assert forecast(tried["why"]) == (at, "a", told)


def test_what_is_reserved_for_others_is_no_room() -> None:
    yard = full(max_runtime="1h")
    yard.submit("big", gpus=3, priority=60)
    yard.plan()

    assert forecast(yard.try_submit(gpus=1)["why"])[0] == yard._at(3600 + 10 + 5)
    # With two more GPUs there is room only once the other is over, of which nobody knows when.
    at, _, text = forecast(yard.try_submit(gpus=2)["why"])
    assert (at, text) == (
        None,
        "when it starts nobody can tell: no end of a job would let it start",
    )


def test_nobody_can_tell_the_end_of_a_job_without_a_time_limit() -> None:
    yard = full()
    yard.submit("j", gpus=2)
    yard.plan()

    assert forecast(yard.why()) == (
        None,
        None,
        "when it starts nobody can tell: jobs without a time limit are in its way on node a: run",
    )
    assert view(yard)["expected_start_at"] is None


def test_what_can_never_start_is_told_so() -> None:
    yard = full(max_runtime="1h")

    assert forecast(yard.try_submit(gpus=5)["why"]) == (
        None,
        None,
        "it cannot start as it is: no known node could ever hold it",
    )


def test_a_limit_is_expected_to_ease_as_the_tenants_own_jobs_end() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 1})
    yard.node("a", gpus=4)
    yard.submit("mine", gpus=1, max_runtime="30m", stop_grace="10s")
    yard.plan()
    yard.start("mine")
    yard.submit("j", gpus=1)
    yard.plan()

    assert forecast(yard.why())[0] == yard._at(1800 + 10 + 5)


def test_a_job_that_waits_for_a_time_has_no_forecast() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1, retries=3)
    yard.plan()
    yard.start()
    yard.end(reason="runtime_lost")

    assert yard.job().not_before is not None
    assert yard.why()["forecast"] is None
