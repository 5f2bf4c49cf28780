"""Moments as people write them: RFC 3339 with its zone, or a duration from the submission on."""

import re
from datetime import UTC, datetime
from typing import Final

from gpuyard.model.quantities import format_duration, parse_duration_s

LONGEST_S: Final = 10 * 365 * 86_400.0
"""How far ahead a duration may reach."""
_DATED: Final = re.compile(r"(?a)\d{4}-\d{2}-\d{2}")
_FORMS: Final = "write 2h, 90m or 2026-01-31T18:00:00Z"


def parse_moment(text: str) -> str:
    """The kept form: RFC 3339 UTC to the millisecond, or seconds with their unit, as `7200s`.

    Raises ValueError with a line that names the accepted forms.
    """
    cleaned = text.strip()
    if _DATED.match(cleaned):
        return dated(cleaned)
    try:
        seconds = parse_duration_s(cleaned)
    except ValueError:
        raise ValueError(f"'{text[:40]}' is no time; {_FORMS}") from None
    return parse_seconds(seconds)


def parse_seconds(seconds: float) -> str:
    """The kept form of a duration; raises ValueError as `parse_moment`."""
    if not 0.001 <= seconds <= LONGEST_S:
        raise ValueError(f"must be from 1 ms to 10 years from now, not {seconds:g} s")
    return format_duration(seconds)


def is_relative(kept: str) -> bool:
    """True for a kept form that counts from the submission."""
    return kept.endswith("s")


def dated(text: str) -> str:
    """A time with a zone as it is kept, RFC 3339 UTC; raises ValueError that says what is wrong."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(f"'{text[:40]}' has no zone; append Z for UTC, or +02:00")
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"'{text[:40]}' is no time; {_FORMS}") from None
    except ValueError as fault:
        told = str(fault) if "zone" in str(fault) else f"'{text[:40]}' is no time; {_FORMS}"
        raise ValueError(told) from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
