"""Tenants' hard limits: never exceeded; what waits for them is let go in the turn of a release."""

from typing import Any

import pytest

from gpuyard_coordinator import reads
from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.cluster import Use
from gpuyard_coordinator.core.shapes import Shape
from tests.support.agents import A100_40, A100_80, RTX_4090
from tests.support.yard import Yard


def yard_of(gpus: int = 8, **document: Any) -> Yard:
    yard = Yard()
    yard.tenant(**document)
    yard.node("a", gpus=gpus)
    return yard


def test_four_of_five_jobs_run_and_the_fifth_starts_with_the_release() -> None:
    yard = yard_of(limits={"gpus": 4})
    for number in range(5):
        yard.submit(f"j{number}", gpus=1)
    yard.plan()
    assert yard.states("j3", "j4") == ["assigned", "queued"]
    event = yard.events("j4")[-1]
    assert event["data"] == {"code": "quota_exceeded"}
    assert event["message"] == "quota: gpus of tenant default: 4 of 4 used, 1 asked"
    verdict = yard.why("j4")["verdict"]
    assert verdict is not None and verdict["limit"] == {
        "scope": "tenant default",
        "name": "gpus",
        "used": 4,
        "asked": 1,
        "max": 4,
    }

    yard.end("j0", exit_code=0)

    assert yard.plan() == 1, "in the same turn"
    assert yard.states("j4") == ["assigned"]


@pytest.mark.parametrize(
    ("document", "spec", "runs", "words"),
    [
        (
            {"limits": {"running_jobs": 2}},
            {"gpus": 0},
            2,
            "running_jobs of tenant default: 2 of 2 used, 1 asked",
        ),
        (
            {"limits": {"gpu_memory_gib": 50}},
            {"gpus": 1},
            2,
            "gpu_memory_gib of tenant default: 47.9766 of 50 used, 23.9883 asked",
        ),
        (
            {"limits": {"gpu_memory_gib": 20}},
            {"gpus": "8GiB"},
            2,
            "gpu_memory_gib of tenant default: 16 of 20 used, 8 asked",
        ),
        (
            {"limits": {"gpus": 0.7}},
            {"gpus": "8GiB"},
            2,
            "gpus of tenant default: 0.666 of 0.7 used, 0.333 asked",
        ),
        (
            {"limits": {"gpus": 1}},
            {"gpus": "33.3%"},
            3,
            "gpus of tenant default: 0.999 of 1 used, 0.333 asked",
        ),
    ],
)
def test_each_limit_lets_so_many_run_and_names_itself(
    document: dict[str, Any], spec: dict[str, Any], runs: int, words: str
) -> None:
    yard = yard_of(**document)
    for number in range(5):
        yard.submit(f"j{number}", **spec)

    assert yard.plan() == runs
    assert yard.events("j4")[-1]["message"] == f"quota: {words}"
    yard.end("j1", exit_code=0)
    assert yard.plan() == 1
    yard.check_replay()
    yard.restart()
    yard.beat("a")
    assert yard.plan() == 0


def test_a_large_gpu_that_the_limit_does_not_allow_leaves_the_small_one() -> None:
    yard = Yard()
    yard.tenant(limits={"gpu_memory_gib": 60})
    yard.node("big", cards=[A100_80])
    yard.node("wide", cards=[A100_80, RTX_4090, A100_40])
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=1)
    yard.submit("l", gpus=1)
    yard.plan()

    assert (yard.attempt("j").node, yard.held("j")) == ("wide", [1])
    assert yard.states("k", "l") == ["queued", "queued"]
    assert yard.events("k")[-1]["message"] == (
        "0/2 nodes fit: 2 quota_on_model (gpu_memory_gib is 60)"
    )


@pytest.mark.parametrize(
    "limits", [{"gpus": 2}, {"running_jobs": 2}, {"gpus": 2, "gpu_memory_gib": 1000}]
)
@pytest.mark.parametrize("models", [None, ["*4090"]])
@pytest.mark.parametrize("gpus", [1, "all", "8GiB", "50%,8GiB"])
def test_a_limit_that_binds_wherever_a_job_goes_is_no_nodes_fault(
    limits: dict[str, int], models: list[str] | None, gpus: int | str
) -> None:
    yard = Yard()
    yard.node("full", gpus=2)
    yard.submit("r0", gpus=1)
    yard.submit("r1", gpus=1)
    yard.plan()
    for name in ("a", "b"):
        yard.node(name, gpus=2)
    yard.tenant(limits=limits, models=models)
    yard.submit("j", gpus=gpus)
    yard.plan()

    why = yard.why()

    assert why["verdict"] is not None and why["verdict"]["code"] == "quota_exceeded"
    assert {node["name"]: node["fits"] for node in why["nodes"]} == {
        "a": True,
        "b": True,
        "full": False,
    }
    assert "quota_on_model" not in why["verdict"]["counts"]


def test_nodes_whose_gpus_the_limit_does_not_allow_say_so() -> None:
    yard = Yard()
    yard.tenant(limits={"gpu_memory_gib": 30})
    yard.node("big", cards=[A100_80])
    yard.node("small", cards=[RTX_4090])
    yard.submit("theirs", tenant="other", gpus=1, node="small")
    yard.submit("j", gpus=1)
    yard.plan()

    assert yard.events("j")[-1]["message"] == (
        "0/2 nodes fit: 1 insufficient_gpus (asked 1, most free 0), "
        "1 quota_on_model (gpu_memory_gib is 30)"
    )
    verdict = yard.why()["verdict"]
    assert verdict is not None and verdict["limit"] is not None
    assert (verdict["limit"]["name"], verdict["limit"]["asked"]) == ("gpu_memory_gib", 80)
    yard.end("theirs", tenant="other", exit_code=0)
    assert yard.plan() == 1


def test_a_memory_share_counts_by_the_gpu_it_lands_on() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 0.25})
    yard.node("big", cards=[A100_80])
    yard.node("small", cards=[RTX_4090])
    for id in ("j", "k", "l"):
        yard.submit(id, gpus="8GiB")
    yard.plan()

    assert [yard.attempt(id).node for id in ("j", "k")] == ["big", "big"], "0.1 each, not 0.333"
    assert yard.events("l")[-1]["message"] == (
        "quota: gpus of tenant default: 0.2 of 0.25 used, 0.1 asked"
    )


def test_all_of_a_node_under_a_cap_that_every_node_exceeds_is_impossible_and_says_why() -> None:
    yard = Yard()
    yard.tenant(per_job={"max_gpus": 2})
    yard.node("eight", gpus=8)
    yard.node("four", gpus=4)
    yard.submit("j", gpus="all")
    yard.plan()

    words = (
        "quota: per_job.max_gpus of tenant default: at most 2, 4 asked: "
        "no known node that could hold it has less"
    )
    assert yard.events("j")[-1]["message"] == words
    verdict = yard.why()["verdict"]
    assert verdict is not None and (verdict["message"], verdict["impossible_now"]) == (words, True)
    yard.node("two", gpus=2)
    assert yard.plan() == 1


def test_a_cap_that_only_the_free_node_exceeds_is_named() -> None:
    yard = Yard()
    yard.tenant(per_job={"max_gpus": 2})
    yard.node("large", gpus=4)
    yard.node("small", gpus=1)
    yard.submit("theirs", tenant="other", gpus=1, node="small")
    yard.submit("j", gpus="all")
    yard.plan()

    assert yard.events("j")[-1]["message"].endswith("1 quota_on_model (per_job.max_gpus is 2)")
    verdict = yard.why()["verdict"]
    assert verdict is not None and verdict["limit"] is not None
    assert (verdict["limit"]["used"], verdict["limit"]["asked"]) == (None, 4)
    yard.end("theirs", tenant="other", exit_code=0)
    assert yard.plan() == 1


@pytest.mark.parametrize(("most", "is_placed"), [(8, True), (4, False), (0.3, False)])
def test_the_cap_of_each_job_holds_for_all_and_for_shares(most: float, is_placed: bool) -> None:
    yard = yard_of(per_job={"max_gpus": most})
    if most >= 1:
        yard.submit("j", gpus="all")
        words = "at most 4, 8 asked: no known node that could hold it has less"
    else:
        yard.submit("j", gpus="8GiB")
        words = "at most 0.3, 0.333 asked; more than it may ever have"
    yard.plan()

    assert (yard.states("j") == ["assigned"]) == is_placed
    if not is_placed:
        assert yard.events("j")[-1]["message"] == (
            f"quota: per_job.max_gpus of tenant default: {words}"
        )
        verdict = yard.why()["verdict"]
        assert verdict is not None and verdict["impossible_now"]


def test_a_lowered_limit_ends_nothing_and_is_shown_as_exceeded() -> None:
    yard = yard_of(limits={"gpus": 4})
    for number in range(4):
        yard.submit(f"j{number}", gpus=1)
    yard.plan()

    yard.tenant(limits={"gpus": 2, "running_jobs": 3, "gpu_memory_gib": 10})

    assert yard.states("j0", "j1", "j2", "j3") == ["assigned"] * 4
    view = reads.show_tenant(yard.cluster, "default")
    assert view["over"] == ["gpus", "gpu_memory_gib", "running_jobs"]
    assert view["used"]["gpus"] == 4 and view["used"]["running_jobs"] == 4
    yard.submit("next", gpus=1)
    for number in range(3):
        assert yard.plan() == 0
        yard.end(f"j{number}", exit_code=0)
    yard.tenant(limits={"gpus": 2})
    assert yard.plan() == 1
    assert reads.show_tenant(yard.cluster, "default")["over"] == []


def test_a_queue_above_its_lowered_limit_waits_on_and_takes_no_more() -> None:
    yard = Yard()
    for number in range(3):
        yard.submit(f"j{number}")
    yard.tenant(limits={"queued_jobs": 1})

    assert reads.show_tenant(yard.cluster, "default")["over"] == ["queued_jobs"]
    assert yard.submit("next").error is not None
    yard.node("a")
    assert yard.plan() == 3


def test_limits_raised_or_removed_start_what_waited() -> None:
    yard = yard_of(limits={"gpus": 1})
    for number in range(3):
        yard.submit(f"j{number}", gpus=1)
    assert yard.plan() == 1
    yard.tenant(limits={"gpus": 2})
    assert yard.plan() == 1
    yard.tenant()
    assert yard.plan() == 1


def test_one_tenants_limit_is_not_anothers() -> None:
    yard = yard_of(limits={"gpus": 1})
    yard.submit("mine", gpus=2)
    for number in range(3):
        yard.submit(f"j{number}", gpus=1)
        yard.submit(f"j{number}", tenant="other", gpus=1)

    assert yard.plan() == 4


def test_jobs_without_gpus_run_beside_an_exhausted_gpu_limit() -> None:
    yard = yard_of(limits={"gpus": 1, "gpu_memory_gib": 24})
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=1)
    yard.submit("cpu", cpus=1)
    yard.plan()

    assert yard.states("j", "k", "cpu") == ["assigned", "queued", "assigned"]


def test_a_kept_document_of_another_version_limits_what_it_says() -> None:
    use, ask = Use(milli=1000), quota.least_ask(Shape(gpus=1))
    for document in ({}, {"limits": None}, {"limits": {}, "per_job": {"max_gpus": 4}}):
        assert quota.limit_hit("t", document, use, ask) is None
        assert quota.refusal("t", document, {"max_runtime": "1h"}, Shape(gpus=1), 0) is None
    hit = quota.limit_hit("t", {"limits": {"gpus": 1, "new": 5}}, use, ask)
    assert hit is not None and hit.name == "gpus"
