"""The grammar of `--gpus` and the forms of `gpus` in a body."""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.model.gpus import GpuRequest, normalise_gpus, parse_gpus

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

UUID = "GPU-3f2a5c1e-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("0", {"count": 0}),
        ("none", {"count": 0}),
        ("4", {"count": 4}),
        ("all", {"all": True}),
        ("device=0,2", {"ids": ["0", "2"]}),
        ('"device=0,2"', {"ids": ["0", "2"]}),
        ("'device=0'", {"ids": ["0"]}),
        ("device=0", {"ids": ["0"]}),
        ("0,1,2", {"ids": ["0", "1", "2"]}),
        (" 0, 1 ", {"ids": ["0", "1"]}),
        (UUID, {"ids": [UUID]}),
        (f"device={UUID},GPU-12345678", {"ids": [UUID, "GPU-12345678"]}),
        ("8GiB", {"memory_mib": 8192}),
        ("50%", {"core_percent": 50.0}),
        ("8GiB,50%", {"memory_mib": 8192, "core_percent": 50.0}),
        ("50%,8g", {"memory_mib": 8192, "core_percent": 50.0}),
        ("mig=1g.10gb", {"mig": "1g.10gb", "count": 1}),
        ("mig=1g.10gb:3", {"mig": "1g.10gb", "count": 3}),
    ],
)
def test_every_form_of_the_grammar(text: str, fields: dict[str, Any]) -> None:
    assert parse_gpus(text) == fields
    assert GpuRequest.model_validate(fields)


@pytest.mark.parametrize(
    "text",
    [
        "two",
        "-1",
        "1.5",
        "device=",
        "device=x",
        "device=0,,1",
        "0,GPU-xyz",
        "8GiB,8GiB",
        "50%,50%",
        "8GiB,0",
        "8 gibberish",
        "mig=1g.10gb:many",
        "all,0",
    ],
)
def test_anything_else_is_one_line_that_shows_what_was_written(text: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_gpus(text)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "requested"),
    [
        (None, {"count": 0}),
        (0, {"count": 0}),
        (2, {"count": 2}),
        ("2", {"count": 2}),
        ({"count": 2}, {"count": 2}),
        ({"count": 2, "mig": None, "ids": None}, {"count": 2}),
        ({"all": True}, {"all": True}),
        ({"ids": [0, "2"]}, {"ids": ["0", "2"]}),
        ({"ids": [UUID]}, {"ids": [UUID]}),
        ({"mig": "1g.10gb"}, {"mig": "1g.10gb", "count": 1}),
    ],
)
def test_a_body_may_write_it_in_several_ways(value: object, requested: dict[str, Any]) -> None:
    nothing = GpuRequest().requested()

    assert GpuRequest.model_validate(normalise_gpus(value)).requested() == nothing | requested


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 1, "all": True},
        {"count": 1, "ids": ["0"]},
        {"all": True, "ids": ["0"]},
        {"count": 2, "memory_mib": 8192},
        {"mig": "1g.10gb", "core_percent": 50},
        {"ids": ["0", "0"]},
        {"ids": ["GPU-12"]},
        {"ids": ["zero"]},
        {"core_percent": 101},
        {"memory_mib": 0},
        {"mig": "big"},
        {"count": True},
    ],
)
def test_contradictions_and_nonsense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        GpuRequest.model_validate(fields)


@UNHURRIED
@given(st.integers(0, 1024))
def test_any_number_of_whole_gpus_is_kept(count: int) -> None:
    kept = GpuRequest.model_validate(normalise_gpus(str(count))).requested()

    assert GpuRequest.model_validate(normalise_gpus(dict(kept))).requested() == kept
    assert kept["count"] == count


@UNHURRIED
@given(st.text(max_size=30))
def test_no_text_raises_anything_but_one_kind_of_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        GpuRequest.model_validate(parse_gpus(text))
