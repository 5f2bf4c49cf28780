"""Things that are due at a time."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard_coordinator.core.deadlines import Deadlines
from gpuyard_coordinator.core.moments import later, seconds_until

steps = st.tuples(
    st.sampled_from(["file", "drop", "take"]), st.sampled_from("abc"), st.integers(0, 9)
)


@given(st.lists(steps, max_size=30))
def test_each_key_comes_once_and_the_earliest_first(told: list[tuple[str, str, int]]) -> None:
    deadlines, due = Deadlines[str](), dict[str, int]()
    for what, key, at in told:
        if what == "file":
            deadlines.file(key, at)
            due[key] = min(at, due.get(key, at))
        elif what == "drop":
            deadlines.drop(key)
            due.pop(key, None)
        else:
            first = min(due.items(), key=lambda item: (item[1], item[0]), default=None)
            expected = first[0] if first is not None and first[1] <= at else None
            assert deadlines.take(at) == expected
            due.pop(expected or "", None)
        assert len(deadlines) == len(due) and all(key in deadlines for key in due)


def test_times_of_records_are_added_to_and_told_apart() -> None:
    at = "2026-12-31T23:59:59.900Z"

    assert later(at, 0.25) == "2027-01-01T00:00:00.150Z"
    assert seconds_until(at, later(at, 1.5), most=10) == 1.5
    assert seconds_until(at, later(at, 60), most=10) == 10, "a clock that was set back"
    assert seconds_until(at, later(at, -60), most=10) == 0
