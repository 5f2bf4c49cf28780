"""What operators do to nodes: cordon, uncordon, drain with and without a deadline, forget."""

import copy

import pytest

from gpuyard.errors import Conflict, RequestError, UnknownThing
from gpuyard.model.states import NodeState, Scheduling
from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import MOST_KEYS, Effects
from gpuyard_coordinator.core.events import NodeBeat, NodeOrder
from tests.support.agents import gpu_uuid
from tests.support.yard import Yard


def test_a_cordon_keeps_new_jobs_off_and_what_runs_runs_on() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("j", gpus=1)
    yard.plan()
    yard.start()

    outcome = yard.cordon("a", reason="new driver")

    assert (outcome.node, outcome.error) == ("a", None)
    yard.submit("k", gpus=1)
    assert yard.plan() == 0
    assert yard.states("j", "k") == ["running", "queued"]
    yard.end("j", exit_code=0)
    assert yard.plan() == 0
    yard.uncordon("a")
    assert yard.plan() == 1


def test_orders_are_audited_with_who_and_why() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.cordon("a", "0", reason="fan")
    yard.drain("a", after_s=60)
    yard.uncordon("a")

    told = [(a["user"], a["action"], a["after"]["gpu"]) for a in yard.story.audits]
    assert told == [("olga", "cordon", "0"), ("olga", "drain", None), ("olga", "uncordon", None)]
    assert yard.story.audits[0]["after"]["reason"] == "fan"
    assert yard.story.audits[1]["after"]["deadline_at"] > yard.now.at


def test_cordons_outlive_leaders_agents_and_absent_gpus() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    yard.cordon("a", "1", reason="fan")
    yard.drain("a", after_s=600)
    before = yard.core_node("a").cordons
    kept = agent.facts["gpus"].pop()
    agent.generation += 1
    yard.beat("a")

    yard.restart()
    yard.beat("a")

    node = yard.core_node("a")
    assert node.cordons == before
    assert (node.scheduling, node.scheduling_reason) == (Scheduling.DRAINING, "moving")
    agent.facts["gpus"].append(kept)
    agent.generation += 1
    yard.beat("a")
    cordon = node.gpus[gpu_uuid("a", 1)].cordon
    assert cordon is not None and cordon.reason == "fan"


def test_the_cordon_of_an_absent_gpu_can_be_lifted_by_its_whole_uuid() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    yard.cordon("a", "1")
    agent.facts["gpus"].pop()
    agent.generation += 1
    yard.beat("a")
    assert isinstance(yard.uncordon("a", "1").error, RequestError)

    assert yard.uncordon("a", gpu_uuid("a", 1)).error is None

    assert yard.core_node("a").cordons == {}


@pytest.mark.parametrize("asked", ["1", gpu_uuid("a", 1), gpu_uuid("a", 1)[:10].lower()])
def test_a_gpu_is_cordoned_by_index_uuid_or_unique_prefix(asked: str) -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.cordon("a", asked)
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=1)
    yard.plan()

    assert yard.held("j") == [0]
    assert yard.states("k") == ["queued"]
    yard.uncordon("a", asked)
    assert yard.plan() == 1


@pytest.mark.parametrize("action", ["cordon", "uncordon", "drain", "forget"])
def test_orders_about_what_is_not_there_are_refused(action: str) -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    unknown = yard._request(NodeOrder(action, "ghost", "olga"))  # type: ignore[arg-type]  # a text
    assert isinstance(unknown.error, UnknownThing) and unknown.error.code == "unknown_node"
    for gpu in ("7", "GPU-nowhere", "²", "9" * 5000):
        order = NodeOrder(action, "a", "olga", gpu=gpu)  # type: ignore[arg-type]  # a text
        outcome = yard._request(order)
        assert isinstance(outcome.error, RequestError) and outcome.error.field == "gpu"
    assert yard.story.audits == []


@pytest.mark.parametrize("action", ["drain", "forget"])
def test_a_gpu_is_neither_drained_nor_forgotten(action: str) -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    order = NodeOrder(action, "a", "olga", gpu="0")  # type: ignore[arg-type]  # a text

    assert "is for whole nodes" in str(yard._request(order).error)


def test_a_drain_without_a_deadline_waits_for_its_jobs() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.start()
    yard.drain("a")
    yard.tick(100_000)

    assert yard.states("j") == ["running"]
    assert yard.attempt().stop is None


def test_a_drain_with_a_deadline_moves_what_still_runs_then() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.start()
    yard.drain("a", after_s=60)
    yard.node("b")
    yard.tick(59)
    assert yard.states("j") == ["running"]

    yard.tick(1)

    assert yard.states("j") == ["stopping"]
    assert yard.agents["a"].stops == {("default", "j", 1): "node_drained"}
    yard.end("j", reason="node_drained", exit_code=143)
    assert yard.states("j") == ["queued"]
    assert yard.kinds()[-1] == "requeued"
    yard.beat("b")
    yard.plan()
    assert yard.attempt().node == "b"
    assert yard.attempt().number == 2


def test_a_job_that_ends_by_itself_while_it_is_drained_is_over() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.start()
    yard.drain("a", after_s=0)
    yard.tick(1)
    yard.end("j", exit_code=0)

    assert yard.done("j")["state"] == "succeeded"


def test_a_drain_that_was_lifted_ends_nothing() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.drain("a", after_s=60)
    yard.uncordon("a")
    yard.tick(61)

    assert yard.attempt().stop is None
    yard.drain("a", after_s=60)
    yard.cordon("a")
    yard.tick(61)
    assert yard.attempt().stop is None


def test_a_deadline_outlives_the_leader() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j")
    yard.plan()
    yard.drain("a", after_s=5)
    yard.restart()
    yard.tick(6)

    assert yard.states("j") == ["stopping"]


def test_a_large_drain_takes_several_turns() -> None:
    yard = Yard()
    yard.node("a")
    count = MOST_KEYS + 20
    yard.submit_all(f"j{number}" for number in range(count))
    yard.plan()
    yard.drain("a", after_s=0)
    stopped = []
    for _ in range(3):
        yard.tick(1)
        stopped.append(sum(job.state == "stopping" for job in yard.cluster.jobs.values()))

    assert MOST_KEYS // 2 < stopped[0] < MOST_KEYS
    assert stopped[1:] == [count, count]


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


def test_an_agent_that_restarted_takes_nothing_before_it_has_proven_itself() -> None:
    yard = Yard()
    agent = yard.node("a")
    yard.plan()
    agent.restart()
    agent.applied = None
    agent.is_deaf = True
    yard.beat("a")
    yard.submit("j")

    assert yard.plan() == 0
    assert yard.events()[-1]["data"]["code"] == "node_unready"
