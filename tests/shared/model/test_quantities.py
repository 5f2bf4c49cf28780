"""Sizes in Docker's manner, durations in ours and Slurm's."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.model.quantities import (
    counted,
    first_named,
    format_duration,
    parse_duration_s,
    parse_size_bytes,
    parse_size_mib,
)

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8g", 8192),
        ("8GiB", 8192),
        ("8 GB", 8192),
        ("512m", 512),
        ("0.5g", 512),
        ("1t", 1024 * 1024),
        ("1048576", 1),
        ("1048577b", 2),
        ("1k", 1),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert parse_size_mib(text) == mib


def test_a_bare_number_is_bytes() -> None:
    assert parse_size_bytes("10") == 10


@pytest.mark.parametrize(
    "text", ["", "g", "8gg", "-8g", "8,5g", "1e9", "9" * 400, "8g " + "x" * 99]
)
def test_what_is_no_size_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it as 512m, 8g or 8GiB") as caught:
        parse_size_bytes(text)

    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5s", 1.5),
        ("30m", 1800),
        ("4h", 14400),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("4:00:00", 14400),
        ("30:00", 1800),
        ("1-12:00:00", 129600),
        ("1-12:30", 131400),
        (" 4H ", 14400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "4 hours", "-1s", "5ms", "1m1h", "9" * 400 + "d", "1:2:3:4"]
)
def test_what_is_no_duration_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it as") as caught:
        parse_duration_s(text)

    assert len(str(caught.value)) < 120


@UNHURRIED
@given(st.floats(0.001, 3.2e8))
def test_the_kept_form_reads_back_to_the_millisecond(seconds: float) -> None:
    kept = format_duration(seconds)

    assert parse_duration_s(kept) == pytest.approx(seconds, abs=0.0005001)
    assert format_duration(parse_duration_s(kept)) == kept


@UNHURRIED
@given(st.text("0123456789dhms:.- eg", max_size=20))
def test_no_text_raises_anything_but_one_kind_of_error(text: str) -> None:
    for parse in (parse_duration_s, parse_size_bytes):
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize(
    ("number", "plural", "told"),
    [
        (0, "nodes", "0 nodes"),
        (1, "nodes", "1 node"),
        (1.0, "CPUs", "1 CPU"),
        (0.5, "CPUs", "0.5 CPUs"),
        (12_345_678, "jobs", "12345678 jobs"),
        (1, "MiB", "1 MiB"),
    ],
)
def test_a_number_with_its_noun(number: float, plural: str, told: str) -> None:
    assert counted(number, plural) == told


def test_of_many_names_the_first_are_told_and_how_many_more_there_are() -> None:
    assert first_named("abc", 3) == "a, b, c"
    assert first_named("abcdefg", 3) == "a, b, c and 4 more"
