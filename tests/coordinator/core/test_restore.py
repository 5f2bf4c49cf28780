"""After a restore: what runs is taken as its nodes tell it, and nothing starts before all have."""

from typing import Any, cast

import pytest

from gpuyard import codec
from gpuyard.model.states import JobState
from gpuyard_coordinator.core import moments
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import NodeBeat
from tests.support.agents import change
from tests.support.yard import Yard, ref


def settle(yard: Yard, *names: str, beats: int = 4) -> None:
    """Nodes beat until they have told all that they run."""
    for _ in range(beats):
        for name in names or tuple(yard.agents):
            yard.beat(name)


def run(yard: Yard, id: str = "j", **spec: Any) -> None:
    yard.submit(id, **spec)
    yard.plan()
    yard.start(id)


def stops(yard: Yard) -> set[tuple[str, str, int]]:
    return {key for agent in yard.agents.values() for key in agent.stops}


def test_a_job_that_waited_in_the_backup_and_runs_since_runs_on() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("j")
    yard.restore(backup)
    settle(yard)
    assert yard.plan() == 0
    attempt = yard.attempt("j")
    assert (yard.states("j"), attempt.number, attempt.node) == (["running"], 1, "a")
    assert yard.held("j") == [0]
    assert stops(yard) == set()
    told = [event for event in yard.events("j") if event["kind"] == "assigned"]
    assert "taken over from node a" in told[0]["message"]
    assert yard.story.audits[0]["action"] == "taken_over"
    yard.end("j", exit_code=0)
    assert yard.states("j") == ["succeeded"]
    assert yard.agents["a"].reports == {}


def test_no_job_starts_before_every_node_has_told() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.submit("j", node="b", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("j")
    yard.restore(backup)
    yard.submit("k", gpus=1)
    settle(yard, "a")
    assert yard.plan() == 0
    told = yard.events("k")[-1]
    assert told["kind"] == "queued" and "has told what it runs" in told["message"]
    verdict = yard.why("k")["verdict"]
    assert verdict is not None
    assert (verdict["code"], verdict["message"].endswith("still to come: b")) == (
        "waiting_turn",
        True,
    )
    settle(yard, "b")
    assert yard.plan() == 1
    assert (yard.attempt("k").node, yard.attempt("j").node) == ("a", "b")


def test_the_wait_goes_on_under_the_next_leader_and_ends_once() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.submit("j", gpus=1)
    yard.restore(yard.back_up())
    settle(yard, "a")
    yard.restart()
    settle(yard, "a")
    assert yard.plan() == 0
    yard.restart()
    settle(yard)
    yard.restart()
    settle(yard, "b")
    assert yard.cluster.untold == set()


def test_a_silent_node_is_waited_for_as_long_as_it_takes_to_be_lost() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("gone", gpus=1)
    yard.submit("j", gpus=1)
    yard.restore(yard.back_up())
    yard.mono += 29
    settle(yard, "a")
    yard.tick()
    assert yard.plan() == 0
    yard.mono += 2
    settle(yard, "a")
    yard.tick()
    assert yard.plan() == 1
    yard.restart()
    assert yard.cluster.untold == set(), "it is given up for good"


def test_an_end_that_is_newer_than_the_backup_ends_the_job() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("j")
    change(agent.reports[ref("j")], state="ended", reason="exited", exit_code=0, ended_at="")
    yard.restore(backup)
    settle(yard)
    assert yard.states("j") == ["succeeded"]
    assert agent.reports == {} and not agent.adopting


def test_a_job_that_came_after_the_backup_is_taken_with_its_attempt() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    backup = yard.back_up()
    run(yard, "later", gpus=1, name="train", priority=70)
    yard.restore(backup)
    settle(yard)
    job = yard.job("later")
    assert (job.state, job.name, job.priority, job.user) == ("running", "train", 70, "mia")
    assert not job.user_verified
    assert yard.kinds("later") == ["accepted", "assigned", "running"]
    same = yard.submit("later", gpus=1, name="train", priority=70)
    assert same.error is None, "submitted again, it is the same job"
    yard.end("later", exit_code=0)
    assert yard.states("later") == ["succeeded"]


@pytest.mark.parametrize(
    "odd",
    [
        {"image": 5},
        {"cpus": 1e308},
        {"deadline": "soon"},
        {"where": [5]},
        {"max_runtime": [1]},
        {"gpus": {"ids": 5}},
        {"name": "a\nb"},
    ],
)
def test_no_job_is_made_of_what_is_no_spec(odd: dict[str, Any]) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    backup = yard.back_up()
    run(yard, "later", gpus=1)
    entry = agent.entries[ref("later")]
    entry["spec"] = entry["spec"] | odd
    yard.restore(backup)
    settle(yard)
    assert yard.cluster.jobs == {} and agent.stops == {ref("later"): "cancelled"}


def test_a_deadline_that_a_node_tells_without_a_date_counts_from_now() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    backup = yard.back_up()
    run(yard, "later", gpus=1)
    entry = agent.entries[ref("later")]
    entry["spec"] = entry["spec"] | {"deadline": "60s"}
    yard.restore(backup)
    settle(yard)
    assert yard.job("later").deadline == moments.later(yard.now.at, 60)


def test_a_job_that_has_ended_is_not_made_again() -> None:
    """A host that was away when its job was ended elsewhere comes back after a restore."""
    yard = Yard()
    agent = yard.node("a", gpus=1)
    run(yard, "j", gpus=1)
    yard.tick(100)
    assert yard.forget("a").error is None
    assert yard.states("j") == ["failed"]
    yard.restore(yard.back_up())
    settle(yard)
    assert yard.states("j") == ["failed"] and ("default", "j") not in yard.cluster.jobs
    assert agent.stops == {ref("j"): "cancelled"}


def test_nobody_makes_a_job_whose_end_was_not_looked_up() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    backup = yard.back_up()
    run(yard, "later", gpus=1)
    yard.restore(backup)
    yard.beat("a")
    assert agent.adopting
    apply(yard.cluster, NodeBeat(agent.beat(yard.now.at)), yard.now, Effects())
    assert yard.cluster.jobs == {} and yard.core_node("a").refused == set()


def test_a_later_attempt_replaces_the_one_that_the_backup_knows() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    run(yard, "j", gpus=1, retries={"max": 3, "backoff": 0})
    first = yard.attempt("j").node
    backup = yard.back_up()
    yard.end("j", reason="runtime_error")
    yard.plan()
    yard.start("j")
    second = yard.attempt("j").node
    assert first != second
    yard.restore(backup)
    settle(yard, first)
    assert yard.states("j") == ["running"], "its node's silence about it proves nothing yet"
    settle(yard)
    job = yard.job("j")
    assert [(a.number, a.node) for a in job.attempts] == [(1, first), (2, second)]
    assert job.state is JobState.RUNNING
    assert stops(yard) == set()
    assert yard.core_node(first).attempts == {}


def test_a_retry_that_waited_in_the_backup_and_runs_since_runs_on() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    run(yard, "j", gpus=1, retries={"max": 3, "backoff": 20, "when": ["user"]})
    yard.end("j", exit_code=1)
    backup = yard.back_up()
    yard.spend(25)
    assert yard.plan() == 1
    yard.start("j")
    yard.restore(backup)
    settle(yard)
    yard.spend(25)
    assert yard.plan() == 0
    assert (yard.states("j"), yard.attempt("j").number) == (["running"], 2)
    assert yard.job("j").not_before is None and stops(yard) == set()


def test_an_older_attempt_than_the_known_one_is_refused() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    run(yard, "j", gpus=1, retries={"max": 3, "backoff": 0})
    holder = yard.attempt("j").node
    old = yard.agents[holder]
    yard.tick(100)
    other = next(name for name in yard.agents if name != holder)
    yard.beat(other)
    yard.beat(other)
    yard.forget(holder)
    yard.plan()
    assert yard.attempt("j").node == other
    yard.start("j")
    yard.restore(yard.back_up())
    settle(yard)
    assert list(old.stops) == [ref("j", 1)]
    assert yard.attempt("j").number == 2 and yard.states("j") == ["running"]


def test_the_truth_wins_over_the_books_until_they_agree() -> None:
    """The backup has a job on the GPU that ended since; another one runs there now."""
    yard = Yard()
    yard.node("a", gpus=1)
    run(yard, "old", gpus=1)
    yard.submit("new", gpus=1)
    backup = yard.back_up()
    yard.end("old", exit_code=0)
    yard.plan()
    yard.start("new")
    yard.restore(backup)
    yard.beat("a")
    yard.beat("a")
    assert yard.core_node("a").gpus[next(iter(yard.core_node("a").gpus))].free_milli == -1000
    warned = [event for event in yard.events("new") if event["kind"] == "warning"]
    assert "granted twice" in warned[0]["message"]
    settle(yard)
    assert yard.states("new") == ["running"] and stops(yard) == set()
    yard.is_restored = False
    yard.beat("a")


def test_a_cancel_that_is_newer_than_the_backup_goes_on() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("j")
    yard.cancel("j")
    yard.restore(backup)
    settle(yard)
    attempt = yard.attempt("j")
    assert attempt.stop is not None and attempt.stop["reason"] == "cancelled"
    yard.end("j", reason="cancelled", exit_code=143)
    assert yard.states("j") == ["cancelled"]


@pytest.mark.parametrize("is_over", [False, True])
def test_an_attempt_of_another_spec_ends_before_the_job_starts_under_the_next_number(
    is_over: bool,
) -> None:
    """Submitted again, changed, while the lost one's container still runs on a node."""
    yard = Yard()
    agent = yard.node("a", gpus=2)
    backup = yard.back_up()
    run(yard, "j", gpus=1)
    if is_over:
        change(agent.reports[ref("j")], state="ended", reason="exited", exit_code=0, ended_at="")
    yard.restore(backup)
    yard.submit("j", gpus=1, command=["other"])
    settle(yard)
    if not is_over:
        assert yard.states("j") == ["stopping"] and agent.stops == {ref("j"): "preempted"}
        assert yard.plan() == 0
        yard.end("j", reason="preempted", exit_code=143)
    assert yard.plan() == 1
    assert yard.attempt("j").number == 2


def test_an_agent_that_does_not_know_what_it_runs_ends_it_before_it_runs_anew() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    backup = yard.back_up()
    yard.plan()
    yard.start("j")
    agent.restart()
    agent.applied, agent.entries, agent.adopting = None, {}, True
    yard.restore(backup)
    yard.beat("a")
    assert agent.stops == {ref("j"): "preempted"}
    agent.adopting = False
    settle(yard)
    assert yard.plan() == 0
    yard.end("j", reason="preempted", exit_code=143)
    assert yard.plan() == 1 and yard.attempt("j").number == 2


def test_what_did_not_fit_a_beat_is_decided_by_the_next() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    backup = yard.back_up()
    run(yard, "j", gpus=1)
    yard.restore(backup)
    yard.beat("a")
    report = agent.reports[ref("j")]
    wanted = report["wanted"]
    change(report, wanted=None)
    yard.beat("a")
    assert agent.adopting and not agent.stops
    change(report, wanted=wanted)
    settle(yard)
    assert yard.states("j") == ["running"] and not agent.adopting


@pytest.mark.parametrize(
    "lie",
    [
        {"tenant": "Nobody!"},
        {"job": "x.y"},
        {"user": "a b"},
        {"spec": {}},
        {"spec": {"image": 7, "cpus": "x"}},
    ],
    ids=str,
)
def test_what_no_coordinator_can_have_sent_makes_no_job(lie: dict[str, Any]) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    backup = yard.back_up()
    run(yard, "j", gpus=1)
    yard.restore(backup)
    yard.beat("a")
    report = agent.reports.pop(ref("j"))
    change(report, wanted={**(report["wanted"] or {}), **lie})
    change(report, **{key: lie[key] for key in ("tenant", "job") if key in lie})
    beat = codec.decode(codec.encode({**agent.beat(yard.now.at), "attempts": [report]}))
    apply(yard.cluster, NodeBeat(cast(Any, beat), ended=frozenset()), yard.now, Effects())
    assert yard.cluster.jobs == {}


def test_nothing_is_taken_but_after_a_restore() -> None:
    """A node that told all once cannot bring jobs of its own."""
    yard = Yard()
    agent = yard.node("a", gpus=1)
    run(yard, "j", gpus=1)
    agent.reports[ref("made-up")] = {**agent.reports[ref("j")], "job": "made-up"}
    change(agent.reports[ref("made-up")], wanted={**agent.entries[ref("j")], "job": "made-up"})
    agent.adopting = True
    yard.beat("a")
    assert ("default", "made-up") not in yard.cluster.jobs
    assert agent.stops == {ref("made-up"): "cancelled"}


def test_a_node_that_joined_after_the_backup_tells_what_it_runs() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    backup = yard.back_up()
    yard.node("b", gpus=1)
    run(yard, "j", gpus=1, node="b")
    yard.restore(backup)
    settle(yard)
    assert yard.states("j") == ["running"] and stops(yard) == set()
