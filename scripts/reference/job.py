"""The page of the job spec, from the model itself; each example is parsed before it is shown."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from gpuyard.errors import InvalidJob
from gpuyard.model import where, where_flags
from gpuyard.model.container import RESERVED_TARGETS, Mount, Ulimit
from gpuyard.model.fields import read_mib, read_seconds
from gpuyard.model.gpus import GpuRequest, parse_gpus
from gpuyard.model.intake import parse_spec
from gpuyard.model.job import (
    RESERVED_ENV,
    After,
    JobSpec,
    Retries,
    StopAfter,
)
from reference.markdown import block, code, described, page, table, value

NOT_YET: Final = "not accepted yet"
_UUID: Final = "GPU-33113a2e-738d-55bd-81b9-849dc902ef52"
_EXAMPLE: Final = """
name: train
image: pytorch/pytorch:2.3.1-cuda12.1-cudnn8-runtime
command: [python, train.py, --epochs, "90"]
env: {OMP_NUM_THREADS: "8"}
gpus: 2
cpus: 8
memory_mib: 32GiB
mounts: [{source: /data, target: /data, read_only: true}]
max_runtime: 4h
retries: {max: 2, when: [platform, hardware, "exit:75"]}
"""
_EXAMPLES: Final[dict[str, Any]] = {
    "id": "nightly-7",
    "name": "train",
    "image": "busybox:1.36",
    "command": ["python", "train.py"],
    "entrypoint": ["/bin/sh", "-c"],
    "env": {"OMP_NUM_THREADS": "8"},
    "workdir": "/work",
    "run_as": "1000:1000",
    "stdin": True,
    "tty": True,
    "labels": {"project": "ocean"},
    "user": "ana",
    "gpus": 2,
    "node": "gpu-07",
    "where": ["gpu-memory>=24", "zone!=b"],
    "prefer": ["zone=a"],
    "cpus": 8,
    "memory_mib": "32GiB",
    "shm_mib": "8g",
    "tmpfs": {"/scratch": "size=1g"},
    "ulimits": [{"name": "nofile", "soft": 1024, "hard": 4096}],
    "mounts": [{"source": "/data", "target": "/data", "read_only": True}],
    "network": "none",
    "ports": ["8888"],
    "pull": "always",
    "priority": 80,
    "preemptible": True,
    "tolerate": ["cordon:maintenance"],
    "max_runtime": "4h",
    "stop_grace": "2m",
    "retries": {"max": 2},
    "on_partition": {"stop_after": "2m"},
    "enforcement": "hard",
    "nodes": 2,
    "array": "0-99%8",
    "after": [{"job": "prepare"}],
    "hold": True,
    "not_before": "2h",
    "deadline": "2026-01-31T18:00:00+01:00",
}
_LINKED: Final = {
    "gpus": "number, text or map: [GPUs](#gpus)",
    "retries": "number, or a [map](#retries)",
    "on_partition": "`keep`, or a [map](#on_partition)",
    "where": "list of [conditions](#conditions)",
    "prefer": "list of [conditions](#conditions)",
}
_GPU_FORMS: Final = (
    ("none", "no GPU, as without the flag; `0` says the same"),
    ("2", "so many whole GPUs of one node"),
    ("all", "every GPU of one node, and only of a node where all are free"),
    ("device=0,2", "these NVML indexes, on any node that has them; `node` pins it"),
    ("0,1,2", "the same, without the word"),
    ("device=0", "one index; a bare `0` would be no GPU, a bare `1` one GPU"),
    (f"device={_UUID}", "these UUIDs; a unique beginning of at least 8 characters will do"),
    ("8GiB", "a share of one GPU: so much of its memory"),
    ("50%", "a share of one GPU: so much of it"),
    ("8GiB,50%", "a share of one GPU: both; the larger fraction counts"),
    ("mig=1g.10gb:2", "so many MIG instances of a profile ([more](../concepts.md#mig-instances))"),
)
# Line, what it means, labels for which it holds, labels for which it does not.
_CONDITIONS: Final = (
    ("zone=a", "the label has this value", {"zone": "a"}, {"zone": "b"}),
    ("zone=a|b", "one of these values", {"zone": "b"}, {"zone": "c"}),
    ("zone!=b", "any other value, or no such label", {}, {"zone": "b"}),
    ("zone", "the label is there", {"zone": "c"}, {}),
    ("!zone", "the label is not there", {}, {"zone": "a"}),
    (
        "gpu-name=NVIDIA-A100*",
        "`*` stands for any text",
        {"gpu-name": "NVIDIA-A100-SXM4-80GB"},
        {"gpu-name": "NVIDIA-H200"},
    ),
    (
        "gpu-memory>=24",
        "sizes in GiB; G, GB and GiB mean the same",
        {"gpu-memory": "80GB"},
        {"gpu-memory": "16GB"},
    ),
    (
        "gpu-cuda-version>=12.1",
        "versions by their parts; a missing part is 0",
        {"gpu-cuda-version": "12.4"},
        {"gpu-cuda-version": "11.8"},
    ),
    (
        "gpu-driver-version=535",
        "a version and all below it",
        {"gpu-driver-version": "535.183.01"},
        {"gpu-driver-version": "550.54.15"},
    ),
    ("speed<2.5e3", "numbers", {"speed": "100"}, {"speed": "9000"}),
)
_SHORT: Final = (
    ("--gpu-model", "RTX 4090", where_flags.from_gpu_model),
    ("--gpu-model", "A100|H100", where_flags.from_gpu_model),
    ("--gpu-memory", "24", where_flags.from_gpu_memory),
    ("--cuda", "12.1", where_flags.from_cuda),
)


def job_page() -> str:
    spec = YAML(typ="safe", pure=True).load(_EXAMPLE)
    parse_spec(spec)
    return page(
        "A job",
        "What a job may say, the same in a YAML or JSON file (`gpuyard submit -f`), on the bus and "
        "in the SDK. Only `image` must be there. An unknown field is refused with the nearest "
        "known name. The [JSON Schema](job.schema.json) says the same to a machine; it shows the "
        "kept form, in which times are seconds and sizes MiB.",
        block("yaml", _EXAMPLE),
        "## Fields",
        f"Examples are JSON, which is YAML too. A field marked *{NOT_YET}* is known and refused by "
        "name.",
        _fields(JobSpec),
        "A *duration* is a number of seconds or a text: `90s`, `30m`, `4h`, `2d`, `1h30m`, "
        "`4:00:00`. A *size* is a number of MiB or a text in docker's manner: `512m`, `8g`, "
        "`8GiB`, where a text that is a bare number counts bytes.",
        *_parts(),
        "## GPUs",
        "`--gpus TEXT` on the command line; in a file `gpus:` takes the same text, a number or the "
        "map.",
        _gpu_forms(),
        _share_note(),
        "GPUs of a job are of one node. Which ones it got is in `GPUYARD_GPU_UUIDS` in the "
        "container and in `gpuyard job`.",
        "## Conditions",
        "Each line of `where` must hold, each of `prefer` should; `--where` and `--prefer` take "
        "one line each, in quotes, since the shell takes an unquoted `>` for a file.",
        _conditions(),
        "Keys are the node's labels (`gpuyard node NAME` shows them) and `node`, `gpu-uuid` and "
        "`compute-capability`. Lines on a GPU (`gpu-name`, `gpu-memory`, `gpu-uuid`, "
        "`compute-capability`) are held against each GPU, so one node may have GPUs that fit and "
        "others that do not; all others are held against the node. The label `gpu-driver-version` "
        "shows the major version (`550`), and lines are held against the whole one (`550.54.15`), "
        "so that `gpu-driver-version>=550.54` can be told. A label that is not there "
        "satisfies `!=` and `!key` and nothing else.",
        table(
            ["short", "means"],
            ((code(f"{flag} '{text}'"), code(make(text))) for flag, text, make in _SHORT),
        ),
        "## Reserved",
        f"Refused by name: env {', '.join(map(code, RESERVED_ENV))}, `NVIDIA_MIG_*_DEVICES`, "
        "`CUDA_MPS_*` and `GPUYARD_*`; labels that begin with `gpuyard.`; mount targets under "
        f"{', '.join(map(code, RESERVED_TARGETS))}. `CUDA_VISIBLE_DEVICES` and "
        "`NVIDIA_DRIVER_CAPABILITIES` are yours.",
        "## In the container",
        _environment(),
    )


def _fields(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()["properties"]
    words = described(model.model_fields, _EXAMPLES, "examples of job fields")
    return table(
        ["field", "type", "default", "means", "example"],
        (
            (
                code(name),
                _LINKED.get(name) or field_type(model.model_fields[name], schema[name]),
                field_default(model.model_fields[name]),
                (model.model_fields[name].description or "") + _mark({name: example}),
                value(example),
            )
            for name, example in words
        ),
    )


def _parts() -> Iterator[str]:
    for name, model in (
        ("mounts", Mount),
        ("ulimits", Ulimit),
        ("retries", Retries),
        ("on_partition", StopAfter),
        ("after", After),
    ):
        schema = model.model_json_schema()["properties"]
        yield f"### {name}"
        # A docstring of the model's own; pydantic hands the base's down.
        if "__doc__" in vars(model) and model.__doc__:
            yield inspect.cleandoc(model.__doc__).split("\n\n")[0].replace("\n", " ")
        yield table(
            ["key", "type", "default", "means"],
            (
                (
                    code(key),
                    field_type(field, schema[key]),
                    field_default(field),
                    field.description or "",
                )
                for key, field in model.model_fields.items()
            ),
        )


def _mark(fields: dict[str, Any]) -> str:
    """` *Not accepted yet.*` where the intake says so; any other fault is one of the example."""
    return "" if _is_accepted(fields) else f" *{NOT_YET.capitalize()}.*"


def _is_accepted(fields: dict[str, Any]) -> bool:
    try:
        parse_spec({"image": "busybox", **fields})
    except InvalidJob as fault:
        if {one.code for one in fault.faults} == {"not_supported_yet"}:
            return False
        raise SystemExit(f"scripts/reference: the example {fields} is wrong: {fault}") from fault
    return True


def field_type(field: FieldInfo, schema: dict[str, Any]) -> str:
    """In words; what also takes a text is named after the text."""
    if (reads := _reader(field)) is not None:
        return reads
    return _words(schema) + _range(schema)


def _reader(field: FieldInfo) -> str | None:
    """`duration` or `size` for what also takes a text, told by what reads it."""
    for item in (*field.metadata, *_annotated(field.annotation)):
        if isinstance(item, BeforeValidator):
            if item.func is read_seconds:
                return "duration"
            if item.func is read_mib:
                return "size"
    return None


def _annotated(kind: Any) -> Iterable[Any]:
    return [item for option in get_args(kind) for item in getattr(option, "__metadata__", ())]


def _words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [_words(one) + _range(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2].lower()
        return f"[{name}](#{ {'mount': 'mounts', 'ulimit': 'ulimits'}.get(name, name) })"
    if "enum" in schema:
        return ", ".join(map(code, schema["enum"]))
    if "const" in schema:
        return code(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        inner = _words(schema["items"])
        return f"list of {inner}s" if inner == "text" else f"list of {inner}"
    if kind == "object":
        keys = schema.get("propertyNames", {})
        if "const" in keys:
            return f"`{{{keys['const']}: …}}`"
        return "map of texts"
    return {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
    }[str(kind)]


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, longest = schema.get("exclusiveMinimum"), schema.get("maxLength")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    if above is not None and high is not None:
        return f", above {above:g}, at most {high:g}"
    if low is not None:
        return f", from {low:g}"
    return f", at most {longest} characters" if longest is not None else ""


def field_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    made = field.get_default(call_default_factory=True)
    if made is None or (isinstance(made, list | dict) and not made):
        return "-"
    if isinstance(made, GpuRequest):
        return "no GPU"
    if isinstance(made, BaseModel):
        return value(made.model_dump(mode="json"))
    return value(made)


def _gpu_forms() -> str:
    def row(text: str, means: str) -> tuple[str, str, str, str]:
        fields = {key: plain_number(item) for key, item in parse_gpus(text).items()}
        accepted = "yes" if _is_accepted({"gpus": text}) else "not yet"
        return code(text), value(fields), means, accepted

    return table(["text", "as a map", "means", "accepted"], (row(*form) for form in _GPU_FORMS))


def plain_number(item: object) -> object:
    """A whole number without its `.0`; all else as it is."""
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _share_note() -> str:
    if not _is_accepted({"gpus": "50%"}):
        return "One form at a time: a number beside `ids`, `all` or a share is refused."
    return (
        "One form at a time: a number beside `ids`, `all` or a share is refused. A share is placed "
        "and counted, by the larger of its two fractions; nothing holds the job to it yet."
    )


def _conditions() -> str:
    rows = []
    for line, means, good, bad in _CONDITIONS:
        parsed = where.parse(line)
        if not where.holds(parsed, good) or where.holds(parsed, bad):
            raise SystemExit(f"scripts/reference: the example labels of {line} are wrong")
        rows.append((code(line), means, _labels(good), _labels(bad)))
    return table(["line", "holds for", "as", "not for"], rows)


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(code(f"{key}={text}") for key, text in labels.items()) or "no such label"


def _environment() -> str:
    rows = [
        ("GPUYARD_JOB_ID, GPUYARD_JOB_NAME", "the job's id and name"),
        ("GPUYARD_TENANT, GPUYARD_USER", "whose job it is"),
        ("GPUYARD_NODE", "the node it runs on"),
        ("GPUYARD_ATTEMPT", "which try it is, from 1"),
        ("GPUYARD_GPU_UUIDS", "the UUIDs it holds, with commas"),
        ("GPUYARD_ARRAY_TASK", "of a task of an array its number"),
        ("GPUYARD_DEADLINE", "the earlier of `deadline` and the end of `max_runtime`, as RFC 3339"),
        (
            "NVIDIA_VISIBLE_DEVICES",
            "the same UUIDs; `void` without GPUs, and where CDI hands them in",
        ),
        ("CUDA_DEVICE_ORDER", "`PCI_BUS_ID`, unless the job sets it"),
    ]
    return table(["variable", "is"], ((", ".join(map(code, n.split(", "))), t) for n, t in rows))
