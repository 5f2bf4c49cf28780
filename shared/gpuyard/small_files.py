"""Files that people name and that are read whole: never more of one than can be meant."""

import errno
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1024 * 1024
"""Many times the largest job; what is longer, or has no end as a device, is another file."""


def read_bytes(path: str | Path, *, most: int = MAX_BYTES) -> bytes:
    """The content of a file or a pipe; raises OSError, also where it has more than `most` bytes."""
    with Path(path).open("rb") as file:
        data = file.read(most + 1)
    check_size(data, most=most)
    return data


def read_text(path: str | Path) -> str:
    """The same as text; raises OSError, and UnicodeDecodeError for what is not UTF-8."""
    return read_bytes(path).decode("utf-8")


def check_size(data: bytes, *, most: int = MAX_BYTES) -> None:
    """Raises the OSError of a file that is too long, for what was read by other means."""
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
