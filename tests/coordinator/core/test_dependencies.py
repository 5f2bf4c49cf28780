"""Dependencies: a job waits for others' ends, is woken by them, and ends with those it needed."""

import pytest

from gpuyard_coordinator.core import effects
from tests.support.yard import Yard


@pytest.fixture
def yard() -> Yard:
    yard = Yard()
    yard.node("a", gpus=4)
    return yard


def run(yard: Yard, id: str, exit_code: int = 0) -> None:
    """The job starts and ends with this code."""
    yard.plan()
    yard.start(id)
    yard.end(id, exit_code=exit_code)


def after(*ids: str, when: str = "succeeded") -> list[dict[str, str]]:
    return [{"job": id, "when": when} for id in ids]


def test_a_job_starts_once_all_that_it_waits_for_have_succeeded(yard: Yard) -> None:
    yard.submit("one")
    yard.submit("two")
    yard.submit("last", after=after("one", "two"))
    yard.plan()
    verdict = yard.why("last")["verdict"]
    assert verdict is not None and verdict["code"] == "dependency"
    assert "job one to end succeeded (it is assigned)" in verdict["message"]
    run(yard, "one")
    assert yard.states("last") == ["queued"]
    assert [awaited.job for awaited in yard.job("last").after] == ["two"]
    run(yard, "two")
    yard.plan()
    assert yard.states("last") == ["assigned"]


@pytest.mark.parametrize(
    ("when", "exit_code", "starts"),
    [
        ("succeeded", 0, True),
        ("succeeded", 1, False),
        ("failed", 1, True),
        ("failed", 0, False),
        ("ended", 0, True),
        ("ended", 1, True),
    ],
)
@pytest.mark.parametrize("is_over", [True, False], ids=["ended before", "ends later"])
def test_what_may_follow_which_end(
    yard: Yard, when: str, exit_code: int, starts: bool, is_over: bool
) -> None:
    yard.submit("one")
    if is_over:
        run(yard, "one", exit_code)
    yard.submit("two", after=after("one", when=when))
    if not is_over:
        run(yard, "one", exit_code)
    if starts:
        assert yard.plan() == 1
        return
    done = yard.done("two")
    assert (done["state"], done["reason"]) == ("failed", "dependency_failed")
    how = "failed" if exit_code else "succeeded"
    assert done["message"] == f"job one is {how}, and it was to end {when} first"


def test_the_failure_of_the_first_ends_the_whole_chain(yard: Yard) -> None:
    yard.submit("j0")
    for number in range(1, 5):
        yard.submit(f"j{number}", after=after(f"j{number - 1}"))
    yard.submit("clean-up", after=after("j4", when="failed"))
    yard.cancel("j0")
    assert yard.states("j0", "j1") == ["cancelled", "failed"] or yard.plan() == 0
    assert [yard.done(f"j{n}")["reason"] for n in range(1, 5)] == ["dependency_failed"] * 4
    assert yard.plan() == 1, "what waits for a failure has one"


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("nobody", "after[0].job: no job nobody in tenant default"),
        ("j", "after[0].job: job j cannot wait for its own end"),
        ("No Id", "after[0].job: 'No Id' is not a job's id"),
        ("refused", "after[0].job: no job refused"),
        ("theirs", "after[0].job: no job theirs"),
    ],
)
def test_what_nobody_can_wait_for_is_refused_by_name(yard: Yard, named: str, text: str) -> None:
    yard.submit("refused", image="")
    yard.submit("theirs", tenant="team-b")
    outcome = yard.submit("j", after=after(named))
    assert text in str(outcome.error)
    assert yard.done("j")["reason"] == "invalid"


def test_more_dependants_than_one_commit_holds_are_woken_over_several_turns(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_KEYS", 20)
    count = 50
    yard.submit("one")
    for number in range(count):
        yard.submit(f"w{number}", after=after("one"), node="elsewhere")
    run(yard, "one")
    assert 0 < len(yard.cluster.dependants["default", "one"]) < count
    yard.restart()  # in the middle of it
    while yard.cluster.ended_awaited:
        yard.tick()
    assert not yard.cluster.dependants
    assert len(yard.cluster.queue) == count


def test_a_new_leader_knows_who_waits_and_what_ended_meanwhile(yard: Yard) -> None:
    yard.submit("one")
    yard.submit("two", after=after("one"))
    yard.restart()
    yard.beat("a")
    yard.beat("a")
    assert yard.why("two")["verdict"]["code"] == "dependency"  # type: ignore[index]
    run(yard, "one")
    assert yard.plan() == 1


def test_a_cancelled_job_that_waited_is_nobodys_dependant(yard: Yard) -> None:
    yard.submit("one")
    yard.submit("two", after=after("one"))
    yard.cancel("two")
    assert not yard.cluster.dependants
    run(yard, "one")


def test_submitting_it_again_is_the_same_job(yard: Yard) -> None:
    yard.submit("one")
    yard.submit("two", after=after("one"))
    run(yard, "one")
    assert yard.submit("two", after=after("one")).error is None
    run(yard, "two")
    assert yard.submit("two", after=after("one")).error is None
    assert ("default", "two") not in yard.cluster.jobs


def test_a_dry_run_refuses_what_submitting_would(yard: Yard) -> None:
    with pytest.raises(Exception, match="no job nobody"):
        yard.try_submit(after=after("nobody"))


def test_a_cancel_before_its_job_outlives_a_submission_that_is_refused(yard: Yard) -> None:
    yard.cancel("j")
    assert yard.submit("j", after=after("nobody")).error is not None
    yard.submit("j")
    assert yard.states("j") == ["cancelled"]
