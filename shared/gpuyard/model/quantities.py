"""Sizes and durations as people write them, and the one form they are kept in."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

_SIZE: Final = re.compile(r"(?a)(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE)
_SIZE_UNITS: Final[dict[str, int]] = {
    unit: 1024**power
    for power, units in enumerate((("b",), ("k", "kb", "ki", "kib"), ("m", "mb", "mi", "mib")))
    for unit in units
} | {
    unit: 1024 ** (power + 3)
    for power, units in enumerate((("g", "gb", "gi", "gib"), ("t", "tb", "ti", "tib")))
    for unit in units
}
_SECONDS: Final = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_DURATION: Final = re.compile(
    rf"(?a)(?:(\d{{1,9}})d)?(?:(\d{{1,9}})h)?(?:(\d{{1,9}})m(?!s))?(?:({_SECONDS})s)?"
)
_CLOCK: Final = re.compile(r"(?a)(?:(\d{1,9})-)?(\d{1,9}):([0-5]?\d)(?::([0-5]?\d))?")


def number(value: Any) -> Any:
    """The value; raises ValueError for a truth value, which would pass for a number."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def parse_size_bytes(text: str) -> int:
    """Bytes of a size in Docker's manner: a bare number is bytes, `8g` is 8 GiB.

    Raises ValueError with a line that names the accepted forms.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in _SIZE_UNITS):
        raise ValueError(f"'{text[:40]}' is not a size; write it as 512m, 8g or 8GiB")
    return math.ceil(float(match[1]) * (_SIZE_UNITS[unit] if unit else 1))


def parse_size_mib(text: str) -> int:
    """MiB of a size, rounded up; Docker's rules as `parse_size_bytes`."""
    return math.ceil(parse_size_bytes(text) / 1024**2)


def parse_duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `1h30m`, `2d`, or Slurm's `4:00:00`, `30:00` and `1-12:00:00`.

    Raises ValueError with a line that names the accepted forms.
    """
    cleaned = text.strip().lower()
    if re.fullmatch(_SECONDS, cleaned):
        return float(cleaned)
    if clock := _CLOCK.fullmatch(cleaned):
        days, first, second, third = (int(part) if part else 0 for part in clock.groups())
        if clock[4] is None and not clock[1]:
            return first * 60 + second
        return days * 86400 + first * 3600 + second * 60 + third
    match = _DURATION.fullmatch(cleaned)
    if not cleaned or match is None:
        raise ValueError(
            f"'{text[:40]}' is not a duration; write it as 90s, 30m, 4h, 2d or 4:00:00"
        )
    whole = int(match[1] or 0) * 86400 + int(match[2] or 0) * 3600 + int(match[3] or 0) * 60
    return whole + float(match[4] or 0)


def counted(number: float, plural: str) -> str:
    """`1 node`, `2 nodes`; a unit that has no plural, as MiB, stays as it is."""
    written = str(number) if isinstance(number, int) else f"{number:.7g}"
    return f"{written} {plural.removesuffix('s') if number == 1 else plural}"


def first_named(names: Sequence[str], most: int) -> str:
    """`a, b and 4 more`: the first names, and how many are left out."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def format_duration(seconds: float) -> str:
    """The kept form: seconds to the millisecond with their unit, as `14400s` or `1.5s`;
    `parse_duration_s` reads it back."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def format_days(seconds: float) -> str:
    """A bound for people, in the largest unit that it is a whole number of: `3650d`, `6s`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"
