"""The form of a segment: a line that names it, then frames, each a length and a map in msgpack.

`kind` of a frame:
- `head`, the first: `product`, `yard`, `token`, `at`, `settings`;
- `piece`: `puts`, documents of the yard by key, as the bucket has them;
- `whole`: the snapshot is complete with this one; from here on turns can be replayed;
- `turn`: `now`, `limit` of the plan, what changed before it (`writes`, `conditions`, `parked`,
  `images`), and what it decided (`placed`, `stopped`). `writes` are those of the turn's commit, so
  after the plan: jobs whose `submit_seq` is `next_seq` or more came after it, as tasks of arrays
  do.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from gpuyard.errors import GpuyardError, RemoteProtocolError
from gpuyard_coordinator import fast_codec

MAGIC: Final = b"gpuyard record 1\n"
SUFFIX: Final = ".record"
_LENGTH: Final = 4
_MOST_BYTES: Final = 64 * 1024 * 1024


class BadRecord(GpuyardError):
    """A file that is no record, or cannot be read; the text names it and says why."""


def frame(body: Mapping[str, Any]) -> bytes:
    data = fast_codec.encode(body)
    return len(data).to_bytes(_LENGTH, "big") + data


def segments_of(path: Path) -> list[Path]:
    """The segments of a folder, oldest first, or the one file; raises BadRecord."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise BadRecord(f"{path}: there is no segment (*{SUFFIX}) in this folder")
    return found


def is_segment(path: Path) -> bool:
    """Whether the file begins as a segment does; raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_frames(path: Path) -> Iterator[dict[str, Any]]:
    """The frames of a segment. One that was cut off in the middle ends it: its writer was killed.

    Raises BadRecord.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise BadRecord(f"{path}: it is no record of decisions")
            yield from _frames(file, path)
    except OSError as fault:
        raise BadRecord(f"{path}: {fault.strerror or fault}") from fault


def _frames(file: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    while len(header := file.read(_LENGTH)) == _LENGTH:
        at, length = file.tell() - _LENGTH, int.from_bytes(header, "big")
        if length > _MOST_BYTES:
            raise BadRecord(f"{path}: damaged at byte {at}")
        data = file.read(length)
        if len(data) < length:
            return
        try:
            yield fast_codec.decode_own(data)
        except RemoteProtocolError as fault:
            raise BadRecord(f"{path}: damaged at byte {at}: {fault}") from fault
