"""The state in the bucket: one fenced message per commit.

A commit is one message on a key of its own, a log record, which lists the writes of the turn. A
checkpoint moves what the records say to the keys that are written about, many commits at a time,
in one atomic batch that also deletes the records. `pending` has the proof that it may be cut short.

Everything carries the fence: it expects that `leader.epoch` still has the sequence of this leader's
token, so the server refuses it once somebody else leads. The last message of a batch is the commit
record: a random id that expects the record before it, so that a batch whose answer was lost is
resolved by reading one key, and a copy of it that turns up late is refused.
"""

from gpuyard_coordinator.store.bucket import Fenced, Store
from gpuyard_coordinator.store.records import MAX_WRITES, Write, delete, put
from gpuyard_coordinator.store.replay import Unpublished

__all__ = ["MAX_WRITES", "Fenced", "Store", "Unpublished", "Write", "delete", "put"]
