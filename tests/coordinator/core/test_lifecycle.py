"""How a job moves: its table, its one end, and what may follow an attempt."""

import itertools
from typing import Any

import pytest

from gpuyard import codec
from gpuyard.model.reasons import REASONS, EndReason, Owner, Retry
from gpuyard.model.states import FINAL_STATES, JobState
from gpuyard_coordinator.core import lifecycle
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.lifecycle import TRANSITIONS, InvalidTransition, move
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job
from tests.support.yard import Yard

S = JobState
LISTED = [(state, to) for state, targets in TRANSITIONS.items() for to in sorted(targets)]
UNLISTED = [pair for pair in itertools.product(S, S) if pair not in LISTED]


def job_in(state: JobState) -> Job:
    return Job(
        tenant="default",
        id="j",
        user="mia",
        user_verified=False,
        packed_spec=codec.encode({}),
        name=None,
        spec_sha256="x",
        shape=Shape(),
        priority=50,
        submitted_at="",
        submit_seq=1,
        state=state,
    )


@pytest.mark.parametrize(("state", "to"), LISTED)
def test_a_job_moves_along_the_table(state: JobState, to: JobState) -> None:
    job = job_in(state)

    move(job, to)

    assert job.state is to


@pytest.mark.parametrize(("state", "to"), UNLISTED)
def test_any_other_move_is_refused_with_the_story_and_changes_nothing(
    state: JobState, to: JobState
) -> None:
    job = job_in(state)

    with pytest.raises(InvalidTransition, match=f"default/j: {state} -> {to}; attempts"):
        move(job, to)

    assert job.state is state


def test_the_table_lets_nothing_leave_an_end_and_everything_reach_one() -> None:
    assert set(TRANSITIONS) == set(S)
    assert all(not TRANSITIONS[end] for end in FINAL_STATES)
    assert all(S.CANCELLED in TRANSITIONS[state] for state in set(S) - FINAL_STATES)


def test_a_job_tells_each_step_of_its_life_once() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    yard.plan()
    yard.report(state="preparing")
    yard.report(state="preparing")
    yard.start()
    yard.beat("a")
    yard.end(exit_code=0)

    assert yard.kinds() == ["accepted", "assigned", "preparing", "running", "succeeded"]
    assert yard.job().started_at is not None
    assert yard.cluster.jobs == {}


@pytest.mark.parametrize(
    ("reason", "exit_code", "state"),
    [
        ("exited", 0, "succeeded"),
        ("exited", 7, "failed"),
        ("exited", None, "failed"),
        ("out_of_memory", 137, "failed"),
        ("time_limit", 143, "failed"),
        ("cancelled", 143, "cancelled"),
        ("yard_stopped", 143, "cancelled"),
        ("gpu_lost", None, "failed"),
        ("image_not_found", None, "failed"),
        ("invalid", None, "failed"),
    ],
)
def test_what_an_attempt_ends_with_decides_the_jobs_state(
    reason: str, exit_code: int | None, state: str
) -> None:
    yard = running_job()

    yard.end(reason=reason, exit_code=exit_code, message="so it said")

    job = yard.job()
    assert (job.state, job.reason, job.exit_code, job.message) == (
        state,
        reason,
        exit_code,
        "so it said",
    )
    assert yard.events()[-1]["data"]["owner"] == REASONS[EndReason(reason)].owner


def test_an_end_for_a_reason_nobody_knows_is_the_platforms() -> None:
    yard = running_job()

    yard.end(reason="eaten_by_bears", exit_code=3)

    assert yard.job().reason == EndReason.RUNTIME_ERROR


def test_an_end_frees_the_grant_for_the_next_job() -> None:
    yard = running_job(gpus=1)
    yard.submit("next", gpus=1)
    yard.plan()
    assert yard.states("next") == ["queued"]

    yard.end(exit_code=0)
    yard.plan()

    assert yard.states("next") == ["assigned"]


@pytest.mark.parametrize(
    "reason",
    [
        reason
        for reason, row in REASONS.items()
        if row.owner in (Owner.PLATFORM, Owner.HARDWARE)
        and row.retry is Retry.ELSEWHERE
        and reason is not EndReason.NODE_DRAINED
    ],
)
def test_a_container_that_never_started_is_tried_on_another_node_for_free(
    reason: EndReason,
) -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.submit("j", gpus=1)
    yard.plan()

    yard.end(reason=reason)
    yard.plan()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "b"]
    assert "requeued" in yard.kinds()
    assert (yard.job().attempts[0].next_allowed_because or "").endswith("not charged")


@pytest.mark.parametrize("reason", ["image_not_found", "image_auth", "exited"])
def test_what_the_job_itself_is_to_blame_for_is_not_tried_elsewhere(reason: str) -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.submit("j", gpus=1, retries=5)
    yard.plan()

    yard.end(reason=reason)

    assert yard.states("j") == ["failed"]


def test_three_other_nodes_are_tried_for_free_and_no_fourth() -> None:
    yard = Yard()
    for name in "abcdef":
        yard.node(name)
    yard.submit("j")
    for _ in range(4):
        yard.plan()
        yard.end(reason="runtime_error")

    assert yard.states("j") == ["failed"]
    assert [attempt.node for attempt in yard.job().attempts] == list("abcd")
    assert yard.job().not_charged == 3


@pytest.mark.parametrize("elsewhere", ["nothing", "too small", "lost", "pinned"])
def test_without_another_node_that_could_ever_run_it_the_job_ends(elsewhere: str) -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    if elsewhere != "nothing":
        yard.node("b", gpus=1 if elsewhere == "too small" else 2)
    if elsewhere == "lost":
        yard.mono += 31
        yard.beat("a")
        yard.tick()
    yard.submit("j", gpus=2, node="a" if elsewhere == "pinned" else None)
    yard.plan()

    yard.end(reason="no_space")

    assert yard.states("j") == ["failed"]
    assert yard.job().reason == "no_space"


def test_a_stale_inventory_is_tried_again_on_the_same_node_and_not_charged() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    yard.plan()
    agent.generation += 1

    yard.end(reason="runtime_error", message="stale inventory: decided on generation 1")
    yard.plan()

    job = yard.job()
    assert [attempt.node for attempt in job.attempts] == ["a", "a"]
    assert job.attempts[1].generation == 2
    assert (job.not_charged, job.shape.excluded) == (0, frozenset())


def test_a_refused_inventory_beside_a_failed_node_reads_back_equal() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.node("b", gpus=2)
    yard.submit("j", gpus=1)
    yard.plan()
    agent.generation += 1
    yard.end(reason="runtime_error", message="stale inventory")
    yard.plan()
    yard.end(reason="no_space")
    yard.plan()

    yard.restart()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "a", "b"]
    assert yard.job().shape.excluded == {"a"}


@pytest.mark.parametrize(
    ("retries", "reason", "exit_code", "attempts"),
    [
        (0, "runtime_lost", None, 1),
        (2, "runtime_lost", None, 3),
        (2, "gpu_lost", None, 3),
        (2, "exited", 1, 1),
        ({"max": 2, "when": ["user"]}, "exited", 1, 3),
        ({"max": 2, "when": ["exited"]}, "exited", 1, 3),
        ({"max": 2, "when": ["exit:75"]}, "exited", 75, 3),
        ({"max": 2, "when": ["exit:75"]}, "exited", 76, 1),
        ({"max": 2, "when": ["user", "exit:0"]}, "exited", 0, 1),
        ({"max": 1, "when": ["out_of_memory"]}, "out_of_memory", 137, 2),
        ({"max": 1, "when": ["hardware"]}, "runtime_lost", None, 1),
        ({"max": 1, "when": ["policy", "time_limit"]}, "time_limit", 143, 1),
        ({"max": 1, "when": ["user", "cancelled"]}, "cancelled", 143, 1),
    ],
)
def test_an_attempt_that_ran_is_tried_again_as_the_job_asks(
    retries: object, reason: str, exit_code: int | None, attempts: int
) -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j", retries=retries)
    for _ in range(attempts):
        yard.plan()
        yard.start()
        yard.end(reason=reason, exit_code=exit_code)
        yard.spend(300)

    assert yard.job().state.is_final
    assert len(yard.job().attempts) == attempts
    assert yard.job().not_charged == 0


def test_a_retry_comes_back_to_the_node_that_failed_where_there_is_no_other() -> None:
    yard = running_job(retries=1)

    yard.end(reason="runtime_restarted")
    yard.spend(10)
    yard.plan()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "a"]
    assert yard.job().started_at is None


def test_only_a_cancel_goes_over_a_stop_that_lets_another_attempt_follow() -> None:
    yard = running_job()
    job, effects = yard.job(), Effects()

    def ask(reason: EndReason) -> None:
        lifecycle.request_stop(
            yard.cluster,
            job,
            reason=reason,
            actor=None,
            message=None,
            now=yard.now,
            effects=effects,
        )

    ask(EndReason.PREEMPTED)
    ask(EndReason.NODE_DRAINED)
    assert job.last and job.last.stop and job.last.stop["reason"] == "preempted"
    ask(EndReason.CANCELLED)
    ask(EndReason.PREEMPTED)
    assert job.last.stop["reason"] == "cancelled"
    yard._commit(effects)

    yard.end(reason="preempted", exit_code=143)

    assert yard.states("j") == ["cancelled"]
    assert yard.job().reason == "cancelled"
    assert yard.attempt().reason == "preempted"


def test_a_preempted_job_waits_again_at_no_charge() -> None:
    yard = running_job(retries=1)
    effects = Effects()
    lifecycle.request_stop(
        yard.cluster,
        yard.job(),
        reason=EndReason.PREEMPTED,
        actor=None,
        message=None,
        now=yard.now,
        effects=effects,
    )
    yard._commit(effects)
    yard.end(reason="preempted", exit_code=143)
    yard.plan()
    yard.start()
    yard.end(reason="runtime_lost")

    assert yard.states("j") == ["queued"]
    why = yard.job().attempts[1].next_allowed_because
    assert why == "its node reported the end; retry 1 of 1 after runtime_lost"


def running_job(**spec: Any) -> Yard:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", **spec)
    yard.plan()
    yard.start()
    return yard
