"""Values that no job may hold, wherever they stand."""

import pytest

from gpuyard.errors import InvalidJob
from gpuyard.model.ids import array_of
from gpuyard.model.intake import parse_spec
from gpuyard.model.plain import unusable


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"command": ["echo", "a\0b"]}, "command[1]", "NUL"),
        ({"env": {"A": "a\0b"}}, "env.A", "NUL"),
        ({"workdir": "/a\0"}, "workdir", "NUL"),
        ({"command": ["\udcff"]}, "command[0]", "UTF-8"),
        ({"cpus": float("nan")}, "cpus", "finite"),
        ({"cpus": float("inf")}, "cpus", "finite"),
        ({"gpus": {"count": 10**20}}, "gpus.count", "large"),
        ({"mounts": [{"source": "/a", "target": "/b\0"}]}, "mounts[0].target", "NUL"),
    ],
)
def test_each_is_refused_by_its_fields_path(
    fields: dict[str, object], path: str, words: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        parse_spec({"image": "i", **fields})
    (fault,) = refused.value.faults
    assert fault.field == path and words in fault.message


def test_what_programs_can_be_given_passes() -> None:
    body = {"command": ["é\n\t€", ""], "cpus": 0.5, "n": 2**63 - 1, "none": None, "yes": True}
    assert list(unusable(body)) == []


@pytest.mark.parametrize("id", ["a_00", "a_٣", "a_", "a_-1", "_3", "a_3_4", "a_9999999999"])
def test_a_task_has_one_id(id: str) -> None:
    assert array_of("a_3") == ("a", 3)
    assert array_of(id) is None
