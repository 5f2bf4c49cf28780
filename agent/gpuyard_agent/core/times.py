"""Wall-clock times as texts: RFC 3339 UTC with `Z`. Nothing here reads a clock."""

from datetime import UTC, datetime


def rfc3339(epoch_s: float) -> str:
    """`2026-01-31T12:00:00.123Z` for seconds since 1970."""
    at = datetime.fromtimestamp(epoch_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch_s(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 text, engines' nanoseconds included; None where unread."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(_microseconds(text))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _microseconds(text: str) -> str:
    """The text with at most six digits of a second, as many as datetime takes."""
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
