"""Where jobs go: what is granted, what keeps a job off, and the words for it."""

from typing import Any

import pytest

from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core import filters, selection
from gpuyard_coordinator.core.explain import explain
from gpuyard_coordinator.core.shapes import Shape
from tests.support.agents import gpu_facts, gpu_uuid
from tests.support.yard import Yard


def why(yard: Yard, **shape: Any) -> str:
    return explain(yard.cluster, Shape(**shape))[1]


def code(yard: Yard, **shape: Any) -> str:
    return str(explain(yard.cluster, Shape(**shape))[0])


@pytest.mark.parametrize(
    ("asked", "indexes"),
    [
        (0, []),
        (1, [0]),
        (4, [0, 1, 2, 3]),
        ("all", [0, 1, 2, 3]),
        ("device=0,2", [0, 2]),
        ("3,1", [3, 1]),
        ({"ids": [2]}, [2]),
    ],
)
def test_a_job_gets_exactly_the_gpus_it_asked_for(asked: object, indexes: list[int]) -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("j", gpus=asked)
    yard.plan()

    assert yard.held() == indexes
    assert all(granted["milli"] == 1000 for granted in yard.attempt().gpus)


@pytest.mark.parametrize("length", [8, 13, None])
def test_gpus_are_found_by_uuid_and_by_a_unique_part_of_it_in_any_case(length: int | None) -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("j", gpus={"ids": ["GPU-" + gpu_uuid("a", 2)[4:length].upper()]})
    yard.plan()

    assert yard.held() == [2]


def test_a_prefix_of_two_gpus_names_none() -> None:
    yard = Yard()
    yard.node("a", gpus=4)

    assert selection.find_ids(yard.core_node("a"), ["GPU-0"]) is None
    assert selection.find_ids(yard.core_node("a"), ["0", gpu_uuid("a", 0)]) is None
    assert selection.find_ids(yard.core_node("a"), ["7"]) is None


def test_a_whole_uuid_that_begins_another_names_itself() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    short = "GPU-12345678"
    agent.facts["gpus"] = [gpu_facts(short, 0), gpu_facts(short + "9", 1)]
    agent.generation += 1
    yard.beat("a")

    assert selection.find_ids(yard.core_node("a"), [short]) == [short]


def test_no_gpu_is_granted_twice_whatever_way_it_is_asked_for() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    for number, asked in enumerate([1, "device=1", 2, "all", "device=0", 1]):
        yard.submit(f"j{number}", gpus=asked)
    yard.plan()

    placed = [id for id in (f"j{n}" for n in range(6)) if yard.states(id) == ["assigned"]]
    indexes = [index for id in placed for index in yard.held(id)]
    assert sorted(indexes) == sorted(set(indexes))


def test_all_takes_a_node_where_every_gpu_is_free_and_no_other() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.node("b", gpus=4)
    yard.submit("one", gpus=1)
    yard.plan()
    yard.submit("j", gpus="all")
    yard.plan()

    assert yard.attempt("one").node == "a"
    assert yard.attempt("j").node == "b"
    assert len(yard.attempt("j").gpus) == 4
    yard.submit("k", gpus="all")
    assert yard.plan() == 0


def test_a_pinned_job_waits_for_its_node() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.submit("j", node="b")
    yard.submit("k", node="c")
    yard.plan()

    assert yard.attempt("j").node == "b"
    message = yard.events("k")[-1]["message"]
    assert message == "0/2 nodes fit: 2 where_mismatch; no known node could ever hold it"


def test_cpus_and_memory_are_counted_and_freed() -> None:
    yard = Yard()
    yard.node("a", cpus=4, memory_mib=4096)
    yard.submit("j", cpus=2.5, memory_mib=1024)
    yard.submit("k", cpus=2)
    yard.submit("l", memory_mib=4096)
    yard.submit("free")
    yard.plan()
    assert yard.states("j", "k", "l", "free") == ["assigned", "queued", "queued", "assigned"]

    yard.end("j", exit_code=0)
    yard.plan()

    assert yard.states("k", "l") == ["assigned", "assigned"]


@pytest.mark.parametrize("asked", [{"cpus": 0.1}, {"memory_mib": 6}])
def test_what_a_node_does_not_know_of_itself_is_never_free(asked: dict[str, Any]) -> None:
    yard = Yard()
    yard.node("a", cpus=None, memory_mib=None)
    yard.submit("j", **asked)
    yard.submit("k")
    yard.plan()

    assert yard.states("j", "k") == ["queued", "assigned"]
    assert "no known node could ever hold it" in yard.events("j")[-1]["message"]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"health": {"state": "unhealthy", "reason": "xid", "since": None}}, "gpu_unhealthy"),
        ({"health": {"state": "lost", "reason": None, "since": None}}, "gpu_unhealthy"),
        ({"health": {"state": "puzzled", "reason": None, "since": None}}, "gpu_unhealthy"),
        ({"health": {"state": "dirty", "reason": None, "since": None}}, "gpu_dirty"),
        ({"memory_foreign_mib": 257}, "foreign_memory"),
        ({"memory_foreign_mib": None, "memory_used_mib": None}, "foreign_memory"),
        ({"memory_foreign_mib": None, "memory_used_mib": 900}, "foreign_memory"),
        (
            {
                "memory_foreign_mib": None,
                "foreign": [{"pid": 1, "user": None, "container": None, "memory_mib": None}],
            },
            "foreign_memory",
        ),
    ],
)
def test_a_gpu_in_a_bad_way_keeps_jobs_off_itself_alone(sample: dict[str, Any], said: str) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    agent.change_sample(0, **sample)
    yard.beat("a")
    assert code(yard, gpus=2) == said
    yard.submit("j", gpus=1)
    yard.plan()
    assert yard.held() == [1]

    agent.change_sample(0)
    yard.beat("a")
    yard.submit("k", gpus=1)
    yard.plan()

    assert yard.held("k") == [0]


@pytest.mark.parametrize(
    "sample",
    [{"memory_foreign_mib": 256}, {"memory_foreign_mib": None, "memory_used_mib": 200}],
)
def test_a_display_servers_share_of_a_gpu_is_tolerated(sample: dict[str, Any]) -> None:
    yard = Yard()
    yard.node("a", gpus=1).change_sample(0, **sample)
    yard.beat("a")
    yard.submit("j", gpus=1)

    assert yard.plan() == 1


@pytest.mark.parametrize("age_s", [None, 10.5])
def test_gpus_that_were_not_measured_of_late_take_no_new_work(age_s: float | None) -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.sample_age_s = age_s
    yard.beat("a")
    yard.submit("j", gpus=1)
    yard.submit("k")
    yard.plan()
    assert yard.states("j", "k") == ["queued", "assigned"]
    assert yard.events("j")[-1]["data"]["code"] == "gpu_unhealthy"

    agent.sample_age_s = 1.0
    yard.beat("a")

    assert yard.plan() == 1


def test_a_mig_instance_is_no_whole_gpu() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.facts["gpus"][0]["mig"] = {"profile": "1g.10gb", "parent": "GPU-1"}
    agent.generation += 1
    yard.beat("a")
    yard.submit("j", gpus=1)

    assert yard.plan() == 0
    assert not filters.could_ever_run(yard.cluster, Shape(gpus=1))


def test_the_words_count_every_cause_over_the_fleet() -> None:
    yard = Yard()
    for name, gpus in (("a", 4), ("b", 2), ("c", 1)):
        yard.node(name, gpus=gpus)
    yard.core_node("a").scheduling = Scheduling.CORDONED
    assert why(yard, gpus=4) == (
        "0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus (asked 4, most free 2)"
    )
    assert code(yard, gpus=4) == "insufficient_gpus"
    assert why(yard, cpu_milli=65_500) == (
        "0/3 nodes fit: 1 node_cordoned, 2 insufficient_cpu (asked 65.5 CPUs, most free 64 CPUs); "
        "no known node could ever hold it"
    )
    assert why(yard, memory_mib=300_000).startswith(
        "0/3 nodes fit: 1 node_cordoned, 2 insufficient_memory "
        "(asked 300000 MiB, most free 262144 MiB)"
    )
    assert why(yard, gpus=1) == "2/3 nodes fit: its turn is next"


def test_the_words_for_a_yard_without_nodes_and_for_lost_ones() -> None:
    yard = Yard()
    assert why(yard) == "0/0 nodes fit: no node has joined the yard yet"
    yard.node("a", gpus=8)
    yard.tick(31)

    assert why(yard, gpus=8) == "0/1 nodes fit: 1 node_lost"
    assert "no known node could ever hold it" in why(yard, gpus=9)


def test_a_grant_stays_with_a_gpu_that_goes_away_and_comes_back() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    yard.submit("j", gpus="device=1")
    yard.plan()
    kept = agent.facts["gpus"].pop()
    agent.generation += 1
    yard.beat("a")
    agent.facts["gpus"].append(kept)
    agent.generation += 1
    yard.beat("a")
    yard.submit("k", gpus="device=1")

    assert yard.plan() == 0
    yard.end("j", exit_code=0)
    assert yard.plan() == 1


def test_a_node_that_an_attempt_could_not_start_on_is_said_to_be_out() -> None:
    yard = Yard()
    for name in "ab":
        yard.node(name, gpus=1)
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=1)
    yard.plan()
    yard.end("j", reason="no_space")
    yard.plan()

    assert yard.states("j") == ["queued"]
    assert yard.events("j")[-1]["message"] == (
        "0/2 nodes fit: 1 failed this job before, 1 insufficient_gpus (asked 1, most free 0)"
    )


@pytest.mark.parametrize("state", ["lost", "suspect", "unready", "stopping", "cordoned"])
def test_a_node_that_is_not_well_takes_nothing_until_it_is(state: str) -> None:
    yard = Yard()
    agent = yard.node("a")
    if state in ("lost", "suspect"):
        yard.tick(31 if state == "lost" else 7)
    elif state == "unready":
        agent.reasons = [{"code": "disk_low", "message": "", "gpu": None, "since": None}]
        yard.beat("a")
    elif state == "stopping":
        agent.stopping = True
        yard.beat("a")
    else:
        yard.core_node("a").scheduling = Scheduling.DRAINING
        yard.cluster.nodes_changed.add("a")
    yard.submit("j")
    assert yard.plan() == 0

    agent.reasons, agent.stopping = [], False
    yard.core_node("a").scheduling = Scheduling.OPEN
    yard.cluster.nodes_changed.add("a")
    yard.beat("a")

    assert yard.plan() == 1
