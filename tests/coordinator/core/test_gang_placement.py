"""Where a gang goes: all or nothing, with limits, reservations and preemption for the whole."""

from typing import Any

import pytest

from tests.coordinator.core.gang_yard import THREE, entry, gang, start, yard_of
from tests.support.yard import Yard


def test_every_member_has_what_was_asked_on_a_node_of_its_own() -> None:
    yard = yard_of()
    whole = gang(yard, nodes=3, gpus=2, cpus=4, memory_mib=1024)

    assert [(m.rank, m.node, len(m.gpus)) for m in whole.members] == [
        (0, "a", 2),
        (1, "b", 2),
        (2, "c", 2),
    ]
    assert all(yard.core_node(name).cpu_milli_used == 4000 for name in THREE)
    assert yard.cluster.use_of("default").running_jobs == 1
    (assigned,) = [e for e in yard.events() if e["kind"] == "assigned"]
    assert assigned["data"]["nodes"] == ["a", "b", "c"] and len(assigned["data"]["gpus"]) == 6


def test_one_member_too_few_is_none_at_all() -> None:
    yard = yard_of("a", "b")
    yard.submit("single", gpus=2, node="b")
    yard.plan()
    yard.submit("j", gpus=1, nodes=2)
    yard.plan()

    assert yard.states("j") == ["queued"]
    assert yard.core_node("a").attempts == {}
    verdict = yard.why()["verdict"]
    assert verdict is not None
    assert verdict["code"] == "gang_incomplete" and not verdict["impossible_now"]
    assert verdict["message"] == "1 of 2 nodes fit: 1 insufficient_gpus (asked 1, most free 0)"
    assert [(node["name"], node["fits"]) for node in yard.why()["nodes"]] == [
        ("a", True),
        ("b", False),
    ]
    assert [change["text"] for change in yard.why()["changes"]] == ["ask for 1 node"]
    yard.end("single", exit_code=0)
    yard.plan()
    assert yard.states("j") == ["assigned"]


def test_more_nodes_than_there_are_wait_and_say_so() -> None:
    yard = yard_of("a", "b")
    yard.submit(nodes=4, gpus=1)
    yard.plan()

    verdict = yard.why()["verdict"]
    assert verdict is not None and verdict["impossible_now"]
    words = "2 of 4 nodes fit; only 2 known nodes could ever hold a member"
    assert verdict["message"] == words
    yard.node("c", gpus=1)
    yard.node("d", gpus=1)
    yard.plan()
    assert yard.states("j") == ["assigned"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodes": 201}, "200"),
        ({"nodes": 2, "network": "bridge"}, "write network: host"),
        ({"nodes": 2, "network": "none"}, "write network: host"),
        ({"nodes": 2, "node": "a"}, "node: a is one node"),
        ({"nodes": 2, "gpus": "device=0"}, "ids name GPUs of one node"),
        ({"nodes": 2, "env": {"RANK": "1"}}, "RANK is set by the yard"),
    ],
)
def test_what_no_gang_can_have_is_refused_by_name(spec: dict[str, Any], words: str) -> None:
    outcome = yard_of().submit(**spec)
    assert outcome.error is not None and words in str(outcome.error)


@pytest.mark.parametrize("nodes", [2, 2.0, "2"])
def test_an_unset_network_is_the_hosts(nodes: Any) -> None:
    yard = yard_of()
    gang(yard, nodes=nodes)
    assert yard.job().spec["network"] == "host"
    yard.submit("named", nodes=2, network="overlay")
    assert yard.job("named").spec["network"] == "overlay"


def test_a_node_whose_agent_tells_no_address_takes_no_member() -> None:
    yard = yard_of("a")
    yard.node("b", gpus=2, address=None)
    yard.submit(nodes=2, gpus=1)
    yard.plan()

    assert yard.states("j") == ["queued"]
    (told,) = [node["reasons"] for node in yard.why()["nodes"] if node["name"] == "b"]
    assert told[0]["have"] == "its agent tells no address for gangs"
    yard.submit("single", gpus=1, node="b")
    yard.plan()
    assert yard.states("single") == ["assigned"]


def test_members_meet_at_rank_0_where_no_other_gang_does() -> None:
    yard = yard_of()
    gang(yard, "one", nodes=3)
    gang(yard, "two", nodes=3)

    one, two = entry(yard, "b", "one")["gang"], entry(yard, "b", "two")["gang"]
    assert one == {
        "rank": 1,
        "size": 3,
        "address": "a.test",
        "port": 29500,
        "may_start": False,
    }
    assert (two["address"], two["port"]) == ("a.test", 29501)
    yard.restart()
    assert yard.cluster.gang_ports == {"a.test": {29500, 29501}}


def test_rank_0_is_where_a_port_is_left() -> None:
    yard = Yard()
    yard.node("a", gpus=2, gang_ports=(4000, 4000))
    yard.node("b", gpus=2, gang_ports=(5000, 5000))
    for id in ("one", "two", "three"):
        yard.submit(id, nodes=2)
    yard.plan()

    assert [yard.attempt(id).meeting for id in ("one", "two")] == [
        ("a.test", 4000),
        ("b.test", 5000),
    ]
    assert yard.states("three") == ["queued"]
    verdict = yard.why("three")["verdict"]
    assert verdict is not None and verdict["code"] == "gang_incomplete"
    words = "2 of 2 nodes fit: none of them has a port left at which gangs meet"
    assert verdict["message"] == words
    yard.cancel("one")
    for rank in (0, 1):
        yard.end("one", rank=rank, reason="cancelled")
    yard.plan()
    assert yard.attempt("three").meeting == ("a.test", 4000)


def test_limits_count_the_whole_gang() -> None:
    yard = yard_of()
    yard.tenant(limits={"gpus": 4, "running_jobs": 1})
    yard.submit("large", nodes=3, gpus=2)
    assert yard.states("large") == ["failed"], "6 are never within 4"
    gang(yard, "j", nodes=2, gpus=2)
    yard.submit("more", gpus=1)
    yard.plan()
    assert yard.states("j", "more") == ["assigned", "queued"]
    start(yard)
    yard.end(rank=0, exit_code=0)
    yard.plan()
    assert yard.states("more") == ["queued"], "its other member still runs"
    yard.end(rank=1, exit_code=0)
    yard.plan()
    assert yard.states("more") == ["assigned"]


def test_a_limit_that_depends_on_the_place_is_parted_among_the_members() -> None:
    yard = yard_of()
    yard.tenant(limits={"gpu_memory_gib": 60})
    gang(yard, "fits", nodes=2, gpus=1)
    yard.submit("over", nodes=2, gpus=1)
    yard.plan()
    assert yard.states("fits", "over") == ["assigned", "queued"]


def test_a_gang_that_comes_first_has_its_nodes_reserved() -> None:
    yard = yard_of("a", "b", gpus=1)
    for id, node, limit in (("one", "a", "1h"), ("two", "b", "2h")):
        yard.submit(id, gpus=1, node=node, max_runtime=limit)
        yard.plan()
        yard.start(id)
    yard.submit("j", nodes=2, gpus=1)
    yard.plan()
    held = yard.cluster.reservations.by_job["default", "j"]
    assert set(held.nodes) == {"a", "b"}
    assert held.start == yard.mono + 7200 + 30 + 5, "with the last of them"
    yard.end("one", exit_code=0)
    yard.submit("endless", gpus=1)
    yard.submit("short", gpus=1, max_runtime="10m")
    yard.plan()
    assert yard.states("j", "endless", "short") == ["queued", "queued", "assigned"]
    yard.end("short", exit_code=0)
    yard.end("two", exit_code=0)
    yard.plan()
    assert yard.states("j", "endless") == ["assigned", "queued"]
    assert not yard.cluster.reservations.by_node


def test_without_time_limits_its_nodes_are_collected_after_a_while() -> None:
    yard = yard_of("a", "b", gpus=1)
    for id, node in (("one", "a"), ("two", "b")):
        yard.submit(id, gpus=1, node=node)
        yard.plan()
        yard.start(id)
    yard.submit("j", nodes=2, gpus=1)
    yard.plan()
    assert not yard.cluster.reservations.by_job
    yard.spend(700)
    yard.plan()
    yard.end("one", exit_code=0)
    yard.submit("next", gpus=1)
    yard.plan()
    assert yard.states("j", "next") == ["queued", "queued"]
    yard.end("two", exit_code=0)
    yard.plan()
    assert yard.states("j", "next") == ["assigned", "queued"]


def test_lower_jobs_are_stopped_on_as_many_nodes_as_a_gang_lacks() -> None:
    yard = yard_of("a", "b", "c", gpus=1)
    for id, node in (("one", "a"), ("two", "b")):
        yard.submit(id, gpus=1, node=node, preemptible=True, priority=10)
        yard.plan()
        yard.start(id)
    yard.spend(100)
    yard.submit("j", nodes=2, gpus=1, priority=90)
    yard.plan()
    stopped = [id for id in ("one", "two") if yard.job(id).state == "stopping"]
    assert len(stopped) == 1, "one node is free already"
    yard.end(stopped[0], reason="preempted", exit_code=143)
    yard.plan()
    assert yard.states("j") == ["assigned"]


def test_a_dry_run_names_the_nodes() -> None:
    yard = yard_of()
    told = yard.try_submit(nodes=2, gpus=1)
    assert told["fits"] and len(told["nodes"]) == 2 and len(told["gpus"]) == 2
    assert all(not node.attempts for node in yard.cluster.nodes.values())
    assert yard.try_submit(nodes=4, gpus=1)["verdict"]["code"] == "gang_incomplete"


def test_a_dry_run_of_shares_leaves_nothing_reserved() -> None:
    yard = yard_of("a", "b", gpus=1)
    for _ in range(3):
        assert yard.try_submit(nodes=2, gpus="60%")["nodes"] == ["a", "b"]
    gang(yard, gpus="60%")
    assert yard.states("j") == ["assigned"]
