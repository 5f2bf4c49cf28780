"""JobSpec at the door: one clear line per fault, one kept form, and a schema."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.errors import InvalidJob
from gpuyard.model.faults import PATTERNS
from gpuyard.model.intake import parse_spec
from gpuyard.model.job import JobSpec, spec_digest
from gpuyard.model.tenant import TenantSpec

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_IMAGE = "must be an image's name, as registry:5000/team/name:tag, in lower case"
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"image": None}, "image", "must be a text"),
    ({"image": ""}, "image", "must not be empty"),
    ({"image": "a b"}, "image", f"{_IMAGE}, not 'a b'"),
    ({"image": "Team/Image"}, "image", f"{_IMAGE}, not 'Team/Image'"),
    ({"image": "team//image"}, "image", f"{_IMAGE}, not 'team//image'"),
    ({"image": "../image"}, "image", f"{_IMAGE}, not '../image'"),
    ({"image": "http://host/image"}, "image", f"{_IMAGE}, not 'http://host/image'"),
    ({"image": "image:"}, "image", f"{_IMAGE}, not 'image:'"),
    ({"image": "image:tag:2"}, "image", f"{_IMAGE}, not 'image:tag:2'"),
    ({"image": "image@sha256:12"}, "image", f"{_IMAGE}, not 'image@sha256:12'"),
    ({"image": "bild-ä"}, "image", f"{_IMAGE}, not 'bild-ä'"),
    ({"gpu": 2}, "gpu", "did you mean gpus?"),
    ({"memory": "8g"}, "memory", "did you mean memory_mib?"),
    ({"gpus": True}, "gpus", "truth value"),
    ({"gpus": 1.5}, "gpus", "share"),
    ({"gpus": -1}, "gpus.count", "must be at least 0, not -1"),
    ({"gpus": 4096}, "gpus.count", "must be at most 1024, not 4096"),
    ({"gpus": "lots"}, "gpus", "'lots' is not a GPU request"),
    ({"gpus": {"count": "2"}}, "gpus.count", "whole number"),
    ({"gpus": {"cuont": 2}}, "gpus.cuont", "did you mean count?"),
    ({"gpus": [1]}, "gpus", "map"),
    ({"gpus": {"count": 2, "all": True}}, "gpus", "only one of"),
    ({"gpus": {"ids": ["0", "0"]}}, "gpus", "named twice"),
    ({"gpus": {"mig": "1g10gb"}}, "gpus.mig", "must be a MIG profile"),
    ({"gpus": {"memory_mib": True}}, "gpus.memory_mib", "not true or false"),
    ({"gpus": {"core_percent": True}}, "gpus.core_percent", "not true or false"),
    ({"gpus": "٣"}, "gpus", "'٣' is not a GPU request"),
    ({"gpus": "mig=1g.10gb:²"}, "gpus", "'²' is not a number of MIG instances"),
    ({"gpus": "٣0%"}, "gpus", "'٣0%' is not a GPU request"),
    ({"max_runtime": "٢h"}, "max_runtime", "is not a duration"),
    ({"memory_mib": "٢g"}, "memory_mib", "is not a size"),
    ({"not_before": "٢h"}, "not_before", "is no time"),
    ({"after": [{"job": "a_00"}]}, "after[0].job", "'a_00' is not a job's id"),
    ({"cpus": True}, "cpus", "not true or false"),
    ({"cpus": "many"}, "cpus", "must be a number"),
    ({"cpus": 0}, "cpus", "must be at least 0.01, not 0"),
    ({"memory_mib": True}, "memory_mib", "not true or false"),
    ({"memory_mib": "8gg"}, "memory_mib", "512m, 8g or 8GiB"),
    ({"memory_mib": 1.5}, "memory_mib", "whole number"),
    ({"memory_mib": 0}, "memory_mib", "must be at least 6, not 0"),
    ({"max_runtime": "banana"}, "max_runtime", "90s, 30m, 4h"),
    ({"max_runtime": 0}, "max_runtime", "0.001"),
    ({"stop_grace": -1}, "stop_grace", "0.001"),
    ({"priority": 101}, "priority", "must be at most 100, not 101"),
    ({"priority": None}, "priority", "must be a whole number, not null"),
    ({"tty": None}, "tty", "must be true or false, not null"),
    ({"name": True}, "name", "must be a text, not true"),
    ({"gpus": b"x"}, "gpus", "must be a map of names to values, not binary data"),
    ({"name": "a\x1b[31m"}, "name", "control character"),
    ({"name": "a\nb"}, "name", "control character"),
    ({"name": "x" * 200}, "name", "must have at most 128 characters"),
    ({"gpus": "150%"}, "gpus", "'150%': a share is more than 0% of one GPU, and at most 100%"),
    ({"gpus": {"core_percent": 150}}, "gpus.core_percent", "must be at most 100, not 150"),
    ({"gpus": ""}, "gpus", "it is empty; write 0 for none"),
    ({"max_runtime": "99999999d"}, "max_runtime", "must be at most 3650d, not '99999999d'"),
    ({"max_runtime": 1e12}, "max_runtime", "must be at most 315360000, not 1000000000000.0"),
    ({"max_runtime": "4:99:00"}, "max_runtime", "is not a duration"),
    ({"priority": True}, "priority", "not true or false"),
    ({"priority": "high"}, "priority", "whole number"),
    ({"env": {"A": 1}}, "env.A", "must be a text"),
    ({"env": ["A=1"]}, "env", "map"),
    ({"env": {"1A": "x"}}, "env.1A", "with no digit first, not '1A'"),
    ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "env", "ask for GPUs with gpus"),
    ({"env": {"NVIDIA_DISABLE_REQUIRE": "1"}}, "env", "reserved"),
    ({"env": {"NVIDIA_MIG_CONFIG_DEVICES": "all"}}, "env", "reserved"),
    ({"env": {"CUDA_MPS_PIPE_DIRECTORY": "/x"}}, "env", "reserved"),
    ({"env": {"GPUYARD_JOB_ID": "x"}}, "env", "reserved"),
    ({"command": "echo hi"}, "command", '["echo", "hi"]'),
    ({"command": [1]}, "command[0]", "must be a text"),
    ({"entrypoint": "sh"}, "entrypoint", "list"),
    ({"workdir": "rel"}, "workdir", "must be an absolute path, as /data, not 'rel'"),
    ({"mounts": [{"source": "/a", "target": "/run/x"}]}, "mounts[0].target", "/run"),
    ({"mounts": [{"source": "/a", "target": "/./proc"}]}, "mounts[0].target", "/proc"),
    ({"mounts": [{"source": "/a", "target": "//dev//shm/"}]}, "mounts[0].target", "/dev"),
    ({"mounts": [{"source": "/a", "target": "/x/../sys"}]}, "mounts[0].target", "'..'"),
    ({"mounts": [{"source": "a b", "target": "/x"}]}, "mounts[0].source", "absolute path"),
    ({"mounts": [{"target": "/x"}]}, "mounts[0].source", "is required"),
    ({"mounts": [{"source": "/", "target": "/x", "ro": True}]}, "mounts[0].ro", "unknown field"),
    ({"ports": ["99999"]}, "ports", "not a port"),
    ({"ports": ["0:80"]}, "ports", "not a port"),
    ({"ports": [8888]}, "ports[0]", "must be a text"),
    ({"network": "host", "ports": ["80"]}, "", "network: host"),
    ({"shm_mib": 10, "memory_mib": 8}, "", "shm_mib is larger"),
    ({"retries": {"max": 1, "when": ["sometimes"]}}, "retries.when", "'sometimes'"),
    ({"retries": True}, "retries", "map"),
    ({"retries": {"max": True}}, "retries.max", "not true or false"),
    ({"labels": {"gpuyard.x": "1"}}, "labels", "reserved"),
    ({"node": "A_B"}, "node", "not a node's name"),
    ({"id": "Bad!"}, "id", "1 to 48"),
    ({"id": "jlm4k2abc-2"}, "id", "given by the yard alone"),
    ({"user": "A B"}, "user", "1 to 64"),
    ({"tty": "maybe"}, "tty", "true or false"),
    ({"pull": "often"}, "pull", "must be missing, always or never, not 'often'"),
    ({"ulimits": [{"name": "nofile", "soft": 1}]}, "ulimits[0].hard", "is required"),
    ({"ulimits": [{"name": "foo", "soft": 1, "hard": 1}]}, "ulimits[0].name", "nofile, nproc"),
    ({"ulimits": [{"name": "nofile", "soft": 5, "hard": 1}]}, "ulimits[0]", "which is 1, not 5"),
    ({"ulimits": [{"name": "core", "soft": -1, "hard": 1}]}, "ulimits[0]", "not unlimited"),
    ({"memory_mib": 5}, "memory_mib", "6"),
    ({"memory_mib": "1m"}, "memory_mib", "at least 6 MiB"),
    ({"cpus": 0.009}, "cpus", "0.01"),
    ({"run_as": "-1"}, "run_as", "USER or USER:GROUP"),
    ({"run_as": "1000:-1"}, "run_as", "USER or USER:GROUP"),
    ({"run_as": "4294967295"}, "run_as", "at most 2147483647"),
    ({"tmpfs": {"scratch": ""}}, "tmpfs", "absolute path"),
    ({"nodes": 201}, "nodes", "200"),
    (
        {"on_partition": {"stop_after": "0.9s"}},
        "on_partition.stop_after",
        "at least 1s, not '0.9s'",
    ),
    ({"on_partition": {}}, "on_partition.stop_after", "is required"),
    ({"retries": {"max": 1, "backoff": "25h"}}, "retries.backoff", "at most 1d, not '25h'"),
    ({"on_partition": "drop"}, "on_partition", "'keep'"),
]


def patterns(schema: Any) -> set[str]:
    """Every regular expression that a JSON schema holds."""
    if isinstance(schema, list):
        return {text for item in schema for text in patterns(item)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
    # Names of a map with rules of their own stand as keys.
    own |= set(schema.get("patternProperties") or ())
    return own | patterns(list(schema.values()))


def test_every_pattern_of_a_document_has_words() -> None:
    found = patterns([JobSpec.model_json_schema(), TenantSpec.model_json_schema()])
    assert r"^/" in found
    assert found <= set(PATTERNS)


@pytest.mark.parametrize(("fields", "field", "words"), FAULTS, ids=lambda value: str(value)[:40])
def test_each_fault_is_one_clear_line_that_names_its_field(
    fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_spec({"image": "busybox"} | fields)

    lines = {fault.field: str(fault) for fault in caught.value.faults}
    assert field in lines
    assert words in lines[field]
    assert all("\n" not in line and len(line) < 300 for line in lines.values())


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "pytorch/pytorch:2.6.0-cuda12.4",
        "nvcr.io/nvidia/pytorch:24.10-py3",
        "localhost/a",
        "Host/a",
        "host:5000/team/a__b-c.d:_Tag.1",
        "[::1]:5000/a",
        "sha256:" + "0" * 64,
        "a@sha256:" + "f" * 64,
        "registry.example/a/b:1@sha256:" + "0" * 64,
    ],
)
def test_images_of_all_forms_are_taken(image: str) -> None:
    assert parse_spec({"image": image}).image == image


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_spec({"gpus": -1, "priority": 500, "colour": "red"})

    assert {fault.field for fault in caught.value.faults} == {
        "image",
        "gpus.count",
        "priority",
        "colour",
    }


def test_the_envelope_is_passed_over() -> None:
    assert parse_spec({"v": 1, "tenant": "x", "image": "busybox"}) == JobSpec(image="busybox")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"max_runtime": "4h"}, {"max_runtime": "14400s"}),
        ({"max_runtime": "4:00:00"}, {"max_runtime": "14400s"}),
        (
            {"max_runtime": 1.5, "stop_grace": 0.001},
            {"max_runtime": "1.5s", "stop_grace": "0.001s"},
        ),
        ({"memory_mib": "8g"}, {"memory_mib": 8192}),
        (
            {"retries": 2},
            {"retries": {"max": 2, "when": ["platform", "hardware"], "backoff": "10s"}},
        ),
        ({"on_partition": "keep"}, {"on_partition": "keep"}),
        ({"on_partition": {"stop_after": "2m"}}, {"on_partition": {"stop_after": "120s"}}),
        ({"mounts": [{"source": "/a", "target": "//x//y/"}]}, {}),
    ],
)
def test_what_is_written_in_many_ways_is_kept_in_one(
    fields: dict[str, Any], kept: dict[str, Any]
) -> None:
    normalised = parse_spec({"image": "busybox"} | fields).normalised()

    assert normalised | kept == normalised
    assert "id" not in normalised and "user" not in normalised


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
bodies = st.fixed_dictionaries(
    {"image": st.from_regex(r"[a-z]{1,9}(:[a-z0-9]{1,5})?", fullmatch=True)},
    optional={
        "name": st.text("abcxyz-", min_size=1, max_size=12),
        "command": st.lists(texts, max_size=3),
        "env": st.dictionaries(st.from_regex(r"[A-F]{1,4}", fullmatch=True), texts, max_size=3),
        "labels": st.dictionaries(st.text("abc", max_size=3), texts, max_size=2),
        "gpus": st.integers(0, 16)
        | st.sampled_from(["all", "none", "device=0,2", "GPU-1234567", {"count": 2}, None]),
        "cpus": st.floats(0.01, 1000) | st.integers(1, 100),
        "memory_mib": st.integers(6, 10**6) | st.sampled_from(["1g", "512m", "0.5TiB"]),
        "max_runtime": st.floats(0.001, 3e8) | st.sampled_from(["1h30m", "2d", "1-12:00", "90"]),
        "stop_grace": st.floats(0.001, 1000),
        "priority": st.integers(0, 100),
        "retries": st.integers(0, 5),
        "tty": st.booleans(),
        "ports": st.lists(st.sampled_from(["80", "8080:80", "53/udp"]), max_size=2),
    },
)


@UNHURRIED
@given(bodies)
def test_the_kept_form_reads_back_equal_and_has_one_digest(body: dict[str, Any]) -> None:
    kept = parse_spec(body).normalised()

    again = parse_spec(json.loads(json.dumps(kept))).normalised()

    assert again == kept
    assert spec_digest(again) == spec_digest(dict(reversed(kept.items())))


def test_the_schema_is_one_that_tools_can_read() -> None:
    schema = JobSpec.model_json_schema()

    json.dumps(schema)
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["required"] == ["image"]
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    for reference in _references(schema):
        assert reference.removeprefix("#/$defs/") in schema["$defs"]


def _references(part: object) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [found for value in part.values() for found in _references(value)]
    if isinstance(part, list):
        return [found for value in part for found in _references(value)]
    return []


def test_the_schema_says_bounds_in_its_own_words() -> None:
    told = json.dumps(JobSpec.model_json_schema())
    assert [word for word in ("ge", "gt", "le", "lt") if f'"{word}":' in told] == []
    assert '"exclusiveMinimum": 0' in told
