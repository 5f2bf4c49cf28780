"""Forgetting a node: its attempts are over, and what is told when it comes back."""

import copy

import pytest

from gpuyard.errors import Conflict
from gpuyard.model.states import NodeState
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import MOST_KEYS, Effects
from gpuyard_coordinator.core.events import NodeBeat, NodeOrder
from tests.support.yard import Yard


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.UNREADY])
def test_a_node_that_beats_is_not_forgotten(state: NodeState) -> None:
    yard = Yard()
    agent = yard.node("a")
    if state is NodeState.UNREADY:
        agent.reasons = [{"code": "disk_low", "message": "", "gpu": None, "since": None}]
        yard.beat("a")

    outcome = yard.forget("a")

    assert isinstance(outcome.error, Conflict) and "beats" in str(outcome.error)
    assert "a" in yard.cluster.nodes


def test_a_node_is_not_forgotten_before_it_could_beat_to_a_new_leader() -> None:
    yard = Yard()
    yard.node("a")
    yard.restart()
    assert yard.forget("a").error is not None

    yard.tick(7)

    assert yard.forget("a").error is None


def test_a_forgotten_nodes_attempts_are_over_and_may_go_on_elsewhere() -> None:
    yard = Yard()
    yard.node("a", gpus=3)
    for id, retries in (("once", 0), ("again", 1), ("fresh", 0)):
        yard.submit(id, gpus=1, retries=retries)
    yard.plan()
    yard.start("once")
    yard.start("again")
    yard.node("b", gpus=2)
    yard.mono += 31
    yard.beat("b")
    yard.tick()

    assert yard.forget("a").error is None

    assert yard.done("once")["reason"] == "node_lost"
    assert "forgotten by olga" in str(yard.done("once")["message"])
    assert yard.states("again", "fresh") == ["queued", "queued"]
    why = yard.job("again").attempts[0].next_allowed_because
    assert why == "operator olga forgot node a; retry 1 of 1 after node_lost"
    del yard.agents["a"]
    assert yard.plan() == 1
    yard.spend(10)
    assert yard.plan() == 1
    assert [yard.attempt(id).node for id in ("again", "fresh")] == ["b", "b"]
    yard.check_replay()
    yard.restart()
    assert set(yard.cluster.nodes) == {"b"}


def test_the_name_of_a_forgotten_node_can_join_again() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.cordon("a", "0")
    yard.submit("j", gpus=1, retries=5)
    yard.tick(31)
    yard.forget("a")
    yard.plan()
    assert yard.why()["verdict"] is not None

    other = copy.deepcopy(yard.agents["a"])
    other.machine_id, other.instance = "machine-new", "other"
    yard.agents["a"] = other
    yard.beat("a")
    yard.beat("a")

    assert yard.core_node("a").cordons == {}
    assert yard.plan() == 1
    yard.restart()
    assert yard.core_node("a").machine_id == "machine-new"


def test_a_node_that_joins_again_in_the_turn_that_forgot_it_is_kept() -> None:
    """One commit takes each key once, so it may not both store and delete the node."""
    yard = Yard()
    yard.node("a")
    yard.tick(31)
    effects = Effects()
    for event in (
        NodeOrder("forget", "a", "olga"),
        NodeBeat(yard.agents["a"].beat(yard.now.at)),
    ):
        apply(yard.cluster, event, yard.now, effects)

    assert (effects.nodes, effects.forgotten) == ({"a"}, set())


def test_a_node_with_many_attempts_is_forgotten_in_parts_by_one_order() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit_all(f"j{number}" for number in range(MOST_KEYS))
    yard.plan()
    yard.tick(31)

    assert yard.forget("a").error is None
    left = len(yard.cluster.jobs)
    assert 0 < left < MOST_KEYS
    assert yard.beat("a") is None, "its beats change nothing any more"
    yard.restart()
    assert len(yard.cluster.jobs) == left
    for _ in range(3):
        yard.tick(1)

    assert yard.cluster.jobs == {} and yard.cluster.nodes == {}
    assert [audit["after"]["attempts"] for audit in yard.story.audits] == [MOST_KEYS]


def test_a_forgotten_node_that_is_back_is_told_to_stop_what_it_still_runs() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1, retries=1)
    yard.plan()
    yard.start()
    yard.tick(31)
    yard.forget("a")
    yard.plan()
    agent = yard.agents["a"]

    yard.beat("a")

    assert agent.stops == {("default", "j", 1): "cancelled"}
    assert yard.core_node("a").attempts == {}
    agent.reports.clear()
    yard.beat("a")
    assert yard.core_node("a").refused == set()


def test_a_forgotten_node_that_is_back_takes_work_whatever_its_agent_had_applied() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    for number in range(4):
        yard.submit(f"before{number}", gpus=1)
        yard.plan()
        yard.cancel(f"before{number}")
        yard.report(f"before{number}", state="ended", reason="cancelled")
    yard.tick(31)
    yard.forget("a")
    agent.restart()

    yard.spend(2)
    yard.spend(2)
    yard.submit("j", gpus=1)
    assert yard.plan() == 1
    yard.beat("a")

    assert yard.states("j") == ["assigned"]
    assert [key for key, report in agent.reports.items() if report["state"] == "accepted"] == [
        ("default", "j", 1)
    ]


def test_what_a_forgotten_node_was_told_last_does_not_pass_for_the_present() -> None:
    """The push was under way when the node was forgotten: it arrives once the node is back."""
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.is_deaf = True
    yard.submit("j", gpus=1)
    yard.plan()
    late = documents.wanted_document(yard.cluster, yard.core_node("a"))
    yard.tick(31)
    yard.forget("a")
    yard.beat("a")
    agent.take(late)
    agent.is_deaf = False

    outcome = yard.beat("a")

    assert outcome and outcome.needs_wanted
    assert agent.stops == {("default", "j", 1): "cancelled"}
