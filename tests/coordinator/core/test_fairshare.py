"""Whose turn it is among tenants: priority, then the one that had least for its weight."""

from gpuyard_coordinator.core import fairshare
from gpuyard_coordinator.core.history import SPAN_MS, History
from tests.support.yard import Yard

FLEET = (8000, 64_000, 1_000_000)


def order_of_starts(yard: Yard) -> list[str]:
    bodies = [message["body"] for message in yard.out]
    told = [body for body in bodies if body.get("kind") == "assigned"]
    return [f"{body['tenant']}/{body['job']}" for body in told]


def test_a_share_is_that_of_the_resource_of_which_most_is_held() -> None:
    nothing = History()
    by_gpus = fairshare.standing((4000, 1000, 0), nothing, FLEET, 1)
    by_cpus = fairshare.standing((0, 32_000, 1000), nothing, FLEET, 1)

    assert by_gpus == by_cpus == fairshare.WHOLE_PPB // 2
    assert fairshare.standing((4000, 0, 0), nothing, FLEET, 4) == by_gpus // 4
    assert fairshare.standing((4000, 0, 0), nothing, (0, 0, 0), 1) == 0


def test_what_was_held_all_the_time_counts_more_than_what_is_held_now() -> None:
    past = History((4000 * SPAN_MS, 0, 0))

    half = fairshare.WHOLE_PPB // 2
    assert fairshare.standing((0, 0, 0), past, FLEET, 1) == fairshare.PAST * half


def test_two_tenants_take_turns_in_one_plan() -> None:
    yard = Yard()
    for number in range(4):
        yard.submit(f"j{number}", tenant="a", gpus=1)
    for number in range(4):
        yard.submit(f"j{number}", tenant="b", gpus=1)
    yard.node("n", gpus=4)
    yard.plan()

    assert order_of_starts(yard) == ["a/j0", "b/j0", "a/j1", "b/j1"]


def test_a_weight_of_three_is_three_for_one() -> None:
    yard = Yard()
    yard.tenant("b", weight=3)
    for tenant in ("a", "b"):
        for number in range(8):
            yard.submit(f"j{number}", tenant=tenant, gpus=1)
    yard.node("n", gpus=8)
    yard.plan()
    started = order_of_starts(yard)

    assert sum(name.startswith("b/") for name in started) == 6


def test_priority_goes_over_shares_and_a_tenants_priority_over_its_jobs() -> None:
    yard = Yard()
    yard.tenant("vip", priority=60)
    yard.submit("j", tenant="a", gpus=1, priority=10)
    yard.submit("k", tenant="a", gpus=1, priority=90)
    yard.submit("j", tenant="vip", gpus=1, priority=0)
    yard.node("n", gpus=3)
    for _ in range(3):
        yard.plan(limit=1)

    assert order_of_starts(yard) == ["vip/j", "a/k", "a/j"]


def test_who_held_more_before_goes_behind() -> None:
    yard = Yard()
    yard.node("n", gpus=1)
    yard.submit("old", tenant="a", gpus=1)
    yard.plan()
    yard.start("old", tenant="a")
    yard.mono += 3600
    yard.end("old", tenant="a", exit_code=0)
    yard.submit("next", tenant="a", gpus=1)
    yard.submit("next", tenant="b", gpus=1)
    yard.plan()

    assert order_of_starts(yard) == ["a/old", "b/next"]
