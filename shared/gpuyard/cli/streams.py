"""Bytes to stdout and stderr, all of them or an exception."""

import os
import sys


def write(text: str) -> None:
    """Text for stdout, whole; a closed pipe raises BrokenPipeError."""
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        # Something that stands in for stdout, as in tests.
        sys.stdout.write(text)
        return
    # Not through sys.stdout: unbuffered, it takes a short write for a whole one.
    write_all(descriptor, text.encode(sys.stdout.encoding or "utf-8", errors="replace"))


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte; a descriptor that somebody made non-blocking is waited for."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            import select

            select.select([], [descriptor], [])
