"""Beats: what they change, and what proves that an attempt is over."""

import copy
from typing import Any

import pytest

from gpuyard.model.states import NodeState
from gpuyard_coordinator.core import documents
from tests.support.agents import change
from tests.support.yard import Yard, ref


def yard_with_job(state: str = "running", **spec: Any) -> Yard:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("j", gpus=1, **spec)
    yard.plan()
    if state == "running":
        yard.start()
    return yard


def test_a_node_takes_no_work_before_its_disk_holds_this_leaders_document() -> None:
    yard = Yard()
    yard.node("a", gpus=1, is_proven=False)
    yard.submit("j", gpus=1)
    assert yard.plan() == 0

    yard.beat("a")

    assert yard.plan() == 1


@pytest.mark.parametrize(("retries", "state"), [(0, "failed"), (1, "queued")])
def test_a_host_restart_ends_what_ran_there(retries: int, state: str) -> None:
    yard = yard_with_job(retries=retries)
    yard.agents["a"].reboot()

    yard.beat("a")

    assert yard.states("j") == [state]
    assert yard.attempt().reason == "node_lost"
    assert yard.core_node("a").attempts == {}


def test_an_attempt_that_was_accepted_in_the_boot_before_is_over_too() -> None:
    """Its agent remembers it from the disk and may start it no more."""
    yard = yard_with_job("assigned")
    yard.node("b", gpus=1)
    agent = yard.agents["a"]
    kept = copy.deepcopy(agent.reports)
    agent.reboot()
    agent.reports = kept

    yard.beat("a")
    yard.plan()

    assert [attempt.node for attempt in yard.job().attempts] == ["a", "b"]


def test_what_an_agent_found_to_have_ended_before_the_restart_is_believed() -> None:
    yard = yard_with_job()
    agent = yard.agents["a"]
    kept = copy.deepcopy(agent.reports)
    agent.reboot()
    agent.reports = kept
    change(agent.reports[ref()], state="ended", reason="exited", exit_code=0)

    yard.beat("a")

    assert yard.states("j") == ["succeeded"]


def test_absence_is_no_proof_in_a_beat_from_before_the_document_arrived() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.is_deaf = True
    yard.submit("j", gpus=1)
    yard.plan()

    yard.beat("a")

    assert yard.states("j") == ["assigned"]


def test_absence_in_a_beat_that_covers_the_document_ends_the_attempt() -> None:
    yard = yard_with_job()
    yard.agents["a"].reports.clear()

    yard.beat("a")

    assert yard.states("j") == ["failed"]
    assert yard.job().reason == "runtime_lost"


def test_absence_after_a_change_of_leaders_counts_from_the_new_document() -> None:
    yard = yard_with_job()
    agent = yard.agents["a"]
    agent.reports.clear()
    agent.is_deaf = True
    yard.restart()

    yard.beat("a")
    assert yard.states("j") == ["running"]
    agent.is_deaf = False
    yard.beat("a")
    agent.reports.clear()
    yard.beat("a")

    assert yard.job().reason == "runtime_lost"


def test_an_adopting_agents_silence_ends_nothing_even_after_a_restart_of_the_host() -> None:
    yard = yard_with_job()
    agent = yard.agents["a"]
    agent.adopting = True
    agent.reports.clear()
    yard.beat("a")
    agent.reboot()
    yard.beat("a")
    assert yard.states("j") == ["running"]

    agent.adopting = False
    yard.beat("a")

    assert yard.states("j") == ["failed"]


def test_an_adopting_agent_takes_no_work() -> None:
    yard = Yard()
    yard.node("a").adopting = True
    yard.beat("a")
    yard.submit("j")

    assert yard.plan() == 0


@pytest.mark.parametrize("said", [None, "ended", "running"])
def test_another_machine_after_the_node_was_lost_never_proves_an_end(said: str | None) -> None:
    yard = yard_with_job(retries=3)
    old = yard.agents["a"]
    yard.tick(31)
    other = copy.deepcopy(old)
    other.machine_id, other.boot_id, other.instance = "machine-z", "boot-77", "other"
    other.applied = None
    if said is None:
        other.reports.clear()
    else:
        change(other.reports[ref()], state=said, reason="exited", exit_code=0)

    for _ in range(3):
        outcome = yard.beat("a", other)
        assert outcome and outcome.status == "ok"

    assert yard.states("j") == ["running"]
    assert yard.core_node("a").machine_id == "machine-z"
    assert list(yard.core_node("a").attempts) == [ref()]


def test_an_entry_leaves_the_document_with_the_end_of_its_attempt() -> None:
    yard = yard_with_job()
    node = yard.core_node("a")
    revision = node.revision

    yard.end(exit_code=0)

    assert node.revision == revision + 1
    assert documents.wanted_document(yard.cluster, node)["entries"] == []
    assert yard.agents["a"].reports == {}


def test_a_reason_of_the_whole_node_makes_it_unready_and_one_of_a_gpu_does_not() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.reasons = [{"code": "gpu_lost", "message": "gone", "gpu": "GPU-1", "since": None}]
    yard.beat("a")
    assert yard.core_node("a").state is NodeState.READY

    agent.reasons = [{"code": "docker_unreachable", "message": "", "gpu": None, "since": None}]
    yard.beat("a")

    assert yard.core_node("a").state is NodeState.UNREADY


def test_progress_never_goes_back() -> None:
    yard = yard_with_job()
    yard.report(state="preparing")
    assert yard.states("j") == ["running"]
    yard.report(state="stopping", reason="time_limit")
    yard.report(state="running")

    assert yard.states("j") == ["stopping"]
    assert yard.kinds() == ["accepted", "assigned", "running", "stopping"]


def test_a_pull_is_told_as_it_begins_and_then_in_steps_worth_a_write() -> None:
    yard = yard_with_job("assigned")
    step = 16 * 1024 * 1024
    told = []
    for done in (0, 0, step - 1, step, step + 5, 2 * step, 2 * step):
        yard.report(state="preparing", pull={"done_bytes": done, "total_bytes": 9 * step})
        told.append(yard.kinds().count("pulling"))

    assert told == [1, 1, 1, 2, 2, 3, 3]


def test_a_container_that_is_paused_is_told_once_and_that_it_goes_on() -> None:
    yard = yard_with_job()
    for message in (None, "it is paused", "it is paused"):
        yard.report(state="running", message=message)
    assert yard.attempt().message == "it is paused"

    yard.restart()
    for message in ("it is paused", None, None):
        yard.report(state="running", message=message)

    told = [event["message"] for event in yard.events("j") if event["kind"] == "warning"]
    assert told == ["it is paused", "its container goes on"]
    assert yard.attempt().message is None


def test_a_start_that_a_cancel_overtook_is_stored_all_the_same() -> None:
    yard = yard_with_job("assigned")
    yard.cancel("j")
    yard.start()

    yard.restart()

    assert yard.attempt().started_at is not None


def test_a_gpu_that_a_beat_does_not_measure_is_unknown_again() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    del agent.samples[0]
    yard.beat("a")
    yard.submit("j", gpus=1)
    yard.plan()

    assert yard.held() == [1]


def test_many_ends_come_in_several_turns() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit_all(f"j{n}" for n in range(200))
    yard.plan()
    for report in yard.agents["a"].reports.values():
        change(report, state="ended", reason="exited", exit_code=0)

    yard.beat("a")
    left = len(yard.cluster.jobs)
    assert 0 < left < 50, "an end takes two of the keys that one turn may change"
    yard.beat("a")

    assert len(yard.cluster.jobs) == 0


def test_a_token_of_another_form_proves_nothing() -> None:
    yard = yard_with_job()
    agent = yard.agents["a"]
    agent.reports.clear()
    agent.is_deaf = True
    agent.applied = {"token": [], "revision": 99}

    yard.beat("a")

    assert yard.states("j") == ["running"]
