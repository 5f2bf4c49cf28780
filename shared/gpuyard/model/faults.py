"""What pydantic finds wrong with a document, in the yard's words and with the field's path."""

import difflib
from collections.abc import Iterable
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from gpuyard.errors import FieldFault

_CODES: Final = {
    "missing": "required",
    "extra_forbidden": "unknown_field",
    "value_error": "invalid",
    "literal_error": "invalid",
    "string_pattern_mismatch": "invalid",
}
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


def faults_of(error: ValidationError, model: type[BaseModel]) -> Iterable[FieldFault]:
    """One fault per field that is wrong, with the nearest name for an unknown one."""
    seen: set[str] = set()
    for item in error.errors(include_url=False, include_context=False, include_input=True):
        path = field_path(item["loc"])
        if path in seen:
            continue
        seen.add(path)
        kind, given = item["type"], item.get("input")
        nearest = _nearest(item["loc"], model) if kind == "extra_forbidden" else None
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


def _nearest(location: tuple[int | str, ...], model: type[BaseModel]) -> str | None:
    for part in location[:-1]:
        field = model.model_fields.get(str(part)) if isinstance(part, str) else None
        for inner in (field.annotation, *get_args(field.annotation)) if field else ():
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    found = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1, cutoff=0.6)
    return found[0] if found else None
