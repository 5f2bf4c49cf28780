"""Conditions on labels: what holds of every line and every label."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.contradictions import contradiction
from gpuyard.model.where import holds, parse

words = st.text(
    st.characters(exclude_categories=("C", "Z"), exclude_characters="=<>!,|*\"'"), min_size=1
)
numbers = st.from_regex(
    r"[0-9]{1,2}((\.[0-9]{1,2}){0,2}|(\.5)?(G|GB|MiB|e1))|-[0-9]", fullmatch=True
)
values = st.one_of(words, numbers, st.sampled_from(["12", "12.4", "24G", "24GB", "a", "*"]))
alternatives = st.lists(values, min_size=1, max_size=3).map("|".join)


def is_met(line: str, labels: dict[str, str]) -> bool:
    return holds(parse(line), labels)


@given(st.one_of(st.text(), st.text("gpu-a!=<>|*., 0129\"'")))
def test_parse_refuses_or_reads_back(line: str) -> None:
    try:
        condition = parse(line)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        again = parse(str(condition))
        assert again == condition
        assert (again.key, again.op) == (condition.key, condition.op)
        assert again.patterns == condition.patterns
        assert again.bound == condition.bound


@given(alternatives, st.one_of(values, st.text()), st.sampled_from(["k", "gpu-name"]))
def test_equal_and_unequal_are_complements_on_present_keys(
    wanted: str, label: str, key: str
) -> None:
    labels = {key: label}
    assert is_met(f"{key}={wanted}", labels) is not is_met(f"{key}!={wanted}", labels)


@given(words, st.sampled_from(["k", "gpu-name"]))
def test_a_literal_matches_itself(word: str, key: str) -> None:
    assert is_met(f"{key}={word}", {key: word})


@given(numbers, numbers)
def test_less_and_at_least_part_what_can_be_compared(bound: str, label: str) -> None:
    labels = {"k": label}
    less, least = is_met(f"k<{bound}", labels), is_met(f"k>={bound}", labels)
    more, most = is_met(f"k>{bound}", labels), is_met(f"k<={bound}", labels)
    assert not (less and least)
    assert not (more and most)
    assert (less or least) == (more or most)
    assert not (more and less)


tame = st.sampled_from(
    [
        "1",
        "2",
        "12",
        "12.4",
        "12.10",
        "12.9",
        "12.0",
        "1.2.3",
        "-1",
        "24G",
        "12G",
        "12.5G",
        "a",
        "b",
    ]
)
lists = st.lists(st.one_of(tame, values), min_size=1, max_size=3).map("|".join)
lines = st.one_of(
    st.builds("k{}{}".format, st.sampled_from(["=", "!="]), lists),
    st.builds("k{}{}".format, st.sampled_from([">", ">=", "<", "<="]), numbers),
    st.sampled_from(["k", "!k", "k>12", "k<13", "k>=12.10", "k<=12.9", "k=1*", "k!=a*"]),
)


@given(st.lists(lines, min_size=1, max_size=4), st.one_of(tame, values, numbers, st.none()))
def test_a_contradiction_is_never_claimed_of_what_holds(
    drawn: list[str], label: str | None
) -> None:
    conditions = [parse(line) for line in drawn]
    labels = {} if label is None else {"k": label}
    if all(holds(condition, labels) for condition in conditions):
        assert contradiction(conditions) is None
