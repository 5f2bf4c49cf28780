"""One attempt, one step: from what is to what is wanted, never backwards.

The order of an attempt's life, of which `next_step` returns the next piece or None::

    accept → arm → prepare → launch → (running) → signal TERM → signal KILL → end → remove → forget

Rules of this file:
1. Nothing is started before the first listing of what exists, for another machine or boot, on a
   stale inventory, against the node's policy, or a second time: a start that was written down and
   left no container is `runtime_lost`.
2. An end that is known comes before a signal that is due, so an exit is never taken for our doing.
3. A container is removed only after its end was committed: its entry left the document.
4. A container of ours that no document names is stopped only after two beats that confirm it, and
   never while the node is adopting.
5. Nothing is started but while the node's lease lives: the yard may have decided anew since. What
   must end without the lease is armed first, and ends here too when its fence is over; whether the
   keeper came first is asked before such an end is judged.
6. While a step is in flight (`busy`) the only other step is to abandon a preparation, or the wait
   of a gang's member for the others, which a launch ends in before it starts anything.
"""

from typing import Final, Literal

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import STALE_INVENTORY, StopOrder, WantedEntry
from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.attempt import Attempt, Result
from gpuyard_agent.core.containers import Status
from gpuyard_agent.core.fence import fence_of
from gpuyard_agent.core.judge import REBOOTED, judge, vanished
from gpuyard_agent.core.policy import refusals
from gpuyard_agent.core.steps import (
    AbandonPrepare,
    Accept,
    Arm,
    End,
    Forget,
    Here,
    Inquire,
    Launch,
    Prepare,
    Remove,
    Signal,
    Step,
)
from gpuyard_agent.core.stopping import (
    CONFIRMATIONS,
    deadline_of,
    kill_at,
    killed,
    reason_to_stop,
    returned,
)
from gpuyard_agent.core.times import rfc3339

ABSENCES: Final = 2
GIVE_UP_S: Final = 300.0
"""How long a start that fails for a while is tried again here, before the yard tries elsewhere."""
PULL_GIVE_UP_S: Final = 15.0
"""The same for a pull: somebody waits for it, and another node may reach the registry."""
_FIRST_RETRY_S: Final = 1.0
_LAST_RETRY_S: Final = 30.0


def next_step(want: WantedEntry | None, seen: Attempt, here: Here, now: float) -> Step | None:
    """The next step of an attempt, or None while there is nothing to do; see the module's rules."""
    if seen.busy is not None:
        is_dropped = not here.adopting if want is None else want["stop"] is not None
        if (seen.busy == "prepare" or seen.at_gate) and (is_dropped or here.stopping):
            return AbandonPrepare()
        return None
    if want is not None and not seen.accepted and seen.container is not None:
        return Accept()  # the coordinator takes over what this agent found
    if seen.result is not None:
        return _after_end(want, seen, here, now)
    if _is_in_doubt(seen, now):
        return Inquire()
    if seen.exit is not None:
        return End(judge(seen.exit, seen.intent, rebooted=_is_of_old_boot(seen, here)))
    if seen.container is not None and seen.container.status is Status.RUNNING:
        return _while_running(want, seen, here, now)
    if seen.absences >= ABSENCES and seen.launched is not None:
        rebooted = _is_of_old_boot(seen, here)
        return End(vanished(ended_at=rfc3339(here.wall), intent=seen.intent, rebooted=rebooted))
    return _before_start(want, seen, here, now) if here.listed else None


def wake_at(want: WantedEntry | None, seen: Attempt, here: Here, now: float) -> float | None:
    """When the next step may become due without any news; None where only news can make one."""
    times = [seen.retry_at] if seen.retry_at > now else []
    running = seen.container is not None and seen.container.status is Status.RUNNING
    if running and seen.busy is None:
        times += _ends_due(want, seen, here)
    later = [at for at in times if at > now]
    return min(later) if later else None


def _ends_due(want: WantedEntry | None, seen: Attempt, here: Here) -> list[float]:
    """When a running attempt is to be ended, as far as that is known."""
    if seen.intent is not None:
        return [kill_at(seen.intent)]
    limit = None if want is None else deadline_of(want, seen, here)
    fence = None if seen.fence is None else seen.fence.term_at
    return [at for at in (limit, fence) if at is not None]


def after_failure(
    seen: Attempt, step: Literal["prepare", "launch"], fault: RuntimeFailure, here: Here, now: float
) -> End | None:
    """What a refused step leads to: an end, or None with the attempt's next try put off.

    A missing image is no failure of a launch that may still pull it; one that was removed after
    its pull is pulled once more. Temporary failures are tried again, ever more slowly, for
    `GIVE_UP_S`, a pull for `PULL_GIVE_UP_S`.
    """
    pull = "missing" if seen.entry is None else str(seen.entry["spec"].get("pull", "missing"))
    absent = step == "launch" and fault.reason == EndReason.IMAGE_NOT_FOUND
    if absent and pull != "never" and not seen.image_vanished:
        seen.image_vanished, seen.prepared, seen.image_missing = seen.prepared, False, True
        return None
    if seen.failing_since is None:
        seen.failing_since = now
    failing_s = now - seen.failing_since
    give_up_s = PULL_GIVE_UP_S if step == "prepare" else GIVE_UP_S
    if absent or not fault.temporary or failing_s >= give_up_s:
        return End(Result(str(fault.reason), None, _told(seen, step, fault), rfc3339(here.wall)))
    seen.failure = _told(seen, step, fault)
    seen.retry_at = now + min(max(_FIRST_RETRY_S, failing_s), _LAST_RETRY_S)
    return None


def _told(seen: Attempt, step: str, fault: RuntimeFailure) -> str:
    """A failure in one line; one of an image names it."""
    image = "" if seen.entry is None else str(seen.entry["spec"].get("image", ""))
    if step == "prepare" and image not in str(fault):
        return f"{image}: {fault}"
    return str(fault)


def _after_end(want: WantedEntry | None, seen: Attempt, here: Here, now: float) -> Step | None:
    if seen.container is not None and seen.container.status is Status.RUNNING:
        # It was given up as lost and has come back: an attempt that ended must not run.
        return _kill_returned(seen, here, now)
    if want is not None or now < seen.retry_at:
        return None
    if not (seen.accepted or seen.confirmations >= CONFIRMATIONS) or here.adopting:
        return None
    needs_removal = seen.launched is not None or seen.container is not None
    return Remove() if needs_removal else Forget()


def _kill_returned(seen: Attempt, here: Here, now: float) -> Step | None:
    intent = seen.intent
    if intent is None:
        return Signal("SIGKILL", returned(here, now))
    if intent.killed_at is None or now >= kill_at(intent):
        return Signal("SIGKILL", killed(intent, now))
    return None


def _while_running(want: WantedEntry | None, seen: Attempt, here: Here, now: float) -> Step | None:
    if seen.intent is None:
        intent = reason_to_stop(want, seen, here, now)
        return None if intent is None else Signal(intent.signal, intent)
    ordered_now = (
        want is not None and want["stop"] is not None and want["stop"]["signal"] == "SIGKILL"
    )
    first = seen.intent.killed_at is None
    if now >= kill_at(seen.intent) or (ordered_now and first):
        return Signal("SIGKILL", killed(seen.intent, now))
    return None


def _before_start(want: WantedEntry | None, seen: Attempt, here: Here, now: float) -> Step | None:
    if want is None:
        return _leftover(seen, here)
    if _is_of_old_boot(seen, here):
        return End(Result(EndReason.NODE_LOST, None, REBOOTED, rfc3339(here.wall)))
    if (want["machine_id"], want["boot_id"]) != (here.machine_id, here.boot_id):
        return None
    if not seen.accepted:
        return None if here.stopping else Accept()
    if want["stop"] is not None:
        return End(_stopped_early(want["stop"], here))
    # Once a listing lacked a container that was asked for, the next one decides what became of it.
    if here.stopping or now < seen.retry_at or (seen.launched is not None and seen.absences):
        return None
    return _start(want, seen, here, now)


def must_wait(seen: Attempt) -> bool:
    """True for a member of a gang of which another one is not prepared yet."""
    gang = None if seen.entry is None else seen.entry.get("gang")
    return gang is not None and not gang["may_start"]


def may_start(seen: Attempt, here: Here, now: float) -> bool:
    """True while what the yard decided still stands: its lease lives, and the fence is ahead."""
    return now < here.lease_until and (seen.fence is None or now < seen.fence.term_at)


def _start(want: WantedEntry, seen: Attempt, here: Here, now: float) -> Step | None:
    refused = None if seen.launched is not None else _refusal(want, here)
    if refused is not None:
        return End(refused)
    fence = fence_of(want, here.renewed_at, beat_s=here.beat_s)
    if fence is not None and seen.fence is None:
        return Arm(fence) if now < fence.term_at else None
    if not seen.prepared and (seen.image_missing or want["spec"].get("pull") == "always"):
        return Prepare()
    return Launch() if may_start(seen, here, now) else None


def _is_in_doubt(seen: Attempt, now: float) -> bool:
    """True where the keeper may have acted on what is over or about to be ended for its fence."""
    fence = seen.fence
    return (
        fence is not None and now >= fence.term_at and seen.intent is None and not seen.is_inquired
    )


def _is_of_old_boot(seen: Attempt, here: Here) -> bool:
    return seen.launched is not None and seen.launched != here.boot_id


def _leftover(seen: Attempt, here: Here) -> Step | None:
    """No document names it and it does not run: a created container, or a mere memory."""
    if here.adopting:
        return None
    if seen.container is None and seen.launched is None:
        return Forget()
    if seen.accepted or seen.confirmations >= CONFIRMATIONS:
        return Remove()
    return None


def _refusal(want: WantedEntry, here: Here) -> Result | None:
    """Why nothing may be started although it is wanted; see rule 1."""
    at = rfc3339(here.wall)
    if want["gpus"]:
        unknown = [gpu["uuid"] for gpu in want["gpus"] if gpu["uuid"] not in here.gpus]
        if unknown:
            message = f"{STALE_INVENTORY}: this node has no {', '.join(unknown)}"
            return Result(EndReason.RUNTIME_ERROR, None, message, at)
        if want["generation"] != here.generation:
            message = (
                f"{STALE_INVENTORY}: decided on generation {want['generation']}, "
                f"the node is at {here.generation}"
            )
            return Result(EndReason.RUNTIME_ERROR, None, message, at)
    if refused := refusals(want["spec"], here.policy):
        return Result(EndReason.INVALID, None, "; ".join(refused), at)
    return None


def _stopped_early(order: StopOrder, here: Here) -> Result:
    message = "stopped before its container was started"
    return Result(order["reason"], None, message, rfc3339(here.wall))
