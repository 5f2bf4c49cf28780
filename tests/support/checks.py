"""Checks of a whole host that print what they saw, a line each, for somebody who reads along."""

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def holds(check: Callable[[T], str], host: T) -> bool:
    """Whether a check holds; it returns what it saw, or raises AssertionError."""
    began = time.monotonic()
    try:
        told = check(host)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        print(f"FAIL {check.__name__}: {error}", flush=True)
        return False
    print(f"ok   {check.__name__} ({time.monotonic() - began:.1f} s): {told}", flush=True)
    return True


def close(results: Sequence[bool]) -> int:
    """The last line and the exit code: 0 if all hold."""
    print(f"{sum(results)} of {len(results)} checks hold")
    return 0 if all(results) else 1
