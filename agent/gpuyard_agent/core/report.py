"""A node's memory as the beat carries it."""

from collections.abc import Iterable
from typing import Final, Literal, get_args

from gpuyard import codec
from gpuyard.messages import AttemptReport, AttemptUsage
from gpuyard_agent.core.attempt import Attempt
from gpuyard_agent.core.containers import Status

ReportedState = Literal["accepted", "preparing", "running", "stopping", "ended"]
MAX_WANTED_IN_BEAT_BYTES: Final = 512 * 1024
"""Of what attempts were started from; a message may have 1 MiB, and the facts are in it too."""
_ORDER: Final[tuple[ReportedState, ...]] = get_args(ReportedState)


def is_reported(attempt: Attempt) -> bool:
    """True from the moment an attempt was accepted, or a container of ours was found."""
    return attempt.accepted or attempt.container is not None or attempt.result is not None


def is_unexpected(attempt: Attempt) -> bool:
    """True for a container of ours that no wanted document names, until its end is known."""
    lives = attempt.container is not None and attempt.result is None
    return attempt.entry is None and (lives or not attempt.accepted)


def report(attempt: Attempt, usage: AttemptUsage | None) -> AttemptReport:
    """What the beat says of one attempt; its state never goes back."""
    attempt.rank = max(attempt.rank, _ORDER.index(_state(attempt)))
    ended = attempt.rank == len(_ORDER) - 1
    result = attempt.result if ended else None
    why = result or attempt.intent
    seen, started = attempt.container, attempt.started
    told: AttemptReport = {
        "tenant": attempt.key.tenant,
        "job": attempt.key.job,
        "attempt": attempt.key.attempt,
        "state": _ORDER[attempt.rank],
        "container_id": started.container_id if started else seen.container_id if seen else None,
        "image_digest": started.image_digest if started else seen.image_digest if seen else None,
        "started_at": started.started_at if started else seen.started_at if seen else None,
        "ended_at": result.ended_at if result else None,
        "reason": why.reason if why else None,
        "exit_code": result.exit_code if result else None,
        "message": why.message if why else attempt.failure or (seen.note if seen else None),
        "pull": attempt.pull,
        "usage": result.usage if result and result.usage else usage,
        "log_chunks": attempt.logs.chunks,
        "unexpected": is_unexpected(attempt),
    }
    if attempt.fence is not None:
        told["fenced"] = attempt.is_held
    if attempt.at_gate:
        told["prepared"] = True
    if attempt.former is not None:
        told["wanted"] = attempt.former
    return told


def keep_within_a_beat(reports: Iterable[AttemptReport]) -> None:
    """Leaves what some attempts were started from to a later beat, where all would not fit: those
    before them are named by then, and need to tell it no more."""
    room = MAX_WANTED_IN_BEAT_BYTES
    for told in reports:
        wanted = told.get("wanted")
        if wanted is not None:
            room -= len(codec.encode(wanted))
            if room < 0:
                told["wanted"] = None


def _state(attempt: Attempt) -> ReportedState:
    if attempt.result is not None and attempt.logs_settled:
        return "ended"
    if attempt.intent is not None:
        return "stopping"
    if attempt.started is not None or attempt.result is not None:
        return "running"
    if attempt.container is not None and attempt.container.status is Status.RUNNING:
        return "running"
    begun = attempt.busy in ("prepare", "launch") or attempt.prepared or attempt.container
    return "preparing" if begun else "accepted"
