"""Time and identity of this process, injected so that tests can move them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuyard_coordinator.core.state import Now


@dataclass(frozen=True, slots=True)
class Clock:
    """`monotonic` in seconds, `wall` in seconds since 1970."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def now(self) -> Now:
        return Now(self.monotonic(), self.timestamp())

    def timestamp(self, moment: datetime | None = None) -> str:
        """RFC 3339 UTC with milliseconds, of now or of the moment given."""
        moment = moment or datetime.fromtimestamp(self.wall(), UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"

    def wall_ms(self) -> int:
        return int(self.wall() * 1000)


def read_first_line(path: str) -> str:
    """A one-line file of the system, or "" where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
