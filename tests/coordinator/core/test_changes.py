"""The smallest changes that would start a waiting job: each is offered only where it is enough."""

from typing import Any

import pytest

from gpuyard.cli.why import text
from gpuyard.model.where_flags import from_gpu_model
from gpuyard_coordinator.core import changes, ends
from tests.coordinator.core.following import follow
from tests.coordinator.core.why_scenes import foreign, waiting
from tests.support.agents import H200, RTX_4090
from tests.support.yard import Yard


def offered(yard: Yard, id: str = "j") -> list[str]:
    """The texts of what is offered, each tried."""
    found = yard.why(id)["changes"]
    for change in found:
        follow(yard, change, id)
    return [change["text"] for change in found]


def test_the_fewest_jobs_are_waited_for() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.node("b", gpus=4)
    for id, gpus in (("a1", 1), ("a2", 1), ("a3", 2)):
        yard.submit(id, gpus=gpus, node="a")
    yard.submit("b1", gpus=3, node="b", max_runtime="2h")
    yard.plan()
    yard.start("b1")
    waiting(yard, gpus=4)

    assert "wait for the end of job b1 of mia" in offered(yard)[1]
    yard.cordon("b")
    assert offered(yard)[0].startswith("wait for the ends of jobs a3, ")


def test_two_jobs_of_one_id_in_two_tenants_are_two() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("same", gpus=1)
    yard.submit("same", tenant="team-b", gpus=1)
    yard.plan()
    waiting(yard, gpus=2)

    (change,) = yard.why()["changes"]
    assert sorted(job["tenant"] for job in change["jobs"]) == ["default", "team-b"]
    follow(yard, change)


def test_a_limit_that_two_ends_ease_names_both() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 2})
    yard.node("a", gpus=8)
    for id in ("one", "two"):
        yard.submit(id, gpus=1)
    yard.plan()
    waiting(yard, gpus=2)

    assert offered(yard) == [
        "wait for the ends of jobs one, two",
        "raise limits.gpus of tenant default by 2",
    ]


def test_a_limit_on_a_full_yard_is_not_offered_to_be_raised() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 1})
    yard.node("a", gpus=2)
    yard.submit("mine", gpus=1)
    yard.submit("theirs", tenant="team-b", gpus=1)
    yard.plan()
    waiting(yard, gpus=1)

    assert offered(yard) == ["wait for the end of job mine of mia"]


def test_two_limits_that_bind_together_are_raised_together() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 1, "running_jobs": 1})
    yard.node("a", gpus=2)
    yard.submit("one", gpus=1)
    yard.plan()
    waiting(yard, gpus=1)

    assert offered(yard) == [
        "wait for the end of job one of mia",
        " and ".join(
            f"raise limits.{name} of tenant default by 1" for name in ("gpus", "running_jobs")
        ),
    ]


def test_more_than_a_job_may_ever_have_is_raised_or_made_smaller() -> None:
    yard = Yard()
    yard.tenant(per_job={"max_gpus": 2})
    yard.node("a", gpus=4)
    waiting(yard, gpus="all")

    assert offered(yard) == [
        "ask for 2 GPUs or fewer",
        "raise per_job.max_gpus of tenant default by 2",
    ]


@pytest.mark.parametrize(
    ("holder", "spec", "expected"),
    [
        (1, {"gpus": "all"}, "ask for 3 GPUs or fewer"),
        (3, {"gpus": 2}, "ask for 1 GPU"),
        ("device=0,1", {"gpus": "device=0"}, "ask for 1 GPU without naming it"),
        ("device=0", {"gpus": "device=0,1"}, "ask for 2 GPUs without naming them"),
        (4, {"gpus": 1}, "wait for the end of job holder of mia"),
    ],
)
def test_a_smaller_or_looser_request(holder: object, spec: dict[str, Any], expected: str) -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("holder", gpus=holder)
    yard.plan()
    waiting(yard, **spec)

    assert offered(yard)[0] == expected


def test_a_smaller_share_by_memory_and_by_compute() -> None:
    yard = Yard()
    yard.node("a", cards=[RTX_4090])
    yard.submit("holder", gpus="70%")
    yard.plan()
    waiting(yard, gpus="50%")
    assert offered(yard)[0] == "ask for 30% of a GPU or fewer"
    yard.submit("k", gpus="10GiB")
    yard.plan()
    assert offered(yard, "k")[0] == "ask for 7370 MiB of a GPU or fewer"
    yard.submit("l", gpus="1GiB,50%")
    yard.plan()
    assert offered(yard, "l")[0] == "ask for 30% of a GPU or fewer"


def test_a_line_and_a_name_that_alone_keep_a_job_off() -> None:
    yard = Yard()
    yard.node("a", gpus=1, labels={"zone": "a"})
    yard.node("b", gpus=1, labels={"zone": "b"})
    yard.submit("j", gpus=1, node="a", where=["zone=b"])
    yard.submit("k", gpus=1, node="ghost")
    yard.submit("l", gpus=1, where=["zone=c", "rack"])
    for id in "jkl":
        assert yard.states(id) == ["queued"]

    assert offered(yard, "j") == ["drop the line zone=b", "do not ask for node a"]
    assert offered(yard, "k") == ["do not ask for node ghost"]
    assert offered(yard, "l") == ["drop the line zone=c and drop the line rack"]


def test_nodes_that_need_more_ends_than_the_best_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = Yard()
    for number in range(20):
        yard.node(f"n{number:02}", gpus=4)
    for number in range(20):
        yard.submit(f"pair{number:02}", gpus=2, node=f"n{number:02}")
        for half in range(2):
            yard.submit(f"one{number:02}-{half}", gpus=1, node=f"n{number:02}")
    yard.plan()
    waiting(yard, gpus=4)
    looks: list[int] = []
    enough = ends._enough

    def count(*arguments: Any) -> Any:
        looks.append(1)
        return enough(*arguments)

    monkeypatch.setattr(ends, "_enough", count)

    (change,) = (c for c in yard.why()["changes"] if c["kind"] == "wait_for")
    assert len(change["jobs"]) == 3 and len(looks) == 1
    follow(yard, change)


def test_a_cordon_is_offered_to_be_lifted_only_where_that_is_enough() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.cordon("a")
    yard.cordon("b")
    yard.cordon("b", "0")
    agent.change_sample(0, health={"state": "lost", "reason": None, "since": None})
    yard.beat("a")

    assert offered(waiting(yard, gpus=1)) == []


def test_a_process_is_named_only_where_its_end_is_enough() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    agent.change_sample(0, memory_foreign_mib=9000, foreign=[foreign(1, 4500), foreign(2, 4500)])
    agent.change_sample(1, memory_foreign_mib=9000, foreign=[foreign(3, 9000)])
    yard.beat("a")
    waiting(yard, gpus=1)

    assert offered(yard) == ["end process 3 of bob on GPU 1 of a"]


def test_at_most_five_changes_are_offered() -> None:
    yard = Yard()
    for number in range(9):
        yard.node(f"n{number}", gpus=1)
        yard.cordon(f"n{number}")

    assert len(offered(waiting(yard, gpus=1))) == changes.MOST_CHANGES


def test_a_yard_without_nodes_has_nothing_to_offer() -> None:
    found = waiting(Yard(), gpus=1).why()

    assert found["verdict"] is not None
    assert (found["verdict"]["code"], found["nodes"], found["changes"]) == ("node_unready", [], [])


def test_another_model_is_offered_in_place_of_one_that_is_taken() -> None:
    yard = Yard()
    yard.node("a", cards=[H200])
    yard.node("b", cards=[RTX_4090])
    yard.submit("holder", gpus=1, node="a")
    yard.plan()
    waiting(yard, gpus=1, where=[from_gpu_model("H200"), "gpu-memory>=20"])

    assert offered(yard) == [
        f"ask for gpu-name=NVIDIA-GeForce-RTX-4090 instead of {from_gpu_model('H200')}",
        "wait for the end of job holder of mia",
    ]
    as_text = list(text(yard.why(), rows=None, width=None))
    assert as_text[-2] == (
        "  ask for --gpu-model NVIDIA-GeForce-RTX-4090 instead of --gpu-model H200"
    ), as_text


def test_a_priority_that_stops_preemptible_jobs_is_the_least_that_does() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("high", gpus=1, priority=70, preemptible=True)
    yard.submit("low", gpus=1, priority=55, preemptible=True)
    yard.plan()
    yard.spend(yard.cluster.settings.min_runtime_s + 1)
    waiting(yard, gpus=1)

    assert offered(yard)[0] == "ask for priority 56 or more: low is stopped for it on a"
    yard.submit("k", gpus=2)
    yard.plan()
    assert offered(yard, "k")[0] == "ask for priority 71 or more: low, high are stopped for it on a"


def test_no_priority_helps_against_jobs_that_are_not_preemptible_or_of_a_better_tenant() -> None:
    yard = Yard()
    yard.tenant("vip", priority=60)
    yard.node("a", gpus=2)
    yard.submit("fixed", gpus=1)
    yard.submit("theirs", tenant="vip", gpus=1, priority=0, preemptible=True)
    yard.plan()
    yard.spend(yard.cluster.settings.min_runtime_s + 1)
    waiting(yard, gpus=1)

    assert [change["kind"] for change in yard.why()["changes"]] == ["wait_for"]


def test_of_jobs_whose_ends_would_do_the_one_that_ends_first_is_named_with_the_time() -> None:
    yard = Yard()
    for node, limit in (("a", None), ("b", "3h"), ("c", "1h")):
        yard.node(node, gpus=1)
        yard.submit(f"on-{node}", gpus=1, node=node, max_runtime=limit, stop_grace="5s")
    yard.plan()
    for node in "abc":
        yard.start(f"on-{node}")
    waiting(yard, gpus=1)

    found = yard.why()
    (change,) = found["changes"]
    at = yard._at(3600 + 5 + 5)
    assert (change["jobs"], change["expected_at"]) == ([{"tenant": "default", "id": "on-c"}], at)
    assert change["text"] == f"wait for the end of job on-c of mia, until {at} at the latest"
    follow(yard, change)
