"""The position in line is the order in which jobs start."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard_coordinator.core.lineup import Lineup
from tests.support.yard import Yard


def line(yard: Yard, lineup: Lineup | None = None) -> list[str]:
    """`tenant/id` of all that wait, the first in line first."""
    lineup = lineup or Lineup(yard.cluster)
    found = {
        position: f"{tenant}/{id}"
        for (tenant, id), job in yard.cluster.jobs.items()
        if (position := lineup.position(job, yard.mono)) is not None
    }
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[position] for position in sorted(found)]


def starts(yard: Yard) -> list[str]:
    bodies = [message["body"] for message in yard.out]
    told = [body for body in bodies if body.get("kind") == "assigned"]
    return [f"{body['tenant']}/{body['job']}" for body in told]


def test_a_tenant_with_many_jobs_is_not_before_one_with_one() -> None:
    yard = Yard()
    yard.node("n", gpus=4)
    yard.submit("run", tenant="a", gpus=4)
    yard.plan()
    for number in range(3):
        yard.submit(f"j{number}", tenant="a", gpus=1)
    yard.submit("late", tenant="b", gpus=1)
    yard.submit("urgent", tenant="a", gpus=1, priority=60)

    assert line(yard) == ["a/urgent", "b/late", "a/j0", "a/j1", "a/j2"]


jobs = st.tuples(
    st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([0, 2, 9]), st.sampled_from([40, 50])
)


@settings(max_examples=60, deadline=None)
@given(before=st.lists(jobs, max_size=4), waiting=st.lists(jobs, max_size=12))
def test_the_line_is_the_order_of_starts_where_there_is_room_for_all(
    before: list[tuple[str, int, int, int]], waiting: list[tuple[str, int, int, int]]
) -> None:
    yard = Yard()
    yard.tenant("b", weight=3)
    yard.tenant("c", priority=51)
    yard.node("n", gpus=64, cpus=512)

    def submit(name: str, each: list[tuple[str, int, int, int]]) -> None:
        for number, (tenant, gpus, cpus, priority) in enumerate(each):
            yard.submit(f"{name}{number}", tenant=tenant, gpus=gpus, cpus=cpus, priority=priority)

    submit("old", before)
    yard.plan()
    yard.spend(600)
    told = len(starts(yard))
    submit("new", waiting)
    expected = line(yard)
    yard.plan()

    assert starts(yard)[told:] == expected


def test_a_job_that_is_parked_or_runs_stands_in_no_line() -> None:
    yard = Yard()
    yard.node("n", gpus=1)
    yard.submit("run", gpus=1)
    yard.plan()
    lineup = Lineup(yard.cluster)

    assert lineup.position(yard.job("run"), yard.mono) is None


def test_the_line_is_kept_for_as_long_as_it_is_long() -> None:
    yard = Yard()
    for number in range(100):
        yard.submit(f"j{number:02}", tenant="a", gpus=1)
    lineup = Lineup(yard.cluster)
    assert len(line(yard, lineup)) == 100
    yard.submit("new", tenant="b", gpus=1)

    assert lineup.position(yard.job("new", tenant="b"), yard.mono) == 101, "by age for now"
    yard.mono += 0.02
    assert lineup.position(yard.job("new", tenant="b"), yard.mono) == 101, "no fleet, no shares"
    yard.node("n", gpus=1)
    yard.mono += 0.02
    assert lineup.position(yard.job("new", tenant="b"), yard.mono) == 2
