"""Where a job lands by what it selects: every line of table M on three nodes that differ."""

from typing import Any

import pytest

from gpuyard.model.where_flags import from_cuda, from_gpu_memory, from_gpu_model
from gpuyard_coordinator.core import selection
from tests.support.agents import A100_80, H200, RTX_4090, Card, gpu_uuid
from tests.support.yard import Yard

NEVER = "; no known node could ever hold it"


def fleet() -> Yard:
    """`a100`: two of 80 GB, CUDA 12.2; `mixed`: 4090, H200, 4090, 12.8; `rtx`: two 4090, 11.8."""
    yard = Yard()
    yard.node("a100", cards=[A100_80] * 2, cuda="12.2", driver="535.183.01", labels={"zone": "a"})
    cards = [RTX_4090, H200, RTX_4090]
    yard.node("mixed", cards=cards, cuda="12.8", driver="570.86.15", labels={"zone": "b"})
    yard.node("rtx", cards=[RTX_4090] * 2, cuda="11.8", driver="520.61.05")
    return yard


def place(yard: Yard, **spec: Any) -> tuple[str, list[int]]:
    """(node, indexes) that a job of its own gets."""
    yard.submit("j", **spec)
    yard.plan()
    return yard.attempt().node, yard.held()


def waits(yard: Yard, **spec: Any) -> str:
    yard.submit("j", **spec)
    yard.plan()
    assert yard.states("j") == ["queued"]
    message: str = yard.events("j")[-1]["message"]
    assert yard.why()["verdict"]["message"] == message  # type: ignore[index]  # it waits
    return message


@pytest.mark.parametrize(
    ("gpus", "node", "indexes"),
    [
        (None, "a100", []),
        ("0", "a100", []),
        ("none", "a100", []),
        ("1", "mixed", [0]),
        ("2", "a100", [0, 1]),
        ("3", "mixed", [0, 1, 2]),
        ("all", "a100", [0, 1]),
        ("device=0,1", "a100", [0, 1]),
        ('"device=0,1"', "a100", [0, 1]),
        ("device=2", "mixed", [2]),
        ("0,1,2", "mixed", [0, 1, 2]),
        (f"device={gpu_uuid('rtx', 1)}", "rtx", [1]),
        (gpu_uuid("mixed", 1)[:12], "mixed", [1]),
        ("8GiB", "mixed", [0]),
        ("50%", "mixed", [0]),
        ("100GiB", "mixed", [1]),
        ("8GiB,50%", "mixed", [0]),
    ],
)
def test_each_form_of_gpus(gpus: str | None, node: str, indexes: list[int]) -> None:
    assert place(fleet(), gpus=gpus) == (node, indexes)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("4", "3 insufficient_gpus (asked 4, most free 3)" + NEVER),
        ("device=3", "3 where_mismatch" + NEVER),
        ("GPU-ffffffff", "3 where_mismatch" + NEVER),
        ("200GiB", "3 insufficient_gpu_memory (asked 204800 MiB, most free 143771 MiB)" + NEVER),
    ],
)
def test_what_no_node_has_waits_with_counts(gpus: str, words: str) -> None:
    assert waits(fleet(), gpus=gpus) == f"0/3 nodes fit: {words}"


@pytest.mark.parametrize(
    ("lines", "count", "node", "indexes"),
    [
        (["gpu-name=NVIDIA-H200"], 1, "mixed", [1]),
        (["gpu-name=nvidia-h200|*T4"], 1, "mixed", [1]),
        (["gpu-name=*4090"], 2, "rtx", [0, 1]),
        (["gpu-name!=*4090", "gpu-memory<100"], 1, "a100", [0]),
        (["gpu-memory>=100"], 1, "mixed", [1]),
        (["gpu-memory>24GB", "gpu-memory<=80GiB"], 1, "a100", [0]),
        (["gpu-cuda-version>=12.4"], 1, "mixed", [0]),
        (["gpu-cuda-version=12", "gpu-cuda-version<12.4"], 1, "a100", [0]),
        (["gpu-driver-version=520"], 1, "rtx", [0]),
        (["gpu-driver-version>=535.183", "gpu-driver-version<570"], 1, "a100", [0]),
        (["compute-capability>=9"], 1, "mixed", [1]),
        (["compute-capability=8.9"], 1, "mixed", [0]),
        (["zone=b"], 1, "mixed", [0]),
        (["zone!=a"], 1, "mixed", [0]),
        (["zone"], 3, "mixed", [0, 1, 2]),
        (["!zone"], 1, "rtx", [0]),
        (["node=m*"], 1, "mixed", [0]),
        (["node!=a100|mixed"], 1, "rtx", [0]),
        ([f"gpu-uuid={gpu_uuid('mixed', 2)}"], 1, "mixed", [2]),
        (["gpu-count>=3"], 1, "mixed", [0]),
        (["gpu-count.NVIDIA-H200>=1"], 1, "mixed", [0]),
        (["gpu-count.NVIDIA-GeForce-RTX-4090=2", "gpu-name=*4090"], 2, "mixed", [0, 2]),
        (["zone=b", "gpu-memory<=24"], 2, "mixed", [0, 2]),
        (["zone=b"], 0, "mixed", []),
        (["gpu-memory>=100"], 0, "mixed", []),
        (["gpu-runtime=nvidia", "gpu-name=*H200"], 1, "mixed", [1]),
        ([from_gpu_model("H200")], 1, "mixed", [1]),
        ([from_gpu_model("RTX 4090")], 2, "rtx", [0, 1]),
        ([from_gpu_memory("80")], 1, "mixed", [1]),
        ([from_gpu_memory("<=24")], 1, "mixed", [0]),
        ([from_cuda("12.5")], 1, "mixed", [0]),
    ],
)
def test_each_line_of_where(lines: list[str], count: int, node: str, indexes: list[int]) -> None:
    assert place(fleet(), where=lines, gpus=count) == (node, indexes)


@pytest.mark.parametrize(
    ("lines", "count", "words"),
    [
        (
            ["gpu-name=NVIDIA-H200"],
            2,
            "1 insufficient_gpus (asked 2, most free 1), 2 where_mismatch",
        ),
        (["gpu-memory>=80"], 3, "1 where_mismatch, 2 insufficient_gpus (asked 3, most free 2)"),
        (["gpu-name=mixed"], 1, "3 where_mismatch"),
        (["gpu-cuda-version>=13"], 1, "3 where_mismatch"),
        (["zone=c"], 0, "3 where_mismatch"),
        (["rack"], 1, "3 where_mismatch"),
        (["gpu-memory>=200"], 0, "3 where_mismatch"),
        (["compute-capability<8"], 1, "3 where_mismatch"),
    ],
)
def test_lines_that_nothing_meets_wait_with_counts(
    lines: list[str], count: int, words: str
) -> None:
    expected = f"0/3 nodes fit: {words}; no known node could ever hold it"
    assert waits(fleet(), where=lines, gpus=count) == expected


def test_a_line_that_is_met_where_all_is_taken_may_still_come_true() -> None:
    yard = fleet()
    yard.submit("first", where=["gpu-name=NVIDIA-H200"], gpus=1)

    words = waits(yard, where=["gpu-name=NVIDIA-H200"], gpus=1)

    assert words == "0/3 nodes fit: 1 insufficient_gpus (asked 1, most free 0), 2 where_mismatch"
    yard.end("first", exit_code=0)
    assert yard.plan() == 1 and yard.held() == [1]


def test_all_is_every_gpu_of_a_node_that_meets_the_lines_whole() -> None:
    yard = fleet()
    words = waits(yard, where=["gpu-name=NVIDIA-H200"], gpus="all")

    assert words == "0/3 nodes fit: 3 where_mismatch; no known node could ever hold it"
    assert place(fleet(), where=["gpu-memory>=80"], gpus="all") == ("a100", [0, 1])


def test_all_waits_where_one_gpu_is_taken_and_says_how_many_are_left() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("one", gpus=1)
    yard.plan()

    assert waits(yard, gpus="all") == "0/1 nodes fit: 1 insufficient_gpus (asked 4, most free 3)"


def test_a_node_without_gpus_has_none_for_all() -> None:
    yard = Yard()
    yard.node("a")

    words = waits(yard, gpus="all")

    assert words.startswith("0/1 nodes fit: 1 insufficient_gpus (asked 1, most free 0)")


@pytest.mark.parametrize(
    ("prefer", "count", "node", "indexes"),
    [
        (["zone=b"], 1, "mixed", [0]),
        (["gpu-name=NVIDIA-H200"], 1, "mixed", [1]),
        (["gpu-name=*4090"], 2, "rtx", [0, 1]),
        (["gpu-name=*4090", "zone=b"], 2, "mixed", [0, 2]),
        (["gpu-memory>=100"], 2, "a100", [0, 1]),
        (["gpu-memory>=500", "zone=nowhere"], 1, "mixed", [0]),
        (["gpu-memory>=100"], "8GiB", "mixed", [1]),
        (["gpu-memory>=100"], 0, "mixed", []),
        (["!zone"], 3, "mixed", [0, 1, 2]),
    ],
)
def test_what_is_preferred_is_taken_where_it_fits(
    prefer: list[str], count: object, node: str, indexes: list[int]
) -> None:
    assert place(fleet(), prefer=prefer, gpus=count) == (node, indexes)


def test_labels_that_change_move_what_waits() -> None:
    yard = fleet()
    waits(yard, where=["rack=7"], gpus=1)
    agent = yard.agents["rtx"]
    agent.facts["labels"]["rack"] = "7"
    agent.generation += 1
    yard.beat("rtx")
    yard.plan()

    assert yard.attempt().node == "rtx"


def test_lines_of_a_gpu_that_does_not_name_itself_are_not_met() -> None:
    yard = Yard()
    yard.node("a", cards=[Card(None, None, None)])

    assert "where_mismatch" in waits(yard, where=["gpu-name=*"], gpus=1)
    assert place_other(yard) == ["assigned"]


def place_other(yard: Yard) -> list[str]:
    yard.submit("other", where=["gpu-name!=NVIDIA-H200"], gpus=1)
    yard.plan()
    return yard.states("other")


@pytest.mark.parametrize("reason", [None, "maintenance", "Maintenance"])
@pytest.mark.parametrize(
    ("tolerate", "takes"),
    [
        ([], set[str | None]()),
        (["cordon"], {None, "maintenance", "Maintenance"}),
        (["cordon:maintenance"], {"maintenance", "Maintenance"}),
        (["cordon:repair"], set[str | None]()),
    ],
)
@pytest.mark.parametrize("gpu", [None, "0"])
def test_a_cordon_keeps_off_what_does_not_tolerate_it(
    reason: str | None, tolerate: list[str], takes: set[str | None], gpu: str | None
) -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.cordon("a", gpu, reason=reason)
    yard.submit("j", gpus=1, tolerate=tolerate)
    yard.plan()

    assert yard.states("j") == ["assigned" if reason in takes else "queued"]
    if reason not in takes:
        assert yard.events("j")[-1]["data"]["code"] == "node_cordoned"


def test_a_cordon_that_is_tolerated_does_not_hide_that_the_node_is_not_well() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.cordon("a")
    agent.reasons = [{"code": "disk_low", "message": "", "gpu": None, "since": None}]
    yard.beat("a")
    yard.submit("j", tolerate=["cordon"])
    yard.plan()
    assert yard.states("j") == ["queued"]
    assert yard.events("j")[-1]["data"]["code"] == "node_unready"

    agent.reasons = []
    yard.beat("a")

    assert yard.plan() == 1


def test_a_cordoned_gpu_is_passed_over_and_the_others_are_not() -> None:
    yard = Yard()
    yard.node("a", gpus=3)
    yard.cordon("a", "1")
    yard.submit("j", gpus=2)
    yard.submit("k", gpus=1)
    yard.plan()

    assert yard.held("j") == [0, 2]
    assert yard.states("k") == ["queued"]
    assert yard.events("k")[-1]["data"]["code"] == "node_cordoned"


def test_a_drain_is_tolerated_by_nobody() -> None:
    yard = Yard()
    yard.node("a")
    yard.drain("a")
    yard.submit("j", tolerate=["cordon", "cordon:moving"])

    assert yard.plan() == 0


@pytest.mark.parametrize(
    ("models", "node", "indexes"),
    [
        (["NVIDIA-H200"], "mixed", [1]),
        (["nvidia-h*"], "mixed", [1]),
        (["*4090"], "mixed", [0]),
        (["*4090", "*A100*"], "mixed", [0]),
    ],
)
def test_a_tenant_gets_its_models_alone(models: list[str], node: str, indexes: list[int]) -> None:
    yard = fleet()
    yard.tenant(models=models)

    assert place(yard, gpus=1) == (node, indexes)


def test_a_model_that_is_not_the_tenants_is_said_to_be_so() -> None:
    yard = fleet()
    yard.tenant(models=["NVIDIA-H200"])
    assert waits(yard, gpus=2) == (
        "0/3 nodes fit: 1 insufficient_gpus (asked 2, most free 1), 2 model_not_allowed; "
        "no known node could ever hold it"
    )
    yard.submit("k", gpus="all")
    yard.plan()
    assert yard.events("k")[-1]["data"]["code"] == "model_not_allowed"
    yard.submit("l")
    yard.plan()
    assert yard.states("l") == ["assigned"], "a job without GPUs uses none"

    yard.tenant()

    assert yard.plan() == 2


def test_a_node_remembers_a_bounded_number_of_selections() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    for number in range(selection.MASKS_KEPT + 10):
        yard.try_submit(where=[f"rack!={number}"])

    assert len(yard.core_node("a").masks) <= selection.MASKS_KEPT


@pytest.mark.parametrize("text", ["²", "9" * 5000, "GPU", "-1", "0x1"])
def test_odd_texts_name_no_gpu(text: str) -> None:
    yard = Yard()
    yard.node("a", gpus=2)

    assert selection.find_ids(yard.core_node("a"), [text]) is None
