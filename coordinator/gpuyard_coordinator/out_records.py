"""The messages of a turn in the form in which they are committed and, by the outbox, published.

Each body is packed once: the record of the commit holds the very bytes that go out later.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gpuyard.messages import OutMessage, OutRecord
from gpuyard_coordinator import fast_codec

RECORD_BYTES: Final = 256 * 1024
PackedMessage = tuple[str, bytes]
"""(subject, packed body)."""


def packed_records(out: Iterable[OutMessage]) -> list[list[PackedMessage]]:
    """The messages, in order, in records that each stay below the message limit."""
    records: list[list[PackedMessage]] = []
    size = RECORD_BYTES
    for message in out:
        packed = fast_codec.encode(message["body"])
        size += len(packed)
        if size >= RECORD_BYTES:
            records.append([])
            size = len(packed)
        records[-1].append((message["subject"], packed))
    return records


def packed_messages(record: OutRecord) -> list[PackedMessage]:
    """Those of a record as it was stored."""
    return [
        (message["subject"], fast_codec.encode(message["body"])) for message in record["messages"]
    ]


def encode_record(messages: Sequence[PackedMessage]) -> bytes:
    """The `OutRecord` of these messages as it is stored."""
    items = [{"subject": subject, "body": fast_codec.Raw(body)} for subject, body in messages]
    return fast_codec.encode({"v": 1, "messages": items})
