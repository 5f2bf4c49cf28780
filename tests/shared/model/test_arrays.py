import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.arrays import MOST_TASKS, parse_array


@pytest.mark.parametrize(
    ("text", "numbers", "limit"),
    [
        ("0-3", [0, 1, 2, 3], None),
        ("1,3,7", [1, 3, 7], None),
        ("0-9:3", [0, 3, 6, 9], None),
        ("5", [5], None),
        ("7,0-2 %8", [7, 0, 1, 2], 8),
    ],
)
def test_tasks_of_a_text(text: str, numbers: list[int], limit: int | None) -> None:
    tasks = parse_array(text)
    assert [tasks.at(position) for position in range(len(tasks))] == numbers
    assert tasks.limit == limit


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 7)), min_size=1))
def test_positions_and_numbers_mean_each_other(parts: list[tuple[int, int, int]]) -> None:
    spans = [range(100 * at + a, 100 * at + a + b + 1, c) for at, (a, b, c) in enumerate(parts)]
    text = ",".join(f"{span.start}-{span.stop - 1}:{span.step}" for span in spans)
    tasks = parse_array(text)
    numbers = [number for span in spans for number in span]
    assert [tasks.at(position) for position in range(len(tasks))] == numbers
    assert [tasks.position_of(number) for number in numbers] == list(range(len(numbers)))
    assert tasks.position_of(100 * len(parts) + 1) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0-999999", f"has 1000000 tasks, at most {MOST_TASKS} are allowed"),
        ("0-999999999", "has 1000000000 tasks"),
        ("3-1", "'3-1' holds no task"),
        ("0-9:0", "'0-9:0' holds no task"),
        ("1,2,1", "names task 1 twice; name each once"),
        ("0-9,5", "names task 5 twice"),
        ("", "'' is no range of tasks"),
        ("0-٩", "is no range of tasks"),
        ("0-9%٣", "is no limit"),
        ("a-b", "'a-b' is no range of tasks; write 0-99"),
        ("-1", "'-1' is no range"),
        ("0-9%0", "'%0' is no limit"),
        ("0-9%", "'%' is no limit"),
        ("9999999999", "is no range"),
        ("1," * 3000, "has 6000 characters"),
    ],
)
def test_what_is_no_array_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")) as fault:
        parse_array(text)
    assert "\n" not in str(fault.value)
