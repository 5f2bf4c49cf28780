"""The door for beats, which others wrote: thousands a second on a large yard.

More than half of a beat are the facts of its node, which hardly ever change: those that came before
byte for byte are neither decoded nor checked again. What is alike on thousands of nodes is kept
once.
"""

import sys
from dataclasses import dataclass
from typing import Any, Final, cast

from gpuyard import codec, subjects
from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import Beat
from gpuyard.model import ids
from gpuyard.model.node import GpuSample, Health, NodeFacts
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import moments, plausible


class _Facts(fast_codec.Struct):
    """A beat of which only the facts matter."""

    facts: fast_codec.Raw


_facts_of: Final = fast_codec.reader(_Facts)
_read_beat: Final = fast_codec.reader(Beat)
_read_all_but_facts: Final = fast_codec.reader(Beat, leaving_out="facts")
# Of nearly every sample. Nothing may change what a beat holds, so these may be in all of them.
_HEALTHY: Final[Health] = {"state": "healthy", "reason": None, "since": None}
_NOTHING: Final[list[Any]] = []


@dataclass(frozen=True, slots=True)
class _Known:
    """What came last under a subject, which names its node."""

    node: str
    facts: NodeFacts
    packed_facts: bytes


class BeatDoor:
    """Reads beats. Keeps the last facts of each node."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def read(self, message: Message) -> Beat:
        """The beat of a message; raises RemoteProtocolError with what is wrong with it."""
        if message.is_json:
            beat = fast_codec.check(message.body(), Beat)
            _check(beat, _node_of(message))
            _check_numbers(beat["facts"])
        else:
            beat = self._read_packed(message)
        _check_untyped(beat, message)
        return beat

    def _read_packed(self, message: Message) -> Beat:
        packed = bytes(_facts_of(message.data).facts)
        known = self._known.get(message.subject)
        if known is not None and known.packed_facts == packed:
            beat = _read_all_but_facts(message.data)
            beat["facts"] = known.facts
            _check(beat, known.node)
        else:
            beat = _read_beat(message.data)
            _check(beat, _node_of(message))
            _check_numbers(beat["facts"])
            beat["facts"] = cast(NodeFacts, _compact(beat["facts"], {}))
            self._known[message.subject] = _Known(beat["node"], beat["facts"], packed)
        return beat


def _check_untyped(beat: Beat, message: Message) -> None:
    """What the types of a beat do not refuse: a text for a time, a number that is not finite, or,
    in a spec, anything. Whoever reads the whole body finds the latter two."""
    for report in beat["attempts"]:
        for at in (report["started_at"], report["ended_at"]):
            if at and not moments.is_moment(at):
                raise RemoteProtocolError(f"{at[:40]!r} is no time of an attempt; write RFC 3339")
    told = [entry for report in beat["attempts"] if (entry := report.get("wanted"))]
    if told or codec.may_have_odd_number(message.data):
        message.body()
    _check_numbers(told)


def _check_numbers(value: Any) -> None:
    if (number := plausible.beyond(value)) is not None:
        raise RemoteProtocolError(f"the number {number:g} is more than any machine has")


def _node_of(message: Message) -> str:
    try:
        node = subjects.parse_beat(message.subject)
    except ValueError as fault:
        raise RemoteProtocolError(str(fault)) from fault
    if not ids.is_name(node):
        raise RemoteProtocolError("not a node's name")
    return node


def _check(beat: Beat, node: str) -> None:
    codec.check_version(beat)
    if beat["node"] != node:
        raise RemoteProtocolError("a beat under another node's name")
    _share_usual(beat["samples"])


def _share_usual(samples: list[GpuSample]) -> None:
    for sample in samples:
        sample["uuid"] = sys.intern(sample["uuid"])
        if sample["health"] == _HEALTHY:
            sample["health"] = _HEALTHY
        if not sample["foreign"]:
            sample["foreign"] = _NOTHING
        if not sample["missing"]:
            sample["missing"] = _NOTHING


def _compact(value: Any, seen: dict[tuple[tuple[str, str], ...], dict[str, str]]) -> Any:
    """The same value in less memory: equal texts, of which a yard of equal nodes has many, are one,
    and so are equal labels in it."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, list):
        return [_compact(item, seen) for item in value] if value else _NOTHING
    if not isinstance(value, dict):
        return value
    compact = {key: _compact(item, seen) for key, item in value.items()}
    if all(isinstance(item, str) for item in compact.values()):
        return seen.setdefault(tuple(compact.items()), compact)
    return compact
