"""Checked access to the fields of a fleet file; a fault is one line that names the field."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, overload

from gpuyard.errors import GpuyardError

_DURATION: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


class FleetError(GpuyardError):
    """The fleet file cannot be used; the text names the field, as `nodes[0].gpus[1].count: …`."""


class Fields:
    """One mapping of the file, of which only `allowed` keys may be there."""

    def __init__(self, value: object, at: str, allowed: Sequence[str]) -> None:
        self.at = at
        self._prefix = f"{at}." if at else ""
        if not isinstance(value, Mapping):
            raise FleetError(f"{at or 'the file'}: a mapping is expected, not {_said(value)}")
        self._values = value
        for key in value:
            if key not in allowed:
                nearest = difflib.get_close_matches(str(key), allowed, 1)
                hint = f" (did you mean {nearest[0]}?)" if nearest else ""
                raise FleetError(f"{self._prefix}{key}: there is no such field{hint}")

    def raw(self, key: str) -> Any:
        """The value as it stands there, None where it does not."""
        return self._values.get(key)

    @overload
    def text(self, key: str, *, default: str) -> str: ...
    @overload
    def text(self, key: str, *, default: None) -> str | None: ...
    def text(self, key: str, *, default: str | None) -> str | None:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text is expected", value)
        return value

    def whole(self, key: str, *, default: int, least: int = 0, most: int | None = None) -> int:
        value = self.maybe_whole(key, least=least, most=most)
        return default if value is None else value

    def maybe_whole(self, key: str, *, least: int = 0, most: int | None = None) -> int | None:
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number is expected", value)
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if value < least else f"at most {most}"
            raise self._wrong(key, f"must be {limits}", value)
        return value

    def number(self, key: str, *, default: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._wrong(key, "a number above 0 is expected", value)
        return float(value)

    @overload
    def version(self, key: str, form: re.Pattern[str], *, default: str, like: str) -> str: ...
    @overload
    def version(
        self, key: str, form: re.Pattern[str], *, default: None, like: str
    ) -> str | None: ...
    def version(
        self, key: str, form: re.Pattern[str], *, default: str | None, like: str
    ) -> str | None:
        """Text of the form; a number is refused, since 12.10 would have become 12.1."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or form.fullmatch(value) is None:
            raise self._wrong(key, f'a version in quotes is expected, as "{like}"', value)
        return value

    @overload
    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str: ...
    @overload
    def choice(self, key: str, choices: Sequence[str], *, default: None) -> str | None: ...
    def choice(self, key: str, choices: Sequence[str], *, default: str | None) -> str | None:
        value = self.raw(key)
        if value is None:
            return default
        if value not in choices:
            nearest = difflib.get_close_matches(str(value), choices, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(choices)}"
            raise FleetError(f"{self._prefix}{key}: {value!r} is not known ({hint})")
        return str(value)

    @overload
    def seconds(self, key: str, *, default: float) -> float: ...
    @overload
    def seconds(self, key: str, *, default: None) -> float | None: ...
    def seconds(self, key: str, *, default: float | None) -> float | None:
        """A duration such as 30s, 5m or 1h30m, or a number of seconds."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
        match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
        if match is None:
            raise self._wrong(key, "a duration is expected, as 30s or 5m", value)
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return hours * 3600 + minutes * 60 + seconds

    def labels(self, key: str) -> dict[str, str]:
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a mapping is expected", value)
        for name, text in value.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise FleetError(f"{self._prefix}{key}.{name}: text is expected, not {_said(text)}")
        return dict(value)

    def _wrong(self, key: str, expected: str, value: object) -> FleetError:
        return FleetError(f"{self._prefix}{key}: {expected}, not {_said(value)}")


def listed(value: object, at: str, *, required: bool = False) -> Iterator[tuple[str, object]]:
    """The entries of a list with the path of each; nothing where it is absent."""
    if value is None and not required:
        return
    if not isinstance(value, list) or (required and not value):
        raise FleetError(f"{at}: a list is expected, not {_said(value)}")
    for place, entry in enumerate(value):
        yield f"{at}[{place}]", entry


def _said(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
