"""Submissions, their repetitions, and cancels that come at any moment."""

import random
from dataclasses import replace

import pytest

from gpuyard.errors import Conflict, InvalidJob, UnknownThing
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import CancelRequested, Refused, Submitted
from gpuyard_coordinator.submissions import read_submission
from tests.support.agents import change
from tests.support.yard import Yard


def test_a_job_is_accepted_and_waits() -> None:
    yard = Yard()

    outcome = yard.submit("j", gpus=1, priority=70)
    yard.plan()

    assert outcome.key == ("default", "j") and outcome.error is None
    assert yard.kinds() == ["accepted", "queued"]
    assert yard.job().priority == 70


def test_a_job_that_can_start_at_once_is_never_said_to_wait() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()

    assert yard.kinds() == ["accepted", "assigned"]


def test_the_same_id_with_the_same_spec_is_one_job_however_it_is_written() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("j", gpus=2, max_runtime="4h")
    yard.plan()

    again = yard.submit("j", max_runtime=14400, gpus={"count": 2})

    assert again.key == ("default", "j") and again.error is None
    assert len(yard.cluster.jobs) == 1
    assert yard.kinds() == ["accepted", "assigned"]


def test_the_same_id_with_another_spec_is_refused_by_name() -> None:
    yard = Yard()
    yard.submit("j", gpus=1)

    outcome = yard.submit("j", gpus=2)

    assert isinstance(outcome.error, Conflict)
    assert "j exists already with another spec" in str(outcome.error)
    assert yard.job().shape.gpus == 1
    (event,) = yard.story.rejected
    assert event["data"]["errors"][0] | {"message": ""} == {
        "field": "id",
        "code": "conflict",
        "message": "",
        "did_you_mean": None,
    }


def test_two_tenants_may_use_the_same_id() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j", tenant="team-a")
    yard.submit("j", tenant="team-b")

    assert yard.plan() == 2


@pytest.mark.parametrize("reason", ["exited", "invalid"])
def test_an_ended_job_never_runs_again(reason: str) -> None:
    """`invalid` too is the end of an attempt where the node's policy refused it."""
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.end(reason=reason, exit_code=0)

    same, other = yard.submit("j"), yard.submit("j", name="another")

    assert same.error is None
    assert isinstance(other.error, Conflict)
    assert yard.cluster.jobs == {}
    assert len(yard.job().attempts) == 1


def test_a_look_up_made_before_the_end_is_not_believed() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.end(exit_code=0)
    event = read_submission(
        tenant="default",
        user="mia",
        data=b'{"id":"j","image":"busybox"}',
        headers=None,
        assigned_id="jyard0000-9",
        sequence=9,
    )
    effects = Effects()

    apply(yard.cluster, event, yard.now, effects)  # `known` is None: it was looked up before

    assert yard.cluster.jobs == {}
    assert effects.outcomes[0].key == ("default", "j")


def test_after_a_refusal_the_mended_job_runs_under_its_id() -> None:
    yard = Yard()
    yard.node("a")

    refused = yard.submit("j", gpu=1)
    assert isinstance(refused.error, InvalidJob)
    assert yard.states("j") == ["failed"] and yard.job().reason == "invalid"
    yard.submit("j", gpus=0)
    yard.plan()

    assert yard.states("j") == ["assigned"]
    assert not len(yard.cluster.recently_done)


def test_a_refused_body_does_not_disturb_the_job_that_has_its_id() -> None:
    yard = Yard()
    yard.submit("j")

    yard.submit("j", priority=1000)

    assert yard.states("j") == ["queued"]
    assert yard.story.rejected[0]["data"]["errors"][0]["field"] == "priority"


def test_a_rejection_names_every_fault_and_where_it_belongs() -> None:
    yard = Yard()

    yard.submit("j", gpu=2, priority=1000, comand=["x"])

    (event,) = yard.story.rejected
    assert (event["kind"], event["state"], event["reason"]) == ("rejected", "failed", "invalid")
    faults = {fault["field"]: fault for fault in event["data"]["errors"]}
    assert set(faults) == {"gpu", "priority", "comand"}
    assert faults["comand"]["did_you_mean"] == "command"
    assert "did you mean command?" in (yard.job().message or "")


def test_a_refusal_of_a_request_is_answered_and_leaves_no_event() -> None:
    yard = Yard()
    event = read_submission(
        tenant="default", user="mia", data=b"{}", headers=None, assigned_id="abcd", sequence=None
    )
    assert isinstance(event, Refused)
    effects = Effects()

    apply(yard.cluster, event, yard.now, effects)

    assert effects.out == []
    assert isinstance(effects.outcomes[0].error, InvalidJob)


@pytest.mark.parametrize("when", ["before", "with", "right after", "queued"])
def test_a_cancel_around_the_submit_keeps_the_job_from_running(when: str) -> None:
    yard = Yard()
    yard.node("a")
    effects = Effects()
    job = read_submission(
        tenant="default", user="mia", data=b'{"id":"j","image":"x"}', headers=None, assigned_id="z"
    )
    cancel = CancelRequested("default", "j", "mia")
    if when == "before":
        assert isinstance(yard.cancel("j").error, UnknownThing)
        yard.submit("j")
    elif when == "with":
        for event in (job, cancel):
            apply(yard.cluster, event, yard.now, effects)
        yard._commit(effects)
    else:
        yard.submit("j", gpus=4 if when == "queued" else 0)
        if when == "queued":
            yard.plan()
        yard.cancel("j")
    yard.plan()

    assert yard.states("j") == ["cancelled"]
    assert yard.job().reason == "cancelled" and yard.job().attempts == []
    assert yard.kinds()[0] == "accepted" and yard.kinds()[-1] == "cancelled"


def test_a_cancel_and_its_submit_in_one_turn_leave_one_record() -> None:
    yard = Yard()
    effects = Effects()
    for data in (b'{"cancel":"j"}', b'{"id":"j","image":"x"}'):
        event = read_submission(
            tenant="default", user="mia", data=data, headers=None, assigned_id="z", sequence=1
        )
        apply(yard.cluster, event, yard.now, effects)
    yard._commit(effects)

    assert yard.states("j") == ["cancelled"]
    assert yard.job().spec_sha256 != ""
    assert yard.submit("j", image="x").error is None
    assert yard.cluster.jobs == {}


def test_a_cancel_of_an_unknown_id_says_so_and_is_kept_once() -> None:
    yard = Yard()

    first, second = yard.cancel("ghost", message="never mind"), yard.cancel("ghost")

    assert isinstance(first.error, UnknownThing) and "should it still come" in str(first.error)
    assert second.error is None
    assert yard.done("ghost")["message"] == "never mind, before it was submitted"


@pytest.mark.parametrize("state", ["assigned", "preparing", "running"])
def test_a_held_job_is_stopped_and_ends_cancelled_on_its_report(state: str) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.submit("j", gpus=1, stop_grace="10s")
    yard.plan()
    if state == "preparing":
        yard.report(state="preparing")
    if state == "running":
        yard.start()

    yard.cancel("j", message="no longer needed")

    assert yard.states("j") == ["stopping"]
    assert yard.attempt().stop == {"reason": "cancelled", "signal": "SIGTERM", "grace_s": 10.0}
    assert ("default", "j", 1) in agent.stops
    assert yard.core_node("a").attempts, "the grant is held until the end is proven"
    yard.end(reason="cancelled", exit_code=143)
    assert yard.states("j") == ["cancelled"]
    assert yard.events()[-2]["message"] == "no longer needed"


def test_a_second_cancel_changes_nothing() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.cancel("j")
    kinds, revision = yard.kinds(), yard.core_node("a").revision

    assert yard.cancel("j").error is None

    assert (yard.kinds(), yard.core_node("a").revision) == (kinds, revision)


def test_a_cancel_meets_a_job_that_its_node_is_stopping_already() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j", max_runtime="1s", retries={"max": 3, "when": ["platform"]})
    yard.plan()
    yard.start()
    yard.report(state="stopping", reason="time_limit")

    yard.cancel("j")

    assert yard.states("j") == ["stopping"]
    assert yard.kinds()[-2:] == ["stopping", "stopping"]
    yard.end(reason="time_limit", exit_code=143)
    assert yard.job().reason == "time_limit"


@pytest.mark.parametrize("reason", ["runtime_error", "no_space", "runtime_lost", "node_lost"])
def test_after_a_cancel_a_platform_failure_leads_to_no_other_attempt(reason: str) -> None:
    yard = Yard()
    yard.node("a")
    yard.node("b")
    yard.submit("j", retries=3)
    yard.plan()
    yard.cancel("j")

    yard.end(reason=reason)

    assert yard.states("j") == ["cancelled"]
    assert yard.job().reason == "cancelled"
    assert yard.attempt().reason == reason


def test_a_job_that_ended_by_itself_before_the_cancel_reached_it_keeps_its_own_end() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.start()
    yard.cancel("j")

    yard.end(exit_code=0)

    assert yard.states("j") == ["succeeded"]


def test_a_cancel_of_an_ended_job_is_no_error_and_changes_nothing() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.end(exit_code=0)
    kinds = yard.kinds()

    outcome = yard.cancel("j")

    assert outcome.error is None and outcome.key == ("default", "j")
    assert yard.kinds() == kinds


@pytest.mark.parametrize("block", range(10))
def test_a_hundred_seeded_interleavings_of_submit_and_cancel(block: int) -> None:
    """Ten blocks make the thousand: once cancelled, a job never runs or ends cancelled."""
    for seed in range(block * 100, block * 100 + 100):
        _interleave(random.Random(seed))


def _interleave(dice: random.Random) -> None:
    """One job, one cancel (perhaps sent twice), beats and ends in any order around them."""
    yard = Yard()
    yard.node("a", is_proven=False)
    cancelled_at: int | None = None
    was_over = False
    steps = ["submit", "cancel", *dice.choices(["beat", "plan", "go", "submit", "cancel"], k=8)]
    dice.shuffle(steps)
    for number, step in enumerate([*steps, "beat", "plan", "go", "go", "go"]):
        if step == "submit":
            yard.submit("j")
        elif step == "cancel":
            was_over = was_over or bool(cancelled_at is None and _is_over(yard))
            cancelled_at = number if cancelled_at is None else cancelled_at
            yard.cancel("j")
        elif step == "beat":
            yard.beat("a")
        elif step == "plan":
            yard.plan()
        else:
            _go_on(yard)
    if was_over:
        return
    assert yard.states("j") == ["cancelled"]
    ran = yard.job().started_at is not None
    assert yard.kinds().count("running") == int(ran)
    assert yard.kinds()[-1] == "cancelled"


def _is_over(yard: Yard) -> bool:
    return ("default", "j") in yard.store.done


def _go_on(yard: Yard) -> None:
    """The agent takes one step: it starts what it may start, and ends what it was told to."""
    agent = yard.agents["a"]
    for key, report in list(agent.reports.items()):
        if key in agent.stops and report["state"] != "ended":
            change(report, state="ended", reason="cancelled", ended_at=yard.now.at)
        elif report["state"] == "accepted":
            change(report, state="running", started_at=yard.now.at)
        elif report["state"] == "running":
            change(report, state="ended", reason="exited", exit_code=0, ended_at=yard.now.at)
    yard.beat("a")


def test_replacing_a_known_record_is_part_of_the_event() -> None:
    """A new leader has forgotten what ended before; the look-up's answer says it."""
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.end(exit_code=0)
    yard.restart()
    event = read_submission(
        tenant="default",
        user="mia",
        data=b'{"id":"j","image":"busybox"}',
        headers=None,
        assigned_id="z",
    )
    assert isinstance(event, Submitted)
    effects = Effects()

    apply(yard.cluster, replace(event, known=yard.done("j")), yard.now, effects)

    assert yard.cluster.jobs == {} and effects.out == []
