"""What the bus keeps of a job's output, as the operation `logs` answers it: page by page."""

from typing import Any, Final

from gpuyard import codec, subjects
from gpuyard.bus import JetStream, Stored
from gpuyard.errors import ProtocolError, RequestError
from gpuyard.messages import AttemptDocument, JobDocument
from gpuyard_coordinator.calls import Body, Call
from gpuyard_coordinator.pages import PAGE_BYTES, number_of
from gpuyard_coordinator.reads import MAX_PAGE

_CHUNKS: Final = 256
"""In a page, where the caller names no number."""


async def page(jetstream: JetStream, document: JobDocument, call: Call) -> Body:
    """Stored chunks of one attempt, the last where none is asked for, oldest first and from the
    node that ran it alone; of a gang's those of the member `rank`, or else of 0."""
    attempts = document["attempts"]
    asked = call.arguments.get("attempt") or (attempts[-1]["attempt"] if attempts else None)
    attempt = next((a for a in attempts if a["attempt"] == asked), None)
    if attempt is None:
        body: Body = {"v": 1, "attempt": None, "node": None, "items": [], "next": None}
        return body | {"complete": document["ended_at"] is not None}
    part = _part(attempt, call.arguments.get("rank"))
    found = await jetstream.read_page(
        subjects.LOGS_STREAM,
        subject=subjects.logs(document["tenant"], document["id"], attempt["attempt"], part["node"]),
        from_sequence=number_of(str(call.arguments.get("cursor") or ""), 1),
        limit=call.number("limit", default=_CHUNKS, most=MAX_PAGE),
        max_bytes=PAGE_BYTES,
    )
    items = [chunk for stored in found.messages if (chunk := _chunk(stored)) is not None]
    following = str(found.messages[-1].sequence + 1) if found.messages else None
    return {
        "v": 1,
        "attempt": attempt["attempt"],
        "node": part["node"],
        "items": items,
        "next": following,
        "complete": any(item.get("end") for item in items),
    }


def _part(attempt: AttemptDocument, rank: Any) -> AttemptDocument:
    """The member of a gang's attempt that is asked for; raises RequestError for one it has not."""
    members = attempt.get("members")
    if not members:
        return attempt
    found = next((m for m in members if m.get("rank") == (rank or 0)), None)
    if found is None:
        raise RequestError(f"attempt {attempt['attempt']} has no rank {rank}", field="rank")
    return found


def _chunk(stored: Stored) -> Body | None:
    """A stored log chunk; None for what somebody else put on the subject."""
    try:
        return codec.decode(stored.data, headers=stored.headers)
    except ProtocolError:
        return None
