"""Why a running attempt is stopped, and when: the intents that `stepping` has written down."""

from typing import Final

from gpuyard.messages import StopOrder, WantedEntry
from gpuyard.model.grace import stop_grace_s
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.attempt import Attempt, Intent
from gpuyard_agent.core.fence import Fence, absence
from gpuyard_agent.core.steps import Here
from gpuyard_agent.core.times import rfc3339

CONFIRMATIONS: Final = 2
KILL_AGAIN_S: Final = 10.0
"""A container that outlives SIGKILL (uninterruptible sleep, a deaf engine) gets it again."""


def reason_to_stop(
    want: WantedEntry | None, seen: Attempt, here: Here, now: float
) -> Intent | None:
    """What a running attempt is ended for now; None where it may go on."""
    if want is not None and want["stop"] is not None:
        return _ordered(want["stop"], here, now)
    if seen.fence is not None and now >= seen.fence.term_at:
        return _fenced_off(seen.fence, here, now)
    grace_s = stop_grace_s(None if want is None else want["spec"])
    if here.stopping:
        return _intent(EndReason.YARD_STOPPED, here, now, grace_s=grace_s)
    if want is None:
        if here.adopting or seen.confirmations < CONFIRMATIONS:
            return None
        message = "no wanted document names it"
        return _intent(EndReason.CANCELLED, here, now, grace_s=grace_s, message=message)
    deadline = deadline_of(want, seen, here)
    if deadline is not None and now >= deadline:
        message = f"max_runtime of {want['spec']['max_runtime']} was over"
        return _intent(EndReason.TIME_LIMIT, here, now, grace_s=grace_s, message=message)
    return None


def returned(here: Here, now: float) -> Intent:
    """Of one that was given up as lost and has come back."""
    return _intent(EndReason.RUNTIME_LOST, here, now, grace_s=0, signal="SIGKILL")


def kill_at(intent: Intent) -> float:
    """When SIGKILL is due, on the boot clock; after the first one, the next."""
    if intent.killed_at is not None:
        return intent.killed_at + KILL_AGAIN_S
    return intent.at + intent.grace_s


def killed(intent: Intent, now: float) -> Intent:
    """The intent once SIGKILL is sent at `now`."""
    return Intent(
        intent.reason, intent.signal, intent.grace_s, intent.at, intent.wall, intent.message, now
    )


def deadline_of(want: WantedEntry, seen: Attempt, here: Here) -> float | None:
    """When `max_runtime` is over, on this boot's clock; None where there is no limit."""
    limit_s = _max_runtime_s(want)
    if limit_s is None or seen.started is None or seen.started.boot_id != here.boot_id:
        return None
    return seen.started.at + limit_s


def told_deadline(want: WantedEntry, wall: float) -> str | None:
    """What a container that starts at `wall` is told of its end: the end of `max_runtime` or the
    job's deadline, whichever is earlier, RFC 3339 UTC; None where there is neither."""
    limit_s, deadline = _max_runtime_s(want), want["spec"].get("deadline")
    ends = [rfc3339(wall + limit_s)] if limit_s is not None else []
    return min([*ends, str(deadline)] if deadline is not None else ends, default=None)


def _max_runtime_s(want: WantedEntry) -> float | None:
    limit = want["spec"].get("max_runtime")
    return None if limit is None else parse_duration_s(str(limit))


def _fenced_off(fence: Fence, here: Here, now: float) -> Intent:
    grace_s = max(0.0, fence.deadline - now)
    signal = "SIGTERM" if grace_s > 0 else "SIGKILL"
    message = absence(fence, now)
    return _intent(EndReason.NODE_LOST, here, now, grace_s=grace_s, signal=signal, message=message)


def _ordered(order: StopOrder, here: Here, now: float) -> Intent:
    return _intent(
        order["reason"], here, now, grace_s=float(order["grace_s"]), signal=order["signal"]
    )


def _intent(
    reason: str,
    here: Here,
    now: float,
    *,
    grace_s: float,
    signal: str = "SIGTERM",
    message: str | None = None,
) -> Intent:
    killed_at = now if signal == "SIGKILL" else None
    return Intent(str(reason), signal, grace_s, now, rfc3339(here.wall), message, killed_at)
