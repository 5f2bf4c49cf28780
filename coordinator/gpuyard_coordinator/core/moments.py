"""Arithmetic on the times of records: RFC 3339 UTC with milliseconds, as `Now.at` is written."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf

from gpuyard.model.moments import dated


@lru_cache(maxsize=10_000)
def is_moment(text: str) -> bool:
    """True for what this module can reckon with; RFC 3339 with a zone is. Kept, since a node tells
    the times of an attempt with every beat."""
    try:
        return bool(dated(text))
    except ValueError:
        return False


def later(at: str, seconds: float) -> str:
    """The moment that is `seconds` after `at`."""
    moment = datetime.fromisoformat(at).astimezone(UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def unix_ms(at: str) -> int:
    """Milliseconds since 1970."""
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def zero_ms(at: str, mono_s: float) -> int:
    """What a wall clock that says `at` said, in milliseconds since 1970, when the monotonic clock,
    which says `mono_s` now, was at 0."""
    return unix_ms(at) - int(mono_s * 1000)


def seconds_until(at: str, moment: str, *, most: float = inf) -> float:
    """Seconds from `at` to `moment`, within 0 and `most`: a clock that was set in between makes
    nobody wait longer than they would have."""
    left = datetime.fromisoformat(moment) - datetime.fromisoformat(at)
    return min(max(left.total_seconds(), 0.0), most)
