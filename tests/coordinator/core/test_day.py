"""Whole days in virtual time: shares come out as weights say, and nobody is starved or flooded."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.model.intake import parse_spec
from gpuyard_coordinator.core.state import Job
from gpuyard_coordinator.simulate.day import Day
from tests.support.yard import Yard

DAY_S = 86_400.0


def day_of(
    weights: dict[str, int],
    nodes: int = 2,
    *,
    on_end: Callable[[Day, Job], None] = lambda day, job: None,
) -> Day:
    yard = Yard()
    for tenant, weight in weights.items():
        yard.tenant(tenant, weight=weight)
    for number in range(nodes):
        yard.node(f"n{number}", gpus=8)
    return Day(yard.cluster, yard.planner, yard.mono, on_end)


def come(day: Day, tenant: str, *, lasts: float, after_s: float = 0.0, **spec: Any) -> None:
    kept = parse_spec({"image": "busybox"} | spec).normalised()
    day.submit(tenant, kept, lasts=lasts, after_s=after_s)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 2, "c": 4}, {"a": 1, "b": 1, "c": 1}])
def test_over_a_day_shares_are_as_weights(weights: dict[str, int]) -> None:
    """Within 5 % of each part, although one tenant's jobs are long, another's wide."""
    chance = random.Random(5)
    wishes = {"a": (900, 1), "b": (300, 2), "c": (600, 1)}

    def submit(day: Day, tenant: str) -> None:
        mean_s, gpus = wishes[tenant]
        lasts = mean_s * chance.uniform(0.5, 1.5)
        come(day, tenant, lasts=lasts, gpus=gpus, max_runtime=mean_s * 1.5)

    day = day_of(weights, on_end=lambda day, job: submit(day, job.tenant))
    for tenant in weights:
        for _ in range(24):
            submit(day, tenant)
    day.run(DAY_S)
    whole = sum(day.held.values())

    assert whole > 0.95 * 16 * DAY_S
    for tenant, weight in weights.items():
        part = weight / sum(weights.values())
        assert abs(day.held[tenant] / whole / part - 1) < 0.05, tenant


def test_who_was_away_catches_up_and_then_has_its_weight() -> None:
    def again(day: Day, job: Job) -> None:
        come(day, job.tenant, lasts=300, gpus=1)

    day = day_of({"a": 1, "b": 1}, on_end=again)
    for _ in range(20):
        come(day, "a", lasts=300, gpus=1)
    day.run(DAY_S / 4)
    before = dict(day.held)
    for _ in range(20):
        come(day, "b", lasts=300, gpus=1)
    day.run(DAY_S / 4 + 3600)
    assert day.held["b"] > 0.6 * 16 * 3600, "more than its half of the next hour"
    day.run(DAY_S * 1.5)
    late = {tenant: day.held[tenant] - before.get(tenant, 0.0) for tenant in ("a", "b")}

    assert 1.0 < late["b"] / late["a"] < 1.3


def test_a_wide_job_among_endless_narrow_ones_starts_within_its_reservation() -> None:
    chance = random.Random(3)

    def again(day: Day, job: Job) -> None:
        if job.shape.gpus == 1:
            come(day, job.tenant, lasts=chance.uniform(60, 600), gpus=1, max_runtime=600)

    day = day_of({"a": 1, "b": 1}, on_end=again)
    for _ in range(40):
        come(day, "a", lasts=chance.uniform(60, 600), gpus=1, max_runtime=600)
    come(day, "b", lasts=100, gpus=8, after_s=1800)
    day.run(4 * 3600)
    ((key, came),) = [item for item in day.submitted.items() if item[0][0] == "b"]

    assert day.started[key] - came <= 600 + 30 + 5


def test_a_flood_of_low_priority_delays_no_high_one_longer_than_the_grace() -> None:
    day = day_of({"a": 1, "b": 1})
    for _ in range(400):
        come(day, "a", lasts=7200, gpus=1, priority=10, preemptible=True)
    for number in range(10):
        come(day, "b", lasts=300, gpus=1 + number % 8, priority=90, after_s=120 + 600 * number)
    day.run(3 * 3600)
    waited = {key: day.started[key] - day.submitted[key] for key in day.submitted if key[0] == "b"}

    assert len(waited) == 10 and max(waited.values()) <= 30
