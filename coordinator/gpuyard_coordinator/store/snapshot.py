"""What a new leader reads: the bucket's documents, with the commits replayed that it lacks."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import Stored
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import JobDocument, NodeDocument, OutRecord
from gpuyard_coordinator.store.pending import Pending
from gpuyard_coordinator.store.records import CommitRecord, WalNumber, decode_wal

LIVE: Final = ("job", "node", "tenant", "out")
OUTS_PER_LEADER: Final = 2**32
_SKIP: Final = len(subjects.state(""))
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live documents; `outs` are in order."""

    jobs: list[JobDocument]
    nodes: list[NodeDocument]
    tenants: list[dict[str, Any]]
    outs: list[tuple[int, OutRecord]]
    next_out: int
    """The number of the next out record: above every one that any leader ever gave."""
    unreadable: list[str]
    """Keys whose documents could not be decoded; they are left as they are."""


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


def snapshot_of(
    stored: Sequence[Stored], pending: Pending, epoch: int, *, kinds: Sequence[str] = LIVE
) -> Snapshot:
    """The documents of `kinds` among `stored`, which are in order of sequence, with `pending` on
    top."""
    documents = {message.subject[_SKIP:]: message.data for message in stored}
    for write in pending.writes():
        documents.pop(write.key, None)
        if write.data is not None:
            documents[write.key] = write.data
    found, unreadable = _decode(documents, kinds)
    outs = sorted(found["out"], key=lambda entry: entry[0])
    return Snapshot(
        jobs=found["job"],
        nodes=found["node"],
        tenants=found["tenant"],
        outs=outs,
        # Epochs grow, so that leaders number in ranges of their own. What is left of others is
        # looked at as well: in a bucket that was restored into a new stream epochs begin anew.
        next_out=max([epoch * OUTS_PER_LEADER, *(n + 1 for n, _ in outs)]),
        unreadable=unreadable,
    )


def _decode(
    documents: Mapping[str, bytes], kinds: Sequence[str]
) -> tuple[dict[str, list[Any]], list[str]]:
    found: dict[str, list[Any]] = {prefix: [] for prefix in LIVE}
    unreadable = []
    for key, data in documents.items():
        prefix, _, rest = key.partition(".")
        if prefix not in kinds:
            continue
        try:
            document = codec.decode(data)
            found[prefix].append((int(rest), document) if prefix == "out" else document)
        except (RemoteProtocolError, ValueError) as fault:
            # One unreadable document must not keep the yard from having a leader.
            log.error("stored document cannot be read", extra={"key": key, "fault": str(fault)})
            unreadable.append(key)
    return found, unreadable
