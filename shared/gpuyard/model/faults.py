"""What pydantic finds wrong with a document, in the yard's words and with the field's path."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from gpuyard.errors import FieldFault
from gpuyard.model import image, mig
from gpuyard.model.quantities import format_days

_CODES: Final = {
    "missing": "required",
    "extra_forbidden": "unknown_field",
    "value_error": "invalid",
    "literal_error": "invalid",
    "string_pattern_mismatch": "invalid",
}
_TYPES: Final = {
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of a sensible size",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a map of names to values",
    "model_type": "must be a map of names to values",
}
_BOUNDS: Final = {
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "too_short": ("min_length", "must have at least {} items"),
    "too_long": ("max_length", "must have at most {} items"),
}
PATTERNS: Final = {
    r"^/": "must be an absolute path, as /data",
    image.REFERENCE: "must be an image's name, as registry:5000/team/name:tag, in lower case",
    r"^[A-Za-z_][A-Za-z0-9_.-]*$": "must be letters, digits, _, . and -, with no digit first",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "must be letters, digits, _, . and -",
    r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*(:[A-Za-z0-9_.][A-Za-z0-9_.-]*)?$": (
        "must be USER or USER:GROUP, as 1000:1000"
    ),
    mig.PROFILE: "must be a MIG profile, as 1g.10gb",
}
"""Every pattern of a model's field, in words."""
_LONGEST: Final = 60
_ABSENT: Final = object()


def faults_of(
    error: ValidationError, model: type[BaseModel], given: Mapping[str, Any] | None = None
) -> Iterable[FieldFault]:
    """One fault per field that is wrong, with the nearest name for an unknown one.

    With `given`, the document, values are shown as they were written, not as they were read.
    """
    seen: set[str] = set()
    for item in error.errors(include_url=False, include_context=True, include_input=True):
        path = field_path(item["loc"])
        if path in seen:
            continue
        seen.add(path)
        kind = item["type"]
        nearest = _nearest(item["loc"], model) if kind == "extra_forbidden" else None
        yield FieldFault(
            field=path,
            code=_CODES.get(kind, "wrong_type" if kind in _TYPES else "out_of_range"),
            message=_message(item, path, _written(given, item["loc"])),
            did_you_mean=nearest,
        )


def _message(item: Mapping[str, Any], path: str, written: Any) -> str:
    kind, text, context = item["type"], item["msg"], item.get("ctx") or {}
    read = item.get("input")
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return str(text).removeprefix("Value error, ")
    if kind == "string_too_short" and context.get("min_length") == 1:
        return "must not be empty"
    shown = _shown(read if written is _ABSENT else written)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        is_number = kind.startswith(("less", "greater"))
        bound = _bound(context[key], path, written) if is_number else context[key]
        return f"{words.format(bound)}, not {shown}"
    if kind == "literal_error":
        return f"must be {str(context['expected']).replace(chr(39), '')}, not {shown}"
    if kind == "string_pattern_mismatch":
        words = PATTERNS.get(context["pattern"], "is not written as this field is")
        return f"{words}, not {shown}"
    if kind in _TYPES:
        return f"{_TYPES[kind]}, not {shown}"
    return f"{text[:1].lower()}{text[1:]}, not {shown}"


def _written(given: Any, location: Sequence[int | str]) -> Any:
    """The value at a place of the document; what holds it, where it was written as a text."""
    if given is None or "[key]" in location:
        return _ABSENT
    value = given
    for part in location:
        if not isinstance(value, Mapping | list) or _is_mark(part):
            continue
        try:
            value = value[part]  # type: ignore[index]  # of a list by a name it raises TypeError
        except (LookupError, TypeError):
            return _ABSENT
    return value


def _is_mark(part: int | str) -> bool:
    """True for what pydantic adds to a place by itself, as for one form of several."""
    return isinstance(part, str) and (part in ("function-before", "dict") or "[" in part)


def _bound(limit: float, path: str, written: Any) -> str:
    """A limit, of what was written with a unit with one too: sizes are fields named so."""
    if isinstance(written, str) and re.search(r"[a-zA-Z:]", written):
        return f"{limit} MiB" if path.endswith("_mib") else format_days(limit)
    return f"{limit:g}" if abs(limit) < 1e6 else f"{limit:.0f}"


def _shown(value: Any) -> str:
    """A value in the words of JSON and YAML, cut where it is long."""
    if isinstance(value, str):
        text = f"'{value}'" if value.isprintable() else ascii(value)
    elif isinstance(value, float) and not math.isfinite(value):
        text = f".{value}".replace(".-", "-.")
    elif isinstance(value, bytes):
        text = "binary data"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def field_path(location: Iterable[int | str]) -> str:
    """`mounts[0].target` for ("mounts", 0, "target"); pydantic's own marks are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_mark(part):
            path += f".{part}" if path else part
    return path


def _nearest(location: tuple[int | str, ...], model: type[BaseModel]) -> str | None:
    for part in location[:-1]:
        field = model.model_fields.get(str(part)) if isinstance(part, str) else None
        for inner in (field.annotation, *get_args(field.annotation)) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    found = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1, cutoff=0.6)
    return found[0] if found else None
