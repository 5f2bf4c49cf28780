"""Shares: parts of one GPU, placed and counted in milli-GPU on GPUs of different sizes."""

import pytest

from gpuyard.messages import GrantedGpu
from gpuyard_coordinator.core import ledger
from gpuyard_coordinator.core.state import Gpu, Shape
from tests.support.agents import A100_40, A100_80, RTX_3090, RTX_4090, Card, gpu_facts
from tests.support.yard import Yard


def grant(card: Card, mib: int | None = None, percent: float | None = None) -> GrantedGpu | None:
    shape = Shape(share_mib=mib, share_core_percent=percent)
    return ledger.grant(Gpu(facts=gpu_facts("GPU-1", 0, card)), shape)


@pytest.mark.parametrize(
    ("card", "mib", "percent", "milli", "memory", "core"),
    [
        (RTX_3090, 12288, None, 500, 12288, None),
        (RTX_4090, 8192, None, 333, 8192, None),
        (A100_40, 8192, None, 200, 8192, None),
        (A100_80, 8192, None, 100, 8192, None),
        (RTX_3090, None, 50.0, 500, 12288, 50),
        (A100_80, None, 50.0, 500, 40960, 50),
        (A100_80, None, 33.3, 333, 27279, 33),
        (A100_80, None, 0.2, 2, 163, 1),
        (A100_80, None, 100.0, 1000, 81920, 100),
        (RTX_3090, 8192, 50.0, 500, 8192, 50),
        (RTX_3090, 20480, 50.0, 833, 20480, 50),
        (RTX_4090, 24564, None, 1000, 24564, None),
        (RTX_4090, 1, None, 1, 1, None),
    ],
)
def test_a_share_counts_by_the_larger_of_its_fractions(
    card: Card,
    mib: int | None,
    percent: float | None,
    milli: int,
    memory: int | None,
    core: int | None,
) -> None:
    granted = grant(card, mib, percent)

    assert granted == {"uuid": "GPU-1", "milli": milli, "memory_mib": memory, "core_percent": core}


def test_a_size_that_cannot_be_told_or_is_too_large_is_no_grant() -> None:
    unknown = Card("GPU", None, None)
    assert grant(RTX_4090, 24565) is None
    assert grant(unknown, 1) is None
    assert grant(unknown, None, 50.0) is None
    assert grant(unknown) == {
        "uuid": "GPU-1",
        "milli": 1000,
        "memory_mib": None,
        "core_percent": None,
    }


@pytest.mark.parametrize("percent", [n / 10 for n in range(1, 1001)])
def test_no_percentage_is_rounded_beyond_a_milli(percent: float) -> None:
    assert ledger.percent_milli(percent) == round(percent * 10)


def test_shares_fill_one_gpu_before_the_next_and_never_beyond() -> None:
    yard = Yard()
    yard.node("a", cards=[A100_40, RTX_4090])
    for number in range(8):
        yard.submit(f"j{number}", gpus="16GiB")
    yard.plan()

    placed = [f"j{n}" for n in range(8) if yard.states(f"j{n}") == ["assigned"]]
    assert [yard.held(id) for id in placed] == [[0], [0], [1]]
    assert yard.events("j7")[-1]["message"] == (
        "0/1 nodes fit: 1 insufficient_gpu_memory (asked 16384 MiB, most free 8192 MiB)"
    )
    gpus = yard.core_node("a").gpus.values()
    assert [gpu.free_milli for gpu in gpus] == [200, 334]
    yard.end("j0", exit_code=0)
    assert yard.plan() == 1


@pytest.mark.parametrize(
    ("sizes", "more"), [([8192] * 3, 1), ([10240, 14336], 1), ([12300], 12277), ([100] * 245, 77)]
)
def test_shares_fill_the_memory_to_the_last_mib_and_no_further(sizes: list[int], more: int) -> None:
    yard = Yard()
    yard.node("a", cards=[RTX_3090])
    for number, mib in enumerate(sizes):
        yard.submit(f"j{number}", gpus={"memory_mib": mib})
    yard.submit("more", gpus={"memory_mib": more})

    assert yard.plan() == len(sizes)
    assert yard.states("more") == ["queued"]
    yard.end("j0", exit_code=0)
    assert yard.plan() == 1, "it starts in the room of one that ended"
    yard.restart()


def test_what_is_left_of_a_shared_gpu_is_told_to_the_mib() -> None:
    yard = Yard()
    yard.node("a", cards=[RTX_3090])
    yard.submit("one", gpus={"memory_mib": 8193})
    yard.submit("two", gpus={"memory_mib": 1024, "core_percent": 50})
    yard.submit("three", gpus={"memory_mib": 20_000})
    yard.plan()

    have = yard.why("three")["nodes"][0]["reasons"][0]["have"]
    assert isinstance(have, int)
    yard.submit("four", gpus={"memory_mib": have})
    assert yard.plan() == 1
    yard.end("four", exit_code=0)
    yard.submit("five", gpus={"memory_mib": have + 1})
    assert yard.plan() == 0


def test_a_share_opens_no_gpu_while_one_that_is_shared_takes_it() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=4)
    for id, spec in (
        ("one", {"node": "b"}),
        ("two", {}),
        ("three", {}),
        ("four", {}),
        ("five", {"prefer": ["node=b"]}),
    ):
        yard.submit(id, gpus="30%", **spec)
        yard.plan()

    places = [(yard.attempt(id).node, yard.held(id)) for id in ("one", "two", "three")]
    assert places == [("b", [0])] * 3
    assert yard.attempt("four").node == "a", "then the node with the fewest free GPUs"
    assert (yard.attempt("five").node, yard.held("five")) == ("b", [1])
    yard.submit("six", gpus="10%")
    yard.plan()
    assert (yard.attempt("six").node, yard.held("six")) == ("a", [0])


def test_a_whole_gpu_is_never_granted_beside_a_share() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("part", gpus="1%")
    yard.plan()
    for number, asked in enumerate((1, "all", "device=0", "100%")):
        yard.submit(f"j{number}", gpus=asked)
    yard.plan()

    assert yard.states("j0", "j1", "j2", "j3") == ["queued"] * 4
    assert yard.events("j3")[-1]["message"] == (
        "0/1 nodes fit: 1 insufficient_gpus (asked 1, most free 0.99)"
    )


def test_where_compute_is_what_is_missing_it_is_said_in_parts_of_a_gpu() -> None:
    yard = Yard()
    yard.node("a", cards=[A100_80])
    yard.submit("one", gpus="1GiB,70%")
    yard.submit("two", gpus="1GiB,50%")
    yard.plan()

    assert yard.events("two")[-1]["message"] == (
        "0/1 nodes fit: 1 insufficient_gpus (asked 0.5, most free 0.3)"
    )


@pytest.mark.parametrize(
    ("theirs", "ours", "is_together"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, True)],
)
def test_shares_of_two_tenants_sit_together_only_where_both_allow_it(
    theirs: bool, ours: bool, is_together: bool
) -> None:
    yard = Yard()
    yard.tenant("team-a", share_across_tenants=theirs)
    yard.tenant("team-b", share_across_tenants=ours)
    yard.node("a", gpus=1)
    yard.submit("first", tenant="team-a", gpus="30%")
    yard.submit("second", tenant="team-b", gpus="30%")
    yard.submit("third", tenant="team-a", gpus="30%")
    yard.plan()

    assert yard.job("third", tenant="team-a").state == "assigned", "its own tenant's always may"
    assert (yard.job("second", tenant="team-b").state == "assigned") == is_together


def test_a_tenant_that_opens_its_gpus_lets_others_in_at_once() -> None:
    yard = Yard()
    yard.tenant("team-b", share_across_tenants=True)
    yard.node("a", gpus=1)
    yard.submit("first", tenant="team-a", gpus="30%")
    yard.plan()
    yard.submit("second", tenant="team-b", gpus="30%")
    assert yard.plan() == 0

    yard.tenant("team-a", share_across_tenants=True)
    assert yard.plan() == 1

    yard.tenant("team-a")
    yard.submit("third", tenant="team-b", gpus="30%")
    assert yard.plan() == 0, "who is there stays, nobody else comes"
    assert yard.job("second", tenant="team-b").state == "assigned"


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        ({"health": {"state": "dirty", "reason": None, "since": None}}, "gpu_dirty"),
        ({"health": {"state": "lost", "reason": None, "since": None}}, "gpu_unhealthy"),
        ({"memory_foreign_mib": 9000}, "foreign_memory"),
    ],
)
def test_a_gpu_in_a_bad_way_takes_no_share_and_says_why(
    sample: dict[str, object], code: str
) -> None:
    yard = Yard()
    yard.node("a", gpus=1).change_sample(0, **sample)
    yard.beat("a")
    yard.submit("j", gpus="8GiB")
    yard.plan()

    assert yard.events("j")[-1]["data"]["code"] == code


def test_a_cordoned_gpu_and_an_old_sample_take_no_share_and_say_why() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.cordon("a", "0")
    yard.submit("j", gpus="8GiB")
    yard.submit("k", gpus="50%", tolerate=["cordon"])
    yard.plan()
    assert yard.states("j", "k") == ["queued", "assigned"]
    assert yard.events("j")[-1]["data"]["code"] == "node_cordoned"
    yard.uncordon("a", "0")
    yard.mono += 2  # an explanation is kept for a second
    agent.sample_age_s = None
    yard.beat("a")
    yard.submit("l", gpus="8GiB")
    yard.plan()

    assert yard.events("l")[-1]["data"]["code"] == "gpu_unhealthy"


def test_shares_and_whole_gpus_are_the_same_for_the_next_leader() -> None:
    yard = Yard()
    yard.node("a", cards=[A100_80, RTX_4090])
    for id, asked in (("one", "8GiB"), ("two", "30%"), ("three", "8GiB,60%"), ("four", 1)):
        yard.submit(id, gpus=asked)
    yard.plan()
    before = [gpu.free_milli for gpu in yard.core_node("a").gpus.values()]

    yard.restart()

    assert [gpu.free_milli for gpu in yard.core_node("a").gpus.values()] == before


def test_a_mig_instance_is_no_place_for_a_share() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.facts["gpus"][0]["mig"] = {"profile": "1g.10gb", "parent": "GPU-1"}
    agent.generation += 1
    yard.beat("a")
    yard.submit("j", gpus="1GiB")
    yard.plan()

    assert "no known node could ever hold it" in yard.events("j")[-1]["message"]
