"""A node kept for whoever comes first and cannot start; who may go ahead meanwhile."""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard_coordinator.core.reservations import HANDOVER_S, PULL_S, Reservation
from tests.support.yard import TENANT, Yard


def reservation(yard: Yard, id: str = "big", *, tenant: str = TENANT) -> Reservation | None:
    return yard.cluster.reservations.by_job.get((tenant, id))


def one_of_two_busy(limit: str | None = "1h") -> Yard:
    """A node of two GPUs, one of them held by `runs`, and `big`, which waits for both."""
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("runs", gpus=1, **({"max_runtime": limit} if limit else {}))
    yard.plan()
    yard.start("runs")
    yard.submit("big", gpus=2)
    yard.plan()
    return yard


def test_the_first_that_cannot_start_has_a_node_from_when_it_can_at_the_latest() -> None:
    yard = one_of_two_busy()
    held = reservation(yard)

    assert held is not None and held.node == "a"
    assert held.start == yard.mono + 3600 + 30 + HANDOVER_S
    (told,) = [e for e in yard.events("big") if e["kind"] == "queued"]
    words = f"node a is reserved for it: it starts about {held.start_at} at the latest"
    assert told["message"].endswith(words)


def test_a_job_goes_ahead_only_if_it_is_over_in_time() -> None:
    yard = one_of_two_busy()
    fits_s = 3600 + 30 + HANDOVER_S - PULL_S - HANDOVER_S - 30
    yard.submit("endless", gpus=1)
    yard.submit("long", gpus=1, max_runtime=fits_s + 1)
    yard.submit("short", gpus=1, max_runtime=fits_s)
    yard.plan()

    assert yard.states("endless", "long", "short") == ["queued", "queued", "assigned"]
    (told,) = [e for e in yard.events("endless") if e["kind"] == "queued"]
    assert told["data"]["code"] == "insufficient_gpus", "the last GPU is held now"
    yard.end("short", exit_code=0)
    yard.plan()
    verdict = yard.why("endless")["verdict"]
    assert verdict is not None and verdict["code"] == "reserved_for_other"


def test_what_asks_for_nothing_of_it_goes_on() -> None:
    yard = one_of_two_busy()
    yard.submit("no-gpu", cpus=1)
    yard.node("b", gpus=1)
    yard.submit("elsewhere", gpus=1)
    yard.plan()

    assert yard.states("no-gpu", "elsewhere") == ["assigned", "assigned"]
    assert yard.attempt("elsewhere").node == "b"


def test_a_reservation_ends_with_the_start_and_others_go_on_in_the_same_plan() -> None:
    yard = one_of_two_busy()
    yard.submit("endless", gpus=1)
    yard.plan()
    yard.node("b", gpus=2)
    yard.plan()

    assert yard.states("big", "endless") == ["assigned", "assigned"]
    assert yard.cluster.reservations.by_node == {}


def test_it_ends_with_its_job() -> None:
    yard = one_of_two_busy()
    yard.submit("endless", gpus=1)
    yard.plan()
    assert yard.states("endless") == ["queued"]
    yard.cancel("big")
    yard.plan()

    assert reservation(yard) is None and yard.states("endless") == ["assigned"]


def test_a_higher_priority_takes_what_is_reserved() -> None:
    yard = one_of_two_busy()
    yard.submit("urgent", gpus=1, priority=90)
    yard.plan()

    assert yard.states("urgent") == ["assigned"]


def test_it_goes_over_to_a_higher_priority_of_the_tenant() -> None:
    yard = one_of_two_busy()
    yard.submit("urgent", gpus=2, priority=90, cpus=1)
    yard.plan()

    assert reservation(yard) is None and reservation(yard, "urgent") is not None


def test_a_node_that_takes_no_work_is_no_longer_waited_for() -> None:
    yard = one_of_two_busy()
    yard.cordon("a")
    yard.plan()
    assert reservation(yard) is None
    yard.uncordon("a")
    yard.plan()

    assert reservation(yard) is not None


def test_each_tenant_has_one_and_each_a_node_of_its_own() -> None:
    yard = Yard()
    for name in ("a", "b"):
        yard.node(name, gpus=2)
        yard.submit(f"on-{name}", gpus=1, node=name, max_runtime="1h")
    yard.plan()
    for tenant in ("t1", "t2", "t3"):
        for id in ("one", "two"):
            yard.submit(id, gpus=2, tenant=tenant)
    yard.plan()
    held = yard.cluster.reservations.by_job

    assert {key: each.node for key, each in held.items()} == {
        ("t1", "one"): "a",
        ("t2", "one"): "b",
    }


def test_the_impossible_has_none() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    yard.submit("runs", gpus=1, max_runtime="1h")
    yard.submit("huge", gpus=8, priority=90)
    yard.submit("big", gpus=2)
    yard.plan()

    assert reservation(yard, "huge") is None and reservation(yard) is not None


def test_without_time_limits_the_starving_has_gpus_collected() -> None:
    yard = one_of_two_busy(limit=None)
    assert reservation(yard) is None, "nobody knows when, and it has not waited long"
    yard.submit("before", gpus=1)
    yard.plan()
    assert yard.states("before") == ["assigned"]
    yard.spend(600)
    yard.plan()
    held = reservation(yard)
    assert held is not None and held.start is None
    yard.end("before", exit_code=0)
    yard.submit("after", gpus=1)
    yard.submit("brief", gpus=1, max_runtime="1s")
    yard.plan()
    assert yard.states("big", "after", "brief") == ["queued", "queued", "queued"]
    yard.end("runs", exit_code=0)
    yard.plan()

    assert yard.states("big") == ["assigned"]


def test_what_overruns_its_time_is_waited_for_and_then_thought_over() -> None:
    yard = one_of_two_busy()
    first = reservation(yard)
    assert first is not None and first.start is not None
    yard.spend(3700)
    yard.plan()
    second = reservation(yard)

    assert second is not None and second.start is not None and second.start > first.start


jobs = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(1, 3),
            "max_runtime": st.integers(60, 4000),
            "priority": st.just(50),
            "takes": st.floats(0.01, 1.0),
            "comes_s": st.integers(0, 400),
        }
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(todo=jobs)
def test_backfill_never_delays_a_reservation(todo: list[dict[str, Any]]) -> None:
    """Of jobs of one tenant and equal priority that end within their limits: whoever holds a
    reservation starts by the time that it was told first."""
    yard = Yard()
    yard.node("a", gpus=3)
    yard.node("b", gpus=2)
    promised: dict[tuple[str, str], float] = {}
    ends: list[tuple[float, str, str]] = []
    coming = sorted(enumerate(todo), key=lambda item: -item[1]["comes_s"])
    begin = yard.mono
    while coming or ends:
        next_come = begin + coming[-1][1]["comes_s"] if coming else float("inf")
        yard.mono = max(yard.mono, min([next_come, *(end for end, _, _ in ends)]))
        for name in yard.agents:
            yard.beat(name)
        while coming and begin + coming[-1][1]["comes_s"] <= yard.mono:
            number, spec = coming.pop()
            asked = {key: spec[key] for key in ("gpus", "max_runtime", "priority")}
            yard.submit(f"j{number}", **asked)
        for end, tenant, id in sorted(ends):
            if end <= yard.mono:
                yard.end(id, tenant=tenant, exit_code=0)
                ends.remove((end, tenant, id))
        yard.plan()
        for key, held in yard.cluster.reservations.by_job.items():
            assert held.start is not None
            promised.setdefault(key, held.start)
        for key, job in sorted(yard.cluster.jobs.items()):
            if job.state == "assigned":
                spec = todo[int(job.id[1:])]
                yard.start(job.id, tenant=job.tenant)
                lasts = spec["takes"] * spec["max_runtime"]
                ends.append((yard.mono + lasts, *key))
                assert yard.mono <= promised.get(key, float("inf"))
    assert not yard.cluster.jobs, "nobody waits for ever"


def could_start(yard: Yard) -> list[str]:
    """Waiting jobs that would have a place now were every shape asked for anew."""
    yard.cluster.queue.fresh |= yard.cluster.queue.by_shape.keys()
    plan = yard.planner.plan(1000, yard.now)
    return [placed.job for placed in plan.placements]


def asked(chance: Random) -> dict[str, Any]:
    spec: dict[str, Any] = {"gpus": chance.choice([1, 1, 1, 2, 3, 4, 8])}
    if chance.random() < 0.2:
        spec = {"cpus": chance.choice([1, 16, 32])}
    if chance.random() < 0.7:
        spec["max_runtime"] = chance.choice([60, 300, 1000, 4000])
    if chance.random() < 0.3:
        spec["priority"] = chance.choice([40, 50, 60])
    if chance.random() < 0.3:
        spec["preemptible"] = True
    if spec.get("gpus") and chance.random() < 0.15:
        spec["nodes"] = 2
    return spec


def end_some(yard: Yard, chance: Random) -> None:
    """Some jobs end one after another, and a plan follows; most that were told to stop do."""
    jobs = yard.cluster.jobs
    held = [k for k, j in sorted(jobs.items()) if j.state in ("assigned", "running")]
    stopped = [k for k, j in sorted(jobs.items()) if j.last and j.last.stop is not None]
    for tenant, id in stopped:
        if jobs[tenant, id].shape.nodes == 1 and chance.random() < 0.7:
            yard.end(id, tenant=tenant, reason="preempted")
    chance.shuffle(held)
    for tenant, id in held[: chance.randint(0, 3)]:
        job = jobs.get((tenant, id))
        if job is None or job.shape.nodes > 1 or job.last is None or job.last.stop is not None:
            yard.cancel(id, tenant=tenant)
        else:
            yard.end(id, tenant=tenant, exit_code=0)
        yard.plan()
        assert could_start(yard) == []


@pytest.mark.parametrize("seed", range(12))
def test_of_several_tenants_all_start_that_may(seed: int) -> None:
    """A plan moves what tenants have had, and so who keeps off whose node: a second plan is empty
    all the same, and one that asks for each shape anew places none."""
    chance, yard, number = Random(seed), Yard(), 0
    for tenant in ("t1", "t2", "t3"):
        yard.tenant(tenant, weight=chance.choice([1, 2, 4]), limits={"gpus": 9})
    for node in range(chance.randint(1, 4)):
        yard.node(f"n{node}", gpus=chance.randint(1, 8))
    for _ in range(20):
        for _ in range(chance.randint(0, 3)):
            number += 1
            yard.submit(f"j{number}", tenant=chance.choice(["t1", "t2", "t3"]), **asked(chance))
        yard.plan()
        assert could_start(yard) == []
        yard.mono += chance.choice([0, 1, 10, 100, 700])
        for name in yard.agents:
            yard.beat(name)
        end_some(yard, chance)
