"""A turn's messages as they are committed: whole, in order, and below the limit."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard import codec
from gpuyard.messages import OutMessage
from gpuyard_coordinator.out_records import (
    RECORD_BYTES,
    encode_record,
    packed_messages,
    packed_records,
)

MESSAGES = st.lists(
    st.builds(
        lambda number, size: OutMessage(
            subject=f"gpuyard.events.t.j.queued.{number}",
            body={"seq": number, "message": "x" * size},
        ),
        st.integers(1, 10**6),
        st.integers(0, 10) | st.integers(0, RECORD_BYTES - 200),
    ),
    max_size=8,
)


@given(MESSAGES)
def test_holds_every_message_once_and_in_order(out: list[OutMessage]) -> None:
    records = packed_records(out)
    stored = [codec.decode(encode_record(messages)) for messages in records]
    assert [message for record in stored for message in record["messages"]] == out
    assert all(sum(len(data) for _, data in messages) < RECORD_BYTES for messages in records)


@given(MESSAGES)
def test_what_is_published_is_what_was_stored(out: list[OutMessage]) -> None:
    for messages in packed_records(out):
        stored = encode_record(messages)
        assert stored == codec.encode(codec.decode(stored))
        assert packed_messages(codec.decode(stored)) == messages  # type: ignore[arg-type]
