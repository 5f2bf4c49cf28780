"""Where jobs go: filters with their words, grants, packing and the order of the queue."""

from typing import Any

import pytest

from gpuyard.model.node import GpuLink
from gpuyard.model.states import Scheduling
from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.explain import explain
from gpuyard_coordinator.core.packing import BestFit, Placement, best_linked
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import DOCUMENT_KIB, Shape
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

    assert filters.find_ids(yard.core_node("a"), ["GPU-0"]) is None
    assert filters.find_ids(yard.core_node("a"), ["0", gpu_uuid("a", 0)]) is None
    assert filters.find_ids(yard.core_node("a"), ["7"]) is None


def test_a_whole_uuid_that_begins_another_names_itself() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    short = "GPU-12345678"
    agent.facts["gpus"] = [gpu_facts(short, 0), gpu_facts(short + "9", 1)]
    agent.generation += 1
    yard.beat("a")

    assert filters.find_ids(yard.core_node("a"), [short]) == [short]


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


@pytest.mark.parametrize("asked", [{"cpus": 0.1}, {"memory_mib": 1}])
def test_what_a_node_does_not_know_of_itself_is_never_free(asked: dict[str, object]) -> None:
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
def test_a_gpu_in_a_bad_way_keeps_jobs_off_itself_alone(
    sample: dict[str, object], said: str
) -> None:
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
def test_a_display_servers_share_of_a_gpu_is_tolerated(sample: dict[str, object]) -> None:
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
        "0/3 nodes fit: 1 node_cordoned, 2 insufficient_cpu (asked 65.5, most free 64); "
        "no known node could ever hold it"
    )
    assert why(yard, memory_mib=300_000).startswith(
        "0/3 nodes fit: 1 node_cordoned, 2 insufficient_memory (asked 300000, most free 262144)"
    )
    assert why(yard, gpus=1) == "2/3 nodes fit: its turn is next"


def test_the_words_for_a_yard_without_nodes_and_for_lost_ones() -> None:
    yard = Yard()
    assert why(yard) == "0/0 nodes fit: no node has joined the yard yet"
    yard.node("a", gpus=8)
    yard.tick(31)

    assert why(yard, gpus=8) == "0/1 nodes fit: 1 node_lost"
    assert "no known node could ever hold it" in why(yard, gpus=9)


def test_small_jobs_leave_whole_nodes_to_large_ones() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.node("b", gpus=2)
    for id in ("one", "two"):
        yard.submit(id, gpus=1)
    yard.plan()
    yard.submit("large", gpus=4)

    assert yard.plan() == 1
    assert [yard.attempt(id).node for id in ("one", "two", "large")] == ["b", "b", "a"]


def test_a_job_without_gpus_goes_where_the_fewest_are_free() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.node("z")
    yard.submit("j", cpus=1)
    yard.plan()

    assert yard.attempt().node == "z"


def links_of(uuids: list[str], pairs: set[tuple[int, int]]) -> list[GpuLink]:
    return [
        {
            "a": uuids[a],
            "b": uuids[b],
            "kind": "nvlink" if (a, b) in pairs else "system",
            "links": 4 if (a, b) in pairs else None,
        }
        for a in range(len(uuids))
        for b in range(a + 1, len(uuids))
    ]


def test_a_job_of_two_gets_the_pair_that_is_linked() -> None:
    uuids = [gpu_uuid("a", index) for index in range(4)]
    yard = Yard()
    yard.node("a", gpus=4, links=links_of(uuids, {(0, 3), (1, 2)}))
    yard.submit("j", gpus=2)
    yard.submit("k", gpus=2)
    yard.plan()

    assert (yard.held("j"), yard.held("k")) == ([0, 3], [1, 2])


def test_the_best_linked_are_named_by_index_where_links_say_nothing() -> None:
    free = ["a", "b", "c"]

    assert best_linked(free, 2, []) == ["a", "b"]
    assert best_linked(free, 0, links_of(free, set())) == []
    assert best_linked(free, 2, links_of(free, set())) == ["a", "b"]
    assert best_linked(free, 3, links_of(free, {(0, 1)})) == free
    assert best_linked(free, 2, links_of(free, {(1, 2)})) == ["b", "c"]


def test_the_queue_is_by_priority_then_by_age() -> None:
    yard = Yard()
    for id, priority in (("old", 50), ("low", 10), ("high", 90), ("young", 50)):
        yard.submit(id, priority=priority)
    places = {id: yard.cluster.queue.position(yard.job(id)) for id in ("old", "low", "high")}
    assert places == {"high": 1, "old": 2, "low": 4}
    yard.node("a", cpus=4)
    for _ in range(4):
        yard.plan(limit=1)

    bodies = [message["body"] for message in yard.out]
    assigned = [body["job"] for body in bodies if body["kind"] == "assigned"]
    assert assigned == ["high", "old", "young", "low"]
    assert yard.cluster.queue.position(yard.job("old")) is None


def test_a_limited_plan_says_that_it_is_partial_and_the_next_goes_on() -> None:
    yard = Yard()
    yard.node("a", gpus=8)
    for number in range(5):
        yard.submit(f"j{number}", gpus=1)

    plan = yard.planner.plan(2)
    assert (len(plan.placements), plan.is_partial) == (2, True)
    for placement in plan.placements:
        apply(yard.cluster, placement, yard.now, Effects())

    assert yard.planner.plan(10).placements and not yard.planner.plan(10).placements


class CountingPlacer(BestFit):
    """Counts how often each shape is asked for."""

    calls: list[Shape]

    def place(self, shape: Shape) -> Placement | None:
        self.calls.append(shape)
        return super().place(shape)


def test_impossible_jobs_cost_one_question_however_many_they_are() -> None:
    yard = Yard()
    yard.node("a", gpus=8)
    placer = CountingPlacer(yard.cluster.settings)
    placer.calls = []
    yard.planner = Planner(yard.cluster, placer)
    yard.cluster.nodes_changed.add("a")
    for number in range(200):
        yard.submit(f"huge{number}", gpus=100, priority=100)
    for number in range(4):
        yard.submit(f"small{number}", gpus=1)
    assert yard.plan() == 4
    assert len(placer.calls) == 1 + 4

    placer.calls.clear()
    yard.beat("a")
    yard.plan()
    assert placer.calls == [], "a refused shape waits for room to grow"
    yard.end("small0", exit_code=0)
    yard.plan()

    assert len(placer.calls) == 1


def test_gpus_that_changed_their_indexes_are_looked_at_anew() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    yard.submit("j", gpus="device=0")
    yard.submit("k", gpus="device=0")
    yard.plan()
    assert yard.states("k") == ["queued"]
    for facts in agent.facts["gpus"]:
        facts["index"] = 1 - facts["index"]
    agent.generation += 1
    yard.beat("a")
    yard.plan()

    assert yard.states("k") == ["assigned"]


def test_a_node_whose_document_is_full_takes_no_more() -> None:
    yard = Yard()
    yard.node("a")
    for number in range(8):
        yard.submit(f"j{number}", command=["x" * 60_000], env={"N": str(number)})
    yard.plan()
    waiting = [f"j{n}" for n in range(8) if yard.states(f"j{n}") == ["queued"]]

    assert yard.core_node("a").document_kib_used <= DOCUMENT_KIB
    assert waiting == [f"j{n}" for n in range(DOCUMENT_KIB // 64, 8)]
    yard.submit("one-more", command=["x" * 60_000])
    for number in range(20):
        yard.submit(f"k{number}", command=["x" * 60_000])
    yard.plan()
    assert yard.events("k19")[-1]["data"]["code"] == "node_document_full"
    yard.end("j0", exit_code=0)

    assert yard.plan() == 1


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
        "0/2 nodes fit: 1 insufficient_gpus (asked 1, most free 0), 1 node_unready"
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
