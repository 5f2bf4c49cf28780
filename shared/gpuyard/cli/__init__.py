"""The command line. `main` is its entry; everything else loads when it is needed."""

import gc
import os
import sys
from typing import NoReturn

_GC_THRESHOLD = 100_000
"""Objects made before cycles are looked for, Python's own being 700: what loads at the start all
stays, and a list of ten thousand jobs has no cycles, so looking that often finds nothing."""


def main() -> None:
    """Runs the command in `sys.argv` and exits with its code."""
    gc.set_threshold(_GC_THRESHOLD)
    _fill_closed_streams()
    try:
        from gpuyard.cli.app import cli
    except KeyboardInterrupt:
        # Ctrl-C while the program still loads: nothing was asked of the yard yet.
        raise SystemExit(130) from None
    _leave(cli.outcome())


def _fill_closed_streams() -> None:
    """Else the next file or socket that is opened gets the number, and our output with it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _leave(code: int) -> NoReturn:
    """End here and now: taking every module apart first would cost more than a yard's answer.

    Nothing is lost by it: the command is over, its connection closed, its terminal set back.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed, or broken: a fault of writing has been said already, and is in the code.
            continue
    os._exit(code)
