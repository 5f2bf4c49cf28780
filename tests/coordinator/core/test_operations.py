"""What operators do to nodes: cordon, uncordon, drain with and without a deadline, forget."""

import pytest

from gpuyard.errors import RequestError, UnknownThing
from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core.effects import MOST_KEYS
from gpuyard_coordinator.core.events import NodeOrder
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
    assert unknown.error.hint == "'gpuyard nodes' lists them"
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
