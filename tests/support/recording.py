"""A record of decisions in a variable, and what replaying it gives."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.plan import Plan, Planner
from gpuyard_coordinator.core.state import Now
from gpuyard_coordinator.record import Recorder
from gpuyard_coordinator.simulate.replay import Replay, replay_frames
from gpuyard_coordinator.store import Write
from gpuyard_coordinator.turn_writes import writes_of

_LENGTH = 4


class Kept:
    """As `Segments`, in memory; so small that it begins another one as often as it may."""

    def __init__(self) -> None:
        self.most_bytes = 1
        self.is_broken = False
        self.segments: list[bytearray] = []

    def begin(self) -> None:
        self.segments.append(bytearray())

    def put(self, frames: bytes) -> None:
        self.segments[-1] += frames


@dataclass(slots=True)
class Recording:
    """What the loop does for the record, for a yard whose commits are not one a plan."""

    kept: Kept = field(default_factory=Kept)
    _recorder: Recorder = field(init=False)
    _limit: int | None = None
    """Of the plan that is being committed."""
    _writes: dict[str, Write] = field(default_factory=dict)
    """By key, since the last plan: a turn writes each but once."""

    def lead(self, cluster: Cluster, planner: Planner) -> None:
        """Another leader begins; the one before is over."""
        if self.kept.segments:
            self._recorder.close()
        self._recorder = Recorder(cluster, planner, cast(Any, self.kept))
        self._writes.clear()

    def commit(self, cluster: Cluster, effects: Effects) -> None:
        if self._limit is None:
            # A look at the planner between commits would take in what changed.
            self._recorder.notice(0)
        for write in writes_of(cluster, effects):
            self._writes[write.key] = write

    def before_plan(self, limit: int) -> None:
        self._limit = limit
        self._recorder.notice(limit)

    def after_plan(self, now: Now, plan: Plan) -> None:
        """The commit of the plan was the last one."""
        self._recorder.take(now, plan, list(self._writes.values()))
        self._recorder.keep(now)
        self._writes.clear()
        self._limit = None

    def replayed(self) -> Replay:
        self._recorder.close()
        result = Replay()
        for number, segment in enumerate(self.kept.segments):
            replay_frames(f"segment {number}", frames_of(bytes(segment)), result, lambda text: None)
            assert result.difference is None, result.difference
        return result


def frames_of(data: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH
        at = begin + int.from_bytes(data[at:begin], "big")
        yield fast_codec.decode_own(data[begin:at])
