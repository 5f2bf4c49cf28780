"""Who may speak for a node, in which order its beats count, and when it is late or lost."""

import copy
from typing import Any

import pytest

from gpuyard.model.states import NodeState
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


def test_a_beat_that_was_overtaken_changes_nothing_and_gets_no_answer() -> None:
    yard = yard_with_job()
    late = copy.deepcopy(yard.agents["a"])
    late.seq = 0
    change(late.reports[ref()], state="ended", reason="exited", exit_code=1)
    last_beat = yard.core_node("a").last_beat
    yard.mono += 1

    assert yard.beat("a", late) is None

    assert yard.states("j") == ["running"]
    assert yard.core_node("a").last_beat == last_beat


def test_a_restarted_agent_counts_anew_and_goes_on() -> None:
    yard = yard_with_job()
    yard.agents["a"].restart()

    outcome = yard.beat("a")

    assert outcome and outcome.status == "ok"
    assert yard.states("j") == ["running"]


def test_a_restarted_agent_without_its_disk_takes_no_work_and_proves_no_end() -> None:
    yard = yard_with_job()
    agent = yard.agents["a"]
    agent.restart()
    agent.applied, agent.is_deaf = None, True
    agent.reports.clear()

    yard.beat("a")

    assert yard.states("j") == ["running"]
    assert not yard.core_node("a").is_proven


def test_another_machine_under_a_living_nodes_name_is_refused_and_shown() -> None:
    yard = yard_with_job()
    other = copy.deepcopy(yard.agents["a"])
    other.machine_id, other.instance, other.seq = "machine-z", "other", 1000
    other.reports.clear()

    outcome = yard.beat("a", other)

    assert outcome and outcome.status == "duplicate_name"
    assert "machine-a beats as a already" in (outcome.message or "")
    assert yard.core_node("a").rival == "machine-z"
    assert yard.core_node("a").machine_id == "machine-a"
    assert yard.states("j") == ["running"]


def test_a_rival_that_went_away_is_not_shown_for_ever() -> None:
    yard = yard_with_job()
    other = copy.deepcopy(yard.agents["a"])
    other.machine_id, other.instance = "machine-z", "other"
    yard.beat("a", other)
    yard.mono += 31

    yard.beat("a")

    assert yard.core_node("a").rival is None


@pytest.mark.parametrize("started_ns", [0, 1])
def test_an_older_agent_of_the_same_machine_is_refused(started_ns: int) -> None:
    yard = yard_with_job()
    older = copy.deepcopy(yard.agents["a"])
    older.instance, older.started_ns = "older", started_ns

    outcome = yard.beat("a", older)

    assert outcome and outcome.status == "duplicate_name"


def test_a_late_beat_of_the_boot_before_does_not_undo_the_restart() -> None:
    yard = yard_with_job()
    before = copy.deepcopy(yard.agents["a"])
    yard.agents["a"].reboot()
    yard.beat("a")
    yard.submit("k", gpus=2)
    yard.plan()

    outcome = yard.beat("a", before)

    assert outcome and outcome.status == "duplicate_name"
    assert yard.states("k") == ["assigned"]


def test_a_new_leader_gives_a_known_nodes_name_to_no_other_machine() -> None:
    yard = yard_with_job()
    yard.restart()
    other = copy.deepcopy(yard.agents["a"])
    other.machine_id, other.instance = "machine-z", "other"

    outcome = yard.beat("a", other)

    assert outcome and outcome.status == "duplicate_name"
    assert yard.core_node("a").machine_id == "machine-a"


def test_a_node_is_suspect_after_six_seconds_and_lost_after_thirty() -> None:
    yard = yard_with_job()
    seen = []
    for seconds in (6, 1, 23, 1):
        yard.tick(seconds)
        seen.append(str(yard.core_node("a").state))

    assert seen == ["ready", "suspect", "suspect", "lost"]
    assert yard.states("j") == ["running"], "nothing is moved"
    yard.submit("k")
    assert yard.plan() == 0


def test_a_lost_node_that_beats_again_is_ready_and_its_job_goes_on() -> None:
    yard = yard_with_job()
    yard.tick(60)
    assert yard.core_node("a").state is NodeState.LOST

    yard.beat("a")
    yard.end(exit_code=0)

    assert yard.core_node("a").state is NodeState.READY
    assert yard.states("j") == ["succeeded"]


def test_only_late_nodes_are_looked_at() -> None:
    yard = Yard()
    yard.node("a")
    yard.mono += 7
    yard.node("b")
    yard.tick()

    assert [str(yard.core_node(name).state) for name in "ab"] == ["suspect", "ready"]


def test_a_new_leader_counts_a_silent_node_from_its_own_start() -> None:
    yard = yard_with_job()
    yard.tick(60)
    yard.restart()

    yard.tick(30)
    assert yard.core_node("a").state is NodeState.SUSPECT
    yard.tick(1)
    assert yard.core_node("a").state is NodeState.LOST


def test_a_new_leader_places_on_a_node_after_its_document_is_stored_there() -> None:
    yard = yard_with_job()
    yard.submit("k", gpus=1)
    yard.restart()
    assert yard.plan() == 0
    yard.beat("a")
    assert yard.plan() == 0, "the first beat was sent before the document"

    yard.beat("a")

    assert yard.plan() == 1
    assert yard.held("k") == [1]


def test_a_reply_carries_the_document_only_where_the_agents_is_older() -> None:
    yard = Yard()
    agent = yard.node("a")
    outcome = yard.beat("a")
    assert outcome and not outcome.needs_wanted
    agent.is_deaf = True
    yard.submit("j")
    yard.plan()
    agent.is_deaf = False

    outcome = yard.beat("a")

    assert outcome and outcome.needs_wanted
    assert ref() in agent.reports
