"""From a body that somebody sent to a `JobSpec`, or to every fault it has."""

import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from gpuyard.errors import FieldFault, InvalidJob
from gpuyard.model.job import JobSpec

_CODES: Final = {
    "missing": "required",
    "extra_forbidden": "unknown_field",
    "value_error": "invalid",
    "literal_error": "invalid",
    "string_pattern_mismatch": "invalid",
}
_LATER: Final = (
    ("nodes", "jobs over several nodes"),
    ("array", "arrays"),
    ("after", "dependencies"),
    ("hold", "held jobs"),
    ("where", "selection by label"),
    ("prefer", "preferences"),
    ("tolerate", "tolerations"),
    ("enforcement", "a floor of enforcement"),
    ("stdin", "standard input"),
)
_WORDS: Final = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a map of names to values",
    "model_type": "must be a map of names to values",
    "missing": "is required",
}


def parse_spec(body: Mapping[str, Any]) -> JobSpec:
    """The spec of a submitted body.

    Raises InvalidJob with one fault per wrong field. Keys `v` and `tenant` of the envelope are
    passed over: the subject says the tenant.
    """
    fields = {key: value for key, value in body.items() if key not in ("v", "tenant")}
    try:
        spec = JobSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidJob(list(_faults(error))) from None
    if faults := list(_not_yet(spec)):
        raise InvalidJob(faults)
    return spec


def _faults(error: ValidationError) -> Iterable[FieldFault]:
    seen: set[str] = set()
    for item in error.errors(include_url=False, include_context=False, include_input=True):
        path = field_path(item["loc"])
        if path in seen:
            continue
        seen.add(path)
        kind, given = item["type"], item.get("input")
        nearest = _nearest(item["loc"]) if kind == "extra_forbidden" else None
        yield FieldFault(
            field=path,
            code=_CODES.get(kind, "wrong_type" if kind in _WORDS else "out_of_range"),
            message=_message(kind, item["msg"], given),
            did_you_mean=nearest,
        )


def _message(kind: str, text: str, given: Any) -> str:
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "value_error":
        return text.removeprefix("Value error, ")
    if kind == "missing":
        return _WORDS[kind]
    shown = repr(given) if len(repr(given)) <= 60 else repr(given)[:57] + "..."
    if kind in _WORDS:
        return f"{_WORDS[kind]}, not {shown}"
    return f"{text[:1].lower()}{text[1:]}, not {shown}"


def field_path(location: Iterable[int | str]) -> str:
    """`mounts[0].target` for ("mounts", 0, "target"); pydantic's own marks are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("[key]", "function-before", "dict") and "[" not in part:
            path += f".{part}" if path else part
    return path


def _nearest(location: tuple[int | str, ...]) -> str | None:
    model: type[BaseModel] = JobSpec
    for part in location[:-1]:
        field = model.model_fields.get(str(part)) if isinstance(part, str) else None
        for inner in (field.annotation, *get_args(field.annotation)) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    found = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1, cutoff=0.6)
    return found[0] if found else None


@functools.cache
def _defaults() -> JobSpec:
    """Made once: it costs as much as reading many specs."""
    return JobSpec.model_construct(image="")


def _not_yet(spec: JobSpec) -> Iterable[FieldFault]:
    defaults = _defaults()
    for name, what in _LATER:
        if getattr(spec, name) != getattr(defaults, name):
            yield FieldFault(name, "not_supported_yet", f"{what}: not supported yet")
    if spec.gpus.is_share:
        yield FieldFault("gpus", "not_supported_yet", "shares of a GPU are not supported yet")
    if spec.gpus.mig is not None:
        yield FieldFault("gpus", "not_supported_yet", "MIG instances are not supported yet")
    if isinstance(spec.on_partition, dict):
        yield FieldFault("on_partition", "not_supported_yet", "stop_after is not supported yet")
