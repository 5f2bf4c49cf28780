"""What is gone from the state's bucket stays gone: rules for whoever reads or writes its keys.

A server that was killed reads its files anew when it starts. That a value was displaced by a newer
one of its key it tells by the newer one alone: once the marker of a delete has expired, the value
from before the delete is there again (nats-server issue 8505; 2.15.1 does it, of three servers the
killed one). So that a key is there proves nothing by itself:

- a job is over where the record of its end is kept, whatever its own key says (`is_end`);
- a log record is void where the commit record says so (`is_covered`);
- an out record is published once, however often it is relayed;
- every other key is deleted by a marker that outlives the files with its values (`marker_ttl_s`).
"""

from typing import Final

from gpuyard import codec
from gpuyard.errors import RemoteProtocolError

MARKER_TTL_S: Final = 30.0
"""Where a marker only tells standbys that the key is gone: they read all anew after a third of this
out of touch (`gpuyard.bus.tail.MAX_GAP_S`)."""
LASTING_MARKER_TTL_S: Final = 30 * 86_400.0
"""A file that is full, at 8 MiB, is written anew without what is displaced once that is half of it,
and the renewals of the lease alone fill one within hours."""
OUTS_PER_LEADER: Final = 2**32
"""Out records are numbered from the leader's epoch times this, so in ranges of each leader."""
_PROVEN_OTHERWISE: Final = frozenset({"job", "out", "wal"})

LogNumber = tuple[int, int]
"""(sequence of the leader's epoch, number of its commit) of a log record."""


def marker_ttl_s(key: str) -> float:
    """How long the marker is kept that deletes `key`, in seconds."""
    kind = key.partition(".")[0]
    return MARKER_TTL_S if kind in _PROVEN_OTHERWISE else LASTING_MARKER_TTL_S


def is_end(record: bytes) -> bool:
    """Whether the document of a `done` key is of a job that was accepted and is over; those of a
    refusal, and of a cancel that came first, leave its id to a job."""
    try:
        return bool(codec.decode(record).get("spec_sha256"))
    except RemoteProtocolError:
        return False


def is_covered(number: LogNumber, covered: LogNumber, sequence: int) -> bool:
    """Whether a log record is in the bucket's keys by a commit record that was stored at `sequence`
    and covers `covered`.

    That is all up to `covered` of its epoch, and all of epochs before: a leader writes none of its
    own before theirs are gone. An epoch from above `sequence` is of another stream, which this one
    was restored from, and has no place in this one's order.
    """
    if number[0] == covered[0]:
        return number[1] <= covered[1]
    return number[0] < covered[0] < sequence
