"""MIG instances: granted by profile or by UUID, never as GPUs; their GPU is granted to nobody."""

import pytest

from gpuyard.messages import STALE_INVENTORY
from gpuyard_coordinator.core import filters
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.reads import show_node
from gpuyard_coordinator.yard_counts import gpu_totals
from tests.support.agents import (
    A100_80,
    MIG_7,
    MIG_MIXED,
    Agent,
    devices,
    gpu_sample,
    gpu_uuid,
)
from tests.support.yard import Yard


def held(yard: Yard, id: str) -> list[str]:
    job = yard.job(id)
    return [granted["uuid"] for granted in job.last.gpus] if job.last else []


def profiles_of(yard: Yard, node: str, id: str) -> list[str | None]:
    gpus = yard.core_node(node).gpus
    return [(gpus[uuid].facts["mig"] or {"profile": None})["profile"] for uuid in held(yard, id)]


def split(agent: Agent, yard: Yard, *profiles: str) -> None:
    """An operator splits the node's only GPU anew."""
    agent.facts["gpus"] = gpus = devices(agent.name, [A100_80._replace(mig=profiles)])
    agent.samples = [gpu_sample(gpu["uuid"]) for gpu in gpus]
    agent.generation += 1
    yard.beat(agent.name)


def test_instances_are_granted_by_profile() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED])
    yard.submit("j", gpus="mig=1g.10gb:2")
    yard.submit("k", gpus={"mig": "3g.40gb"})
    yard.submit("l", gpus="mig=1g.10gb")

    assert yard.plan() == 2
    assert profiles_of(yard, "a", "j") == ["1g.10gb", "1g.10gb"]
    assert profiles_of(yard, "a", "k") == ["3g.40gb"]
    assert yard.states("l") == ["queued"]
    yard.end("j", exit_code=0)
    assert yard.plan() == 1


@pytest.mark.parametrize(
    "asked", [1, "all", "8GiB", "50%", "device=0", f"device={gpu_uuid('a', 0)}"]
)
def test_a_gpu_that_is_split_and_its_instances_are_no_gpus(asked: int | str) -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_7])
    yard.submit("j", gpus=asked)

    assert yard.plan() == 0
    code = yard.events("j")[-1]["data"]["code"]
    assert code == ("insufficient_gpu_memory" if asked == "8GiB" else "insufficient_gpus")
    assert yard.events("j")[-1]["message"].endswith("; no known node could ever hold it")


def test_all_wants_a_node_of_which_no_gpu_is_split() -> None:
    yard = Yard()
    yard.node("a", cards=[A100_80, MIG_7])
    yard.node("b", cards=[A100_80, A100_80])
    yard.submit("j", gpus="all")

    assert yard.plan() == 1
    assert yard.attempt("j").node == "b"
    yard.submit("k", gpus="device=0", node="a")
    assert yard.plan() == 1


def test_instances_of_one_job_may_be_on_several_gpus_of_its_node() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED, MIG_MIXED])
    yard.submit("j", gpus="mig=1g.10gb:3")

    assert yard.plan() == 1
    gpus = yard.core_node("a").gpus
    assert len({gpus[uuid].facts["mig"]["parent"] for uuid in held(yard, "j")}) == 2  # type: ignore[index]


def test_an_instance_may_be_named_by_its_uuid() -> None:
    yard = Yard()
    yard.node("a", cards=[A100_80])
    agent = yard.node("b", cards=[MIG_7])
    uuid = agent.facts["gpus"][3]["uuid"]
    yard.submit("j", gpus=f"device={uuid}")
    yard.submit("k", gpus=f"device={uuid}")

    assert yard.plan() == 1
    assert held(yard, "j") == [uuid]
    assert yard.states("k") == ["queued"]


def test_an_instance_without_a_known_profile_is_granted_by_name_alone() -> None:
    yard = Yard()
    agent = yard.node("a", cards=[MIG_7])
    for gpu in agent.facts["gpus"][1:]:
        gpu["mig"] = {"profile": None, "parent": agent.facts["gpus"][0]["uuid"]}
    agent.generation += 1
    yard.beat("a")
    uuid = agent.facts["gpus"][1]["uuid"]
    yard.submit("j", gpus="mig=1g.10gb")
    yard.submit("k", gpus=f"device={uuid}")

    assert yard.plan() == 1
    assert held(yard, "k") == [uuid]


def test_an_instance_counts_its_compute_slices() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED, MIG_MIXED])
    yard.tenant(limits={"gpus": 0.75})
    yard.submit("j", gpus="mig=3g.40gb")
    yard.submit("k", gpus="mig=1g.10gb:2")
    yard.submit("l", gpus="mig=1g.10gb")

    assert yard.plan() == 2
    use = yard.cluster.use["default"]
    assert use.milli == 428 + 2 * 142
    assert yard.events("l")[-1]["message"] == (
        "quota: gpus of tenant default: 0.712 of 0.75 used, 0.142 asked"
    )
    yard.end("j", exit_code=0)
    yard.end("k", exit_code=0)
    assert use.milli == 0


def test_a_named_instance_counts_what_it_is() -> None:
    yard = Yard()
    agent = yard.node("a", cards=[MIG_MIXED])
    yard.tenant(limits={"gpus": 0.25})
    large, small = (agent.facts["gpus"][index]["uuid"] for index in (1, 2))
    yard.submit("j", gpus=f"device={large}")
    yard.submit("k", gpus=f"device={small}")

    assert yard.plan() == 1
    assert held(yard, "k") == [small]


def test_jobs_fill_the_node_that_has_fewer_instances_left() -> None:
    yard = Yard()
    for name in "abc":
        yard.node(name, cards=[MIG_7])
    yard.submit("first", gpus="mig=1g.10gb", node="b")
    yard.plan()
    for number in range(6):
        yard.submit(f"j{number}", gpus="mig=1g.10gb")
        yard.plan()

    assert {yard.attempt(f"j{number}").node for number in range(6)} == {"b"}


def test_why_names_the_profiles_that_there_are() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED])
    yard.node("b", cards=[A100_80])
    yard.submit("j", gpus="mig=1g.10gb:2")
    yard.plan()
    yard.submit("k", gpus="mig=1g.10gb:2")
    yard.submit("l", gpus="mig=2g.20gb")
    yard.plan()

    assert yard.events("k")[-1]["message"] == (
        "0/2 nodes fit: 2 insufficient_gpus (asked 2, most free 0); the yard has 2 of 1g.10gb"
    )
    assert yard.events("l")[-1]["message"] == (
        "0/2 nodes fit: 2 insufficient_gpus (asked 1, most free 0); "
        "no known node could ever hold it; the yard has no 2g.20gb, only 2 of 1g.10gb, 1 of 3g.40gb"
    )


def test_lines_about_gpus_are_held_against_the_instance() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED])
    yard.submit("j", gpus="mig=1g.10gb", where=["gpu-memory>=20"])
    yard.submit("k", gpus="mig=3g.40gb", where=["gpu-memory>=20", "gpu-name=*A100*"])

    assert yard.plan() == 1
    assert yard.events("j")[-1]["data"]["code"] == "where_mismatch"


def test_a_gpu_may_be_split_otherwise_while_jobs_wait() -> None:
    yard = Yard()
    agent = yard.node("a", cards=[MIG_7])
    yard.submit("j", gpus="mig=3g.40gb")
    assert yard.plan() == 0
    split(agent, yard, "3g.40gb", "3g.40gb")

    assert yard.plan() == 1
    assert not filters.could_ever_run(yard.cluster, Shape(gpus=1, mig="1g.10gb"))
    agent.facts["gpus"] = devices("a", [A100_80])
    agent.generation += 1
    yard.beat("a")
    yard.submit("k", gpus="mig=3g.40gb")
    assert yard.plan() == 0


def test_a_grant_that_met_another_geometry_is_decided_anew_and_not_charged() -> None:
    yard = Yard()
    agent = yard.node("a", cards=[MIG_7])
    yard.submit("j", gpus="mig=1g.10gb", retries=0)
    yard.plan()
    split(agent, yard, "1g.10gb", "3g.40gb")
    gone = held(yard, "j")[0]
    yard.end(
        "j",
        reason="runtime_error",
        message=f"{STALE_INVENTORY}: this node has no {gone}",
    )

    yard.plan()
    assert yard.states("j") == ["assigned"]
    assert profiles_of(yard, "a", "j") == ["1g.10gb"]


def test_the_next_leader_has_the_same_books() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_MIXED])
    yard.submit("j", gpus="mig=1g.10gb")
    yard.plan()
    before = {uuid: gpu.free_milli for uuid, gpu in yard.core_node("a").gpus.items()}

    yard.restart()

    assert {uuid: gpu.free_milli for uuid, gpu in yard.core_node("a").gpus.items()} == before
    assert yard.cluster.use["default"].milli == 142


def test_a_node_shows_its_instances_and_the_yard_counts_them_once() -> None:
    yard = Yard()
    yard.node("a", cards=[MIG_7, A100_80])
    yard.submit("j", gpus="mig=1g.10gb")
    yard.plan()

    view = show_node(yard.cluster, yard.core_node("a"))
    free = [gpu["allocatable_milli"] for gpu in view["gpus"]]
    assert free == [0, 0, *[1000] * 6, 1000]
    assert view["labels"]["gpu-count"] == "2"
    totals = gpu_totals(yard.cluster)
    assert (totals["total"], totals["used"], totals["free"]) == (8, 1, 7)
