"""A gang's output: each line behind the rank of the member that wrote it, as `0 | text`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuyard.client.output import OutputLines, ShownChunk

if TYPE_CHECKING:
    from gpuyard.client.jobs import LogLine


class RankedOutput:
    """Cuts chunks of several members into whole lines, so that none stands within another's."""

    def __init__(self) -> None:
        self._lines = OutputLines()

    def feed(self, chunk: ShownChunk) -> "Iterator[tuple[int, bytes]]":
        """(stream, bytes) of the lines that this chunk completes."""
        return _shown(self._lines.feed(chunk))

    def flush(self) -> "Iterator[tuple[int, bytes]]":
        """What stands without a line end."""
        return _shown(self._lines.flush())


def _shown(lines: "list[LogLine]") -> Iterator[tuple[int, bytes]]:
    for line in lines:
        stream = 1 if line.stream == "stdout" else 2
        if line.lost_bytes:
            yield 2, f"{line.rank} | {line.lost_bytes} bytes of output are missing here\n".encode()
        yield stream, f"{line.rank} | {line.text}\n".encode()
