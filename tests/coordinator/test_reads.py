"""What readers are shown of the state: ids found, pages, verdicts, nodes and totals."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuyard import codec
from gpuyard.cli.why import reason_text
from gpuyard.errors import RequestError, UnknownThing
from gpuyard.views.jobs import JobView
from gpuyard_coordinator import job_list, reads, yard_counts
from gpuyard_coordinator.core import explain
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.roster import Roster
from gpuyard_coordinator.pages import MOST_PASSED, fill, number_of
from tests.support.yard import Yard, queue_by_reason


def view(yard: Yard, id: str = "j") -> JobView:
    return job_list.JobList(yard.cluster).explained(yard.job(id), yard.mono)


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
    assert (shown["milli_gpu"], shown["queue_position"]) == (2000, None)
    assert shown["verdict"] is not None and shown["verdict"]["code"] == "node_lost_waiting"


def test_pages_hold_every_unfinished_job_once_and_say_when_they_end() -> None:
    yard = yard_with_jobs(7)
    yard.submit("theirs", tenant="other")
    jobs = job_list.JobList(yard.cluster)

    assert listed(yard, jobs, "default", 3) == [f"job{n:03}" for n in range(7)]
    assert len(listed(yard, jobs, None, 100)) == 8
    assert listed(yard, jobs, "nobody", 100) == []


def listed(
    yard: Yard, jobs: job_list.JobList, tenant: str | None, limit: int, **filters: Any
) -> list[str]:
    """Ids over all pages."""
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        views = jobs.views(tenant, after, job_list.matcher(filters), yard.mono)
        page = fill(views, limit)
        assert len(page.items) <= limit
        seen += [codec.decode(item)["id"] for item in page.items]
        after = page.last
    return seen


def test_a_list_follows_jobs_that_come_and_go_and_another_leader() -> None:
    yard = yard_with_jobs(6)
    jobs = job_list.JobList(yard.cluster)
    assert len(listed(yard, jobs, "default", 4)) == 6
    yard.cancel("job001")
    yard.submit("a-later-one")
    yard.cancel("a-later-one")
    yard.submit("a-later-two")
    expected = ["job000", *(f"job{n:03}" for n in range(2, 6)), "a-later-two"]

    assert listed(yard, jobs, "default", 4) == expected
    assert listed(yard, jobs, "default", 4, state="queued", name="name3") == ["job003"]
    yard.restart()
    assert listed(yard, job_list.JobList(yard.cluster), "default", 4) == expected


def test_a_list_forgets_the_jobs_that_ended() -> None:
    job = yard_with_jobs(1).job("job000")
    cluster = Cluster("yard01", (1, 1))
    roster = Roster(cluster)
    for seq in range(1, 3000):
        cluster.jobs = {job.key: replace(job, submit_seq=seq)}
        assert [found.submit_seq for found in roster.after(0, None)] == [seq]

    assert len(roster._everyone) < 1500


def test_an_explanation_is_taken_again_for_a_second() -> None:
    yard = Yard()
    yard.submit("j", gpus=1)
    jobs = job_list.JobList(yard.cluster)

    def code() -> str:
        verdict = jobs.view(yard.job(), yard.mono)["verdict"]
        assert verdict is not None
        return verdict["code"]

    assert code() == "node_unready"
    yard.node("a")
    assert code() == "node_unready"
    yard.mono += explain.KEPT_S + 0.1
    assert code() == "insufficient_gpus"


def test_a_page_stays_below_the_message_limit() -> None:
    views = [(n, {"text": "x" * 300_000}) for n in range(5)]
    first = fill(views, 100)
    assert (len(first.items), first.last) == (2, 1)
    large = fill([(0, {"text": "x" * 2_000_000})], 100)
    assert (len(large.items), large.last) == (1, None)
    assert (fill([], 10).items, fill([], 10).last) == ([], None)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_page_is_written_in_the_form_of_its_request(as_json: bool) -> None:
    views = [(n, {"text": f"é{n}", "n": n}) for n in range(3)]
    page = fill(views, 2, as_json=as_json)

    data = page.reply(str(page.last))

    assert codec.is_json(data) is as_json
    items = [{"text": "é0", "n": 0}, {"text": "é1", "n": 1}]
    assert codec.decode(data) == {"v": 1, "items": items, "next": "1"}
    assert codec.decode(fill([], 1, as_json=as_json).reply(None))["items"] == []


def test_a_filter_that_passes_nearly_everything_over_ends_its_page() -> None:
    views = [(n, None) for n in range(MOST_PASSED + 5)]
    page = fill(views, 10)

    assert (page.items, page.last) == ([], MOST_PASSED - 1)
    assert fill(views[MOST_PASSED:], 10).last is None


def test_a_record_of_an_id_that_lives_is_not_listed_beside_its_job() -> None:
    yard = Yard()
    yard.submit("j", gpus=-1)
    yard.submit("k", gpus=-1)
    refused = [yard.done("j"), yard.done("k")]
    yard.submit("j")

    assert [kept["id"] for kept in reads.without_live(yard.cluster, refused)] == ["k"]


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
        assert job_list.matcher(arguments)(shown) is expected, arguments


@pytest.mark.parametrize(
    "arguments",
    [{"state": ["sleeping"]}, {"state": 5}, {"state": [{}]}, {"state": {"a": 1}}, {"since": 5}],
)
def test_filters_of_the_wrong_form_are_the_callers_fault(arguments: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        job_list.matcher(arguments)


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


def test_a_gpu_is_allocatable_only_where_it_takes_work() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=5)
    process = {"pid": 1, "user": "bob", "container": None, "memory_mib": 9000}
    agent.change_sample(1, memory_foreign_mib=9000, foreign=[process])
    agent.change_sample(2, health={"state": "lost", "reason": None, "since": None})
    yard.beat("a")
    yard.cordon("a", "3")
    yard.submit("j", gpus="25%")
    yard.plan()

    def allocatable() -> list[int]:
        gpus = reads.show_node(yard.cluster, yard.core_node("a"))["gpus"]
        assert [gpu["free_milli"] for gpu in gpus] == [750, 1000, 1000, 1000, 1000]
        return [gpu["allocatable_milli"] for gpu in gpus]

    assert allocatable() == [750, 0, 0, 0, 1000]
    yard.tick(31)
    assert allocatable() == [0] * 5, "a lost node takes no work"


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
    assert caught.value.hint == "'gpuyard nodes' lists them"


def test_totals_put_each_gpu_in_one_place() -> None:
    yard = Yard()
    agent = yard.node("a", gpus=8)
    agent.change_sample(2, health={"state": "lost", "reason": None, "since": None})
    foreign = {"pid": 1, "user": "bob", "container": None, "memory_mib": 9000}
    agent.change_sample(3, memory_foreign_mib=9000, foreign=[foreign])
    agent.change_sample(4, memory_foreign_mib=9000)  # whose it is cannot be told
    yard.beat("a")
    yard.cordon("a", "5", reason="fan")
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=16)
    yard.plan()

    counted = yard_counts.gpu_totals(yard.cluster)

    assert counted == {
        "total": 8,
        "free": 3,
        "used": 1,
        "foreign": 2,
        "ill": 1,
        "cordoned": 1,
        "unready": 0,
    }
    assert queue_by_reason(yard.cluster) == {"insufficient_gpus": 1}


def test_the_reasons_of_a_queue_are_found_some_nodes_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(yard_counts, "NODES_AT_ONCE", 2)
    monkeypatch.setattr(yard_counts, "MOST_LOOKS", 6)
    yard = Yard()
    for name in "abc":
        yard.node(name, gpus=1)
    yard.submit_all(["one", "two", "three"], gpus=2)
    yard.submit_all(["wide", "huge"], cpus=1000)
    yard.submit("other", gpus=3)
    yard.plan()
    reasons, steps = yard_counts.Reasons(), 0

    while reasons.look_some(yard.cluster):
        steps += 1
        if steps == 1:
            yard.cordon("a")

    assert steps == 4, "two of three nodes and then the third, for each of two shapes"
    assert reasons.count(yard.cluster) == {
        "insufficient_gpus": 3,
        "insufficient_cpu": 2,
        "unknown": 1,
    }


def test_the_gpus_of_a_fleet_are_counted_some_nodes_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(yard_counts, "NODES_AT_ONCE", 2)
    yard = Yard()
    for name in "abc":
        yard.node(name, gpus=4)

    assert yard_counts.count_some(yard.cluster), "one of three is left"
    assert not yard_counts.count_some(yard.cluster)
    assert all(node.gpu_counts for node in yard.cluster.nodes.values())
    yard.submit("j", gpus=3)
    yard.plan()

    totals = yard_counts.gpu_totals(yard.cluster)

    assert (totals["total"], totals["free"], totals["used"]) == (12, 9, 3)


def drained(yard: Yard) -> None:
    yard.drain("a")


def cordoned(yard: Yard) -> None:
    yard.cordon("a")


def failing(yard: Yard) -> None:
    for number in range(3):
        yard.submit(f"bad{number}", image=f"bad{number}")
        yard.plan()
        yard.end(f"bad{number}", reason="runtime_error")


def silent(yard: Yard) -> None:
    yard.tick(7)


def lost(yard: Yard) -> None:
    yard.tick(31)


def unready(yard: Yard) -> None:
    agent = yard.agents["a"]
    agent.reasons = [{"code": "disk_low", "message": "", "gpu": None, "since": None}]
    yard.beat("a")


def unsampled(yard: Yard) -> None:
    yard.agents["a"].sample_age_s = 60.0
    yard.beat("a")


@pytest.mark.parametrize(
    ("happens", "word", "state"),
    [
        (drained, "cordoned", "ready"),
        (cordoned, "cordoned", "ready"),
        (failing, "cordoned", "failing"),
        (silent, "unready", "suspect"),
        (lost, "unready", "lost"),
        (unready, "unready", "unready"),
        (unsampled, "ill", "ready"),
    ],
)
def test_gpus_of_a_node_that_takes_no_work_are_in_no_other_total(
    happens: Callable[[Yard], None], word: str, state: str
) -> None:
    yard = Yard()
    yard.node("a", gpus=8)
    yard.submit("j", gpus=1)
    yard.plan()
    yard.start()

    happens(yard)

    counted = yard_counts.gpu_totals(yard.cluster)
    assert {name: number for name, number in counted.items() if number} == {
        "total": 8,
        "used": 1,
        word: 7,
    }
    assert yard_counts.node_totals(yard.cluster) == {state: 1}


def test_why_calls_a_node_that_is_put_aside_as_the_list_of_nodes_does() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    failing(yard)
    yard.submit("j", gpus=1)
    yard.plan()

    (shown,) = reads.show_node(yard.cluster, yard.core_node("a"))["reasons"]
    found = yard.why()

    assert shown["code"] == "failing"
    assert found["verdict"] is not None
    assert found["verdict"]["message"] == "0/1 nodes fit: 1 failing"
    (reason,) = found["nodes"][0]["reasons"]
    assert (reason["code"], reason_text(reason)) == ("node_unready", "failing")


@pytest.mark.parametrize("cursor", ["", "²", "-1", "x", "9" * 5000])
def test_a_cursor_that_no_page_has_told_is_the_first(cursor: str) -> None:
    assert (number_of("7", 0), number_of(cursor, 1)) == (7, 1)
