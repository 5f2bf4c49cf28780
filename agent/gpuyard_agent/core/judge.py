"""Why an attempt ended, told from our own will and from what the engine saw; never guessed.

In this order (137 alone proves nothing, and an engine's memory flag may speak of a child):
1. our recorded intent (cancelled, time_limit, preempted …), unless the container had ended by
   itself before we meant to end it: then its own code stands, 0 included. A container that ends
   with 0 after our signal was stopped by us, and its code is kept beside our reason. Where the
   clocks cannot tell the order (`CLOCK_SLACK_S`), it was us;
2. nobody saw a code, or the engine went away under it, and the host has booted since: `node_lost`;
3. the engine went away under it: `runtime_restarted`;
4. the engine counted a memory kill and the code is 137: `out_of_memory`;
5. a code: `exited`; for 128+n the message names the signal and says that its cause is unknown;
6. nobody saw a code: `runtime_lost`.
"""

import signal
from typing import Final

from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.attempt import Intent, Result
from gpuyard_agent.core.containers import Exit
from gpuyard_agent.core.times import epoch_s

KILLED: Final = 137
"""What a container's command leaves when SIGKILL ended it: 128 + 9."""
CLOCK_SLACK_S: Final = 0.02
"""Times of files are those of the kernel's last tick, up to 10 ms old; ours are cut to 1 ms."""
REBOOTED: Final = "the node was rebooted while it ran"
_HIGHEST_SIGNAL: Final = 64


def judge(exit: Exit, intent: Intent | None, *, rebooted: bool = False) -> Result:
    """The result of a container that is over; `rebooted`: it was started before the last boot."""
    if intent is not None and not _ended_before(exit, intent):
        return _result(exit, intent.reason, _intent_message(exit, intent))
    if rebooted and (exit.engine_restarted or exit.code is None):
        return _result(exit, EndReason.NODE_LOST, REBOOTED)
    if exit.engine_restarted:
        message = exit.message or "the container engine restarted while it ran"
        return _result(exit, EndReason.RUNTIME_RESTARTED, message)
    if exit.out_of_memory and exit.code == KILLED:
        message = exit.message or "the kernel killed it at its host memory limit"
        return _result(exit, EndReason.OUT_OF_MEMORY, message)
    if exit.code is None:
        message = exit.message or "it ended and nobody saw its exit code"
        return _result(exit, EndReason.RUNTIME_LOST, message)
    return _result(exit, EndReason.EXITED, exit.message or signal_message(exit.code))


def vanished(*, ended_at: str, intent: Intent | None, rebooted: bool = False) -> Result:
    """The result of a container that was started and that the engine does not know any more."""
    if intent is not None:
        message = "its container was gone before the stop was over"
        return Result(intent.reason, None, intent.message or message, ended_at)
    if rebooted:
        return Result(EndReason.NODE_LOST, None, REBOOTED, ended_at)
    message = "its container was removed from outside the yard, or the engine lost it"
    return Result(EndReason.RUNTIME_LOST, None, message, ended_at)


def signal_message(code: int) -> str | None:
    """What a code of 128+n says of how the command ended; None for any other code."""
    number = code - 128
    if not 0 < number <= _HIGHEST_SIGNAL:
        return None
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    return f"killed by signal {number}{name}, not by the yard; cause unknown"


def _ended_before(exit: Exit, intent: Intent) -> bool:
    ended, meant = epoch_s(exit.ended_at), epoch_s(intent.wall)
    return ended is not None and meant is not None and ended < meant - CLOCK_SLACK_S


def _intent_message(exit: Exit, intent: Intent) -> str | None:
    outlived = intent.killed_at is not None and intent.signal != "SIGKILL"
    if outlived and exit.code == KILLED:
        late = f"it did not end within {intent.grace_s:g} s of {intent.signal} and was killed"
        return f"{intent.message}; {late}" if intent.message else late
    return intent.message


def _result(exit: Exit, reason: str, message: str | None) -> Result:
    return Result(str(reason), exit.code, message, exit.ended_at)
