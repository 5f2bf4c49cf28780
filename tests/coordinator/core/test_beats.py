"""Beats: their order, who may speak for a node, and what proves that an attempt is over."""

import copy

import pytest

from gpuyard.model.states import NodeState
from gpuyard_coordinator.core import documents
from tests.support.yard import Yard, ref


def yard_with_job(state: str = "running", **spec: object) -> Yard:
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


def test_a_beat_that_was_overtaken_changes_nothing_and_gets_no_answer() -> None:
    yard = yard_with_job()
    late = copy.deepcopy(yard.agents["a"])
    late.seq = 0
    late.reports[ref()].update(state="ended", reason="exited", exit_code=1)
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
    agent.reports[ref()].update(state="ended", reason="exited", exit_code=0)

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
        other.reports[ref()].update(state=said, reason="exited", exit_code=0)

    for _ in range(3):
        outcome = yard.beat("a", other)
        assert outcome and outcome.status == "ok"

    assert yard.states("j") == ["running"]
    assert yard.core_node("a").machine_id == "machine-z"
    assert list(yard.core_node("a").attempts) == [ref()]


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


def test_a_pull_is_told_in_steps_worth_a_write() -> None:
    yard = yard_with_job("assigned")
    step = 16 * 1024 * 1024
    for done in (0, step - 1, step, step + 5, 2 * step, 2 * step):
        yard.report(state="preparing", pull={"done_bytes": done, "total_bytes": 9 * step})

    assert yard.kinds().count("pulling") == 2


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
    ids = [f"j{n}" for n in range(120)]
    for id in ids:
        yard.submit(id)
    yard.plan()
    for report in yard.agents["a"].reports.values():
        report.update(state="ended", reason="exited", exit_code=0)

    yard.beat("a")
    assert len(yard.cluster.jobs) == 20
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
