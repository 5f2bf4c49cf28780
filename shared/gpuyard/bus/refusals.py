"""What the server can answer to a write, as exceptions in the yard's terms."""

from typing import Final

from gpuyard.errors import GpuyardError, Unavailable

STALE: Final = 10071
UNDECIDED: Final = 10164
NOT_FOUND_CODES: Final = frozenset({10037, 10014, 10059})
"""No such message, consumer or stream."""
TEMPORARY_CODES: Final = frozenset({10008, 10009, 10028, 10039, 10076, 10118, 10176, 10210})
"""JetStream or the stream has no leader, is short of something, or is switched off for a while; a
batch lost a part on its way; too many batches are open."""
STORAGE_CODES: Final = frozenset({10023, 10077})
"""The server's own limit, and a stream's: by bytes, or by messages of one subject."""


class StreamRefusal(GpuyardError):
    """JetStream refused a request, and nothing of it was stored; `code` is the server's own."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Stale(StreamRefusal):
    """An expected sequence does not hold any more: somebody else wrote, or we did before."""


class Undecided(StreamRefusal):
    """Another write with the same guard is being decided; this one may succeed in a moment."""


class NotFound(StreamRefusal):
    """No such message, consumer or stream."""


class StorageFull(Unavailable):
    """A storage limit is reached: nothing was stored, and the same write succeeds once there is
    room."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="storage_full")


class BusUnfit(Unavailable):
    """The bus lacks what the yard needs; somebody must change its configuration."""


class NoResponders(Unavailable):
    """Nobody serves the subject: no coordinator leads, or JetStream is off."""


def refusal(error: dict[str, object], what: str) -> GpuyardError:
    """The exception for the `error` part of a JetStream answer."""
    number = error.get("err_code")
    code = number if isinstance(number, int) else 0
    text = f"{what}: {error.get('description') or 'refused'} ({code})"
    if code == STALE:
        return Stale(text, code=code)
    if code == UNDECIDED:
        return Undecided(text, code=code)
    if code in NOT_FOUND_CODES:
        return NotFound(text, code=code)
    if code in STORAGE_CODES:
        return StorageFull(text)
    if code in TEMPORARY_CODES or error.get("code") == 503:
        return Unavailable(text)
    return StreamRefusal(text, code=code)
