"""Who goes next and where to: the order of the queue, packing, and what a plan costs."""

from collections.abc import Collection

from gpuyard.model.node import GpuLink
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.linking import best_linked
from gpuyard_coordinator.core.packing import Packer, Placement
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.quota import Left
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import DOCUMENT_KIB
from tests.support.agents import gpu_uuid
from tests.support.yard import Yard


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

    plan = yard.planner.plan(2, yard.now)
    assert (len(plan.placements), plan.is_partial) == (2, True)
    for placement in plan.placements:
        apply(yard.cluster, placement, yard.now, Effects())

    assert (
        yard.planner.plan(10, yard.now).placements
        and not yard.planner.plan(10, yard.now).placements
    )


class CountingPlacer(Packer):
    """Counts how often each shape is asked for."""

    calls: list[Shape]

    def place(
        self, shape: Shape, left: Left | None = None, having: Collection[str] = ()
    ) -> Placement | None:
        self.calls.append(shape)
        return super().place(shape, left, having)


def test_impossible_jobs_cost_one_question_however_many_they_are() -> None:
    yard = Yard()
    yard.node("a", gpus=8)
    placer = CountingPlacer(yard.cluster.settings)
    placer.calls = []
    yard.planner = Planner(yard.cluster, placer)
    yard.cluster.nodes_changed.add("a")
    yard.submit_all((f"huge{number}" for number in range(200)), gpus=100, priority=100)
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
