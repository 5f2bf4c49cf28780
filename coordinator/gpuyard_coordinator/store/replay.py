"""What a new leader finds: commits that are not in the bucket yet, and events not yet published."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from gpuyard import codec, subjects
from gpuyard.bucket_rules import OUTS_PER_LEADER
from gpuyard.bus import Stored
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import OutRecord
from gpuyard_coordinator.store.pending import Pending
from gpuyard_coordinator.store.records import CommitRecord, WalNumber, decode_wal

_OUT: Final = "out."
_SKIP: Final = len(subjects.state(""))
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unpublished:
    """What earlier leaders committed and may not have published; `outs` are in order."""

    outs: list[tuple[int, OutRecord]]
    next_out: int
    """The number of the next out record: above every one that any leader ever gave."""


def replay(stored: Sequence[Stored], record: CommitRecord) -> Pending:
    """What the log records among `stored` say, in the order of their commits."""
    found: dict[WalNumber, Stored] = {}
    for message in stored:
        try:
            found[subjects.parse_wal(message.subject[_SKIP:])] = message
        except ValueError:
            log.error("not the key of a commit", extra={"key": message.subject[_SKIP:]})
    pending = Pending()
    # A leader deletes what others left before it writes its own, so the live ones are of one
    # epoch, and those that are void (late copies of what is in the bucket) say nothing.
    pending.add_void(sorted(number for number in found if record.is_void(number)))
    for number in sorted(number for number in found if not record.is_void(number)):
        pending.add(decode_wal(found[number]), number, is_replay=True)
    return pending


def unpublished(stored: Sequence[Stored], pending: Pending, epoch: int) -> Unpublished:
    """The out records among `stored`, with `pending` on top; one that cannot be read is left as it
    is."""
    documents = {message.subject[_SKIP:]: message.data for message in stored}
    for write in pending.writes(_OUT):
        documents.pop(write.key, None)
        if write.data is not None:
            documents[write.key] = write.data
    outs: list[tuple[int, OutRecord]] = []
    for key, data in documents.items():
        try:
            outs.append((int(key.removeprefix(_OUT)), cast(OutRecord, codec.decode(data))))
        except (RemoteProtocolError, ValueError) as fault:
            # It must not keep the yard from having a leader.
            log.error("stored document cannot be read", extra={"key": key, "fault": str(fault)})
    outs.sort(key=lambda entry: entry[0])
    # Epochs grow, so that leaders number in ranges of their own. What is left of others is looked
    # at as well: in a bucket that was restored into a new stream epochs begin anew.
    return Unpublished(outs, max([epoch * OUTS_PER_LEADER, *(n + 1 for n, _ in outs)]))
