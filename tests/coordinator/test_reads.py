"""What readers are shown of the state: ids found, pages, verdicts, nodes and totals."""

import copy
from typing import Any

import pytest

from gpuyard.errors import RequestError, UnknownThing
from gpuyard.views import JobView
from gpuyard_coordinator import reads
from gpuyard_coordinator.pages import fill
from gpuyard_coordinator.reads import Explainer
from tests.support.yard import Yard


def view(yard: Yard, id: str = "j") -> JobView:
    return reads.live_job(yard.cluster, yard.job(id), Explainer(yard.cluster))


def yard_with_jobs(count: int) -> Yard:
    yard = Yard()
    for number in range(count):
        yard.submit(f"job{number:03}", name=f"name{number}")
    return yard


def test_a_job_is_found_by_id_unique_prefix_and_unique_name() -> None:
    yard = yard_with_jobs(12)
    yard.node("a")
    yard.submit("done-job")
    yard.plan()
    yard.end("done-job", exit_code=0)

    assert reads.resolve(yard.cluster, "default", "job003") == ("default", "job003")
    assert reads.resolve(yard.cluster, "default", "name4") == ("default", "job004")
    assert reads.resolve(yard.cluster, "default", "done-") == ("default", "done-job")
    assert reads.resolve(yard.cluster, "default", "job") is None, "a prefix has four characters"
    assert reads.resolve(yard.cluster, "other", "job003") is None
    with pytest.raises(RequestError, match="job00 may mean job000, job001"):
        reads.resolve(yard.cluster, "default", "job00")


def test_a_queued_job_shows_its_place_and_why_it_waits() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("first", gpus=2)
    yard.submit("j", gpus=3)

    shown = view(yard)

    assert shown["queue_position"] == 2
    assert shown["verdict"] == {
        "code": "insufficient_gpus",
        "message": "0/1 nodes fit: 1 insufficient_gpus (asked 3, most free 1); "
        "no known node could ever hold it",
        "since": yard.job().submitted_at,
    }
    assert (shown["node"], shown["gpus"]) == (None, [])


def test_a_job_that_waits_again_waits_since_its_attempt_ended() -> None:
    yard = Yard()
    yard.node("a")
    yard.submit("j", retries=1)
    yard.plan()
    yard.start()
    yard.mono += 100
    yard.end(reason="runtime_lost")

    verdict = view(yard)["verdict"]
    assert verdict and verdict["since"] == yard.now.at > yard.job().submitted_at
    yard.restart()
    again = view(yard)["verdict"]
    assert again and again["since"] == verdict["since"]


def test_a_running_job_shows_its_gpus_and_how_its_node_is() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("j", gpus=2)
    yard.plan()
    yard.start()
    yard.tick(31)

    shown = view(yard)

    assert (shown["state"], shown["node"], shown["node_state"]) == ("running", "a", "lost")
    assert [gpu["index"] for gpu in shown["gpus"]] == [0, 1]
    assert shown["gpus"][0]["enforced"] == "exclusive"
    assert (shown["milli_gpu"], shown["verdict"], shown["queue_position"]) == (2000, None, None)


def test_pages_hold_every_unfinished_job_once_and_say_when_they_end() -> None:
    yard = yard_with_jobs(7)
    yard.submit("theirs", tenant="other")
    seen, after = [], 0
    while True:
        items, last = fill(reads.live_views(yard.cluster, "default", after), 3)
        seen += [item["id"] for item in items]
        if last is None:
            break
        after = last

    assert seen == [f"job{n:03}" for n in range(7)]
    everyone, _ = fill(reads.live_views(yard.cluster, None, 0), 100)
    assert len(everyone) == 8


def test_a_page_stays_below_the_message_limit() -> None:
    views = [(n, {"text": "x" * 300_000}) for n in range(5)]
    first, last = fill(views, 100)
    assert (len(first), last) == (2, 1)
    assert fill([(0, {"text": "x" * 2_000_000})], 100) == ([{"text": "x" * 2_000_000}], None)
    assert fill([], 10) == ([], None)


def test_filters_by_state_user_name_and_time() -> None:
    yard = yard_with_jobs(3)
    yard.cancel("job000")
    shown = view(yard, "job001")

    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"state": ["queued"]}, True),
        ({"state": "queued"}, True),
        ({"state": ["running", "failed"]}, False),
        ({"user": "mia"}, True),
        ({"user": "bob"}, False),
        ({"name": "name1", "node": None}, True),
        ({"node": "a"}, False),
        ({"since": "2025-01-01T00:00:00Z"}, True),
        ({"since": "2027-01-01T00:00:00Z"}, False),
    ]
    for arguments, expected in cases:
        assert reads.matcher(arguments)(shown) is expected, arguments


@pytest.mark.parametrize(
    "arguments",
    [{"state": ["sleeping"]}, {"state": 5}, {"state": [{}]}, {"state": {"a": 1}}, {"since": 5}],
)
def test_filters_of_the_wrong_form_are_the_callers_fault(arguments: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        reads.matcher(arguments)


def test_a_node_shows_what_is_granted_and_what_is_left() -> None:
    yard = Yard()
    yard.node("a", gpus=2, cpus=8, memory_mib=8192)
    yard.submit("j", gpus=1, cpus=1.5, memory_mib=1024)
    yard.plan()

    shown = reads.show_node(yard.cluster, yard.core_node("a"))

    assert (shown["cpus_free"], shown["memory_free_mib"], shown["jobs"]) == (6.5, 7168, ["j"])
    assert [gpu["free_milli"] for gpu in shown["gpus"]] == [0, 1000]
    assert shown["gpus"][0]["grants"] == [
        {"tenant": "default", "job": "j", "attempt": 1, "milli": 1000}
    ]


def test_a_node_names_the_machine_that_was_refused_under_its_name() -> None:
    yard = Yard()
    agent = yard.node("a")
    other = copy.deepcopy(agent)
    other.machine_id, other.instance = "machine-z", "other"
    yard.beat("a", other)

    (reason,) = reads.show_node(yard.cluster, yard.core_node("a"))["reasons"]

    assert reason["code"] == "duplicate_name" and "machine-z" in reason["message"]


@pytest.mark.parametrize("name", ["ghost", "", None, 5, ["a"]])
def test_a_node_that_is_not_known_is_said_to_be_unknown(name: object) -> None:
    with pytest.raises(UnknownThing) as caught:
        reads.find_node(Yard().cluster, name)

    assert caught.value.code == "unknown_node"


def test_totals_put_each_gpu_in_one_place() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=5)
    agent.change_sample(2, health={"state": "lost", "reason": None, "since": None})
    foreign = {"pid": 1, "user": "bob", "container": None, "memory_mib": 9000}
    agent.change_sample(3, memory_foreign_mib=9000, foreign=[foreign])
    yard.beat("a")
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=16)
    yard.plan()

    assert reads.gpu_totals(yard.cluster) == {
        "total": 5,
        "free": 2,
        "used": 1,
        "foreign": 1,
        "ill": 1,
    }
    assert reads.queue_by_reason(yard.cluster) == {"insufficient_gpus": 1}
