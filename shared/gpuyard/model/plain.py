"""What no job may hold anywhere: values that cannot be sent, or that no program can be given."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuyard.errors import FieldFault

_MOST: Final = 2**63 - 1


def unusable(value: Any, path: str = "") -> Iterator[FieldFault]:
    """A fault per value, with its field's path: NUL and lone surrogates in texts, numbers that are
    not finite or need more than 64 bits. Deep bodies were refused when they were decoded."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from unusable(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from unusable(item, f"{path}[{index}]")
    elif (text := _fault(value)) is not None:
        yield FieldFault(path, "invalid", text)


def _fault(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return "holds a NUL character, which no program can be given"
        if any("\ud800" <= character <= "\udfff" for character in value):
            return "is not valid UTF-8"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    elif isinstance(value, int) and abs(value) > _MOST:
        return "is too large a number"
    return None
