"""Recorded plans made again by the core as it is now, and compared with what was decided."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.plan import Plan
from gpuyard_coordinator.core.state import Now
from gpuyard_coordinator.record import BadRecord, read_frames
from gpuyard_coordinator.simulate.rebuilt import Documents, Rebuilt

_MALFORMED: Final = (KeyError, TypeError, ValueError, IndexError, AttributeError)
Decision = tuple[str, ...]
Progress = Callable[[str], None]
_TOLD_EVERY: Final = 5_000


@dataclass(slots=True)
class Replay:
    """What came of replaying segments."""

    decisions: int = 0
    plans: int = 0
    began_at: str | None = None
    ended_at: str | None = None
    difference: str | None = None
    """The first decision that came out another way, in words."""


def replay(segments: list[Path], progress: Progress = lambda text: None) -> Replay:
    """Replays segment by segment, each from its own snapshot, up to the first difference.

    Raises BadRecord.
    """
    result = Replay()
    for path in segments:
        try:
            replay_frames(path.name, read_frames(path), result, progress)
        except _MALFORMED as fault:
            raise BadRecord(
                f"{path}: a frame cannot be understood after {result.plans} plans: {fault!r}"
            ) from fault
        if result.difference is not None:
            break
    return result


def replay_frames(
    name: str, frames: Iterator[dict[str, Any]], result: Replay, progress: Progress
) -> None:
    """Adds to `result` what came of one segment, which has this name for people."""
    yard = begin(frames)
    if yard is None:
        progress(f"{name}: ends before its snapshot is whole; nothing to replay")
        return
    for turn in frames:
        if turn["kind"] != "turn":
            continue
        now = Now(*turn["now"])
        result.began_at = result.began_at or now.at
        result.ended_at = now.at
        yard.take(turn, now)
        plan = yard.planner.plan(turn["limit"], now)
        recorded, made = _recorded(turn), _made(plan)
        if recorded != made:
            result.difference = _difference(result.decisions, now, recorded, made)
            return
        for event in plan.events:
            apply(yard.cluster, event, now, Effects())
        result.plans += 1
        result.decisions += len(made)
        if result.plans % _TOLD_EVERY == 0:
            progress(f"{name}: {result.plans} plans, {result.decisions} decisions, {now.at}")


def begin(frames: Iterator[dict[str, Any]]) -> Rebuilt | None:
    """Reads up to where turns can be replayed; None where the segment ends before."""
    head: Mapping[str, Any] = {}
    puts: Documents = {}
    for each in frames:
        if each["kind"] == "head":
            head = each
        elif each["kind"] == "whole":
            return Rebuilt.of(head, puts, each)
        else:
            writes = each["puts"] if each["kind"] == "piece" else each["writes"]
            for key, data in writes:
                if data is None:
                    puts.pop(key, None)
                else:
                    puts[key] = data
    return None


def _recorded(turn: Mapping[str, Any]) -> list[Decision]:
    stops = [("stop", f"{t}/{j}", f"for {by}/{by_job}") for t, j, by, by_job in turn["stopped"]]
    starts = [("start", f"{t}/{j}", *_told(places)) for t, j, places in turn["placed"]]
    return [*stops, *starts]


def _made(plan: Plan) -> list[Decision]:
    stops = [
        ("stop", f"{each.tenant}/{each.job}", f"for {each.by_tenant}/{each.by_job}")
        for each in plan.preemptions
    ]
    starts = [
        ("start", f"{each.tenant}/{each.job}", *_told(each.places)) for each in plan.placements
    ]
    return [*stops, *starts]


def _told(places: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """The one place of a job, or that of each member of a gang."""
    return [word for node, gpus in places for word in (f"on {node}", *gpus)]


def _difference(before: int, now: Now, recorded: list[Decision], made: list[Decision]) -> str:
    equal = 0
    while equal < min(len(recorded), len(made)) and recorded[equal] == made[equal]:
        equal += 1

    def told(decisions: list[Decision]) -> str:
        return " ".join(decisions[equal]) if equal < len(decisions) else "nothing"

    number = before + equal + 1
    return f"decision {number} at {now.at}: recorded {told(recorded)}; now {told(made)}"
