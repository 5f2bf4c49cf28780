"""A job's own times: before its start it waits, by its deadline it has ended or is ended.

Both are absolute from the acceptance on. They are of the wall clock, which may be set: what is due
by the monotonic clock is looked at again, at least once a day, and all that waits once it was set.
"""

from typing import Any, Final

from gpuyard.errors import FieldFault
from gpuyard.model import moments as written
from gpuyard.model.quantities import parse_duration_s
from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core import follow_ups, waiting
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.moments import later, zero_ms
from gpuyard_coordinator.core.state import Now

CLOCK_SET_MS: Final = 500
"""A wall clock that went so much further than the monotonic one between two looks was set: what
keeps it right in small steps moves it by less than a millisecond a second."""
_FIELDS: Final = ("not_before", "deadline")


def settled(spec: dict[str, Any], now: Now) -> dict[str, Any]:
    """The spec with what counts from now made absolute."""
    given = {name: text for name in _FIELDS if (text := spec.get(name)) is not None}
    relative = {name: text for name, text in given.items() if written.is_relative(text)}
    if not relative:
        return spec
    return spec | {name: later(now.at, parse_duration_s(text)) for name, text in relative.items()}


def fault(spec: dict[str, Any], now: Now) -> FieldFault | None:
    """Why a settled spec asks for what cannot be."""
    deadline, start = spec.get("deadline"), spec.get("not_before")
    if deadline is None:
        return None
    if deadline <= now.at:
        return FieldFault("deadline", "out_of_range", f"{deadline} is over; it is {now.at}")
    if start is not None and deadline <= start:
        text = f"{deadline} is not after not_before, {start}: it could never run"
        return FieldFault("deadline", "out_of_range", text)
    return None


def look_at_clock(cluster: Cluster, now: Now) -> None:
    """Once the wall clock was set: nobody waits by what it said before, as by that of a host which
    came up an hour behind and was put right since."""
    before, cluster.wall_zero_ms = cluster.wall_zero_ms, zero_ms(now.at, now.mono)
    if abs(cluster.wall_zero_ms - before) < CLOCK_SET_MS:
        return
    for key in cluster.delays.filed():
        if (job := cluster.jobs.get(key)) is not None:
            waiting.file_delay(cluster, job, now)
    for key in cluster.deadlines.filed():
        if (job := cluster.jobs.get(key)) is not None:
            waiting.file_deadline(cluster, job, now)


def judge(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Ends those whose deadline is over, as many as the turn has room for."""
    while effects.has_room() and (key := cluster.deadlines.take(now.mono)) is not None:
        job = cluster.jobs.get(key)
        if job is None or job.deadline is None:
            continue
        if now.at < job.deadline:
            waiting.file_deadline(cluster, job, now)
        else:
            follow_ups.end_or_stop(
                cluster,
                job,
                reason=EndReason.DEADLINE_EXCEEDED,
                message=f"its deadline, {job.deadline}, is over",
                now=now,
                effects=effects,
            )
