"""The door for beats, which others wrote: thousands a second on a large yard.

More than half of a beat are the facts of its node, which hardly ever change, and most of the rest
what its GPUs measured, which several beats for news in a row bring alike. What came before byte for
byte is neither decoded nor checked again. What is alike on thousands of nodes is kept once.
"""

import sys
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from gpuyard import codec, subjects
from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import Beat
from gpuyard.model import ids
from gpuyard.model.node import NO_FACTS, GpuSample, Health, NodeFacts

_BEAT: Final = TypeAdapter(Beat)
_FACTS: Final = "facts"
_SAMPLES: Final = "samples"
# Of nearly every sample. Nothing may change what a beat holds, so these may be in all of them.
_HEALTHY: Final[Health] = {"state": "healthy", "reason": None, "since": None}
_NOTHING: Final[list[Any]] = []


@dataclass(slots=True)
class _Known:
    """What came last under a subject, which names its node."""

    node: str
    facts: NodeFacts
    packed_facts: bytes
    samples: list[GpuSample] = field(default_factory=lambda: _NOTHING)
    packed_samples: bytes = b""
    """Empty where they are not likely to come again."""

    def packed(self) -> dict[str, bytes]:
        """By their keys in a beat."""
        if not self.packed_samples:
            return {_FACTS: self.packed_facts}
        return {_FACTS: self.packed_facts, _SAMPLES: self.packed_samples}


class BeatDoor:
    """Reads beats. Keeps the last facts of each node."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def read(self, message: Message, *, is_news: bool = False) -> Beat:
        """The beat of a message; raises RemoteProtocolError with what is wrong with it.

        `is_news` says that it came sooner than on time: more are likely to follow at once.
        """
        try:
            known = self._known.get(message.subject)
            beat = self._read_known(message, known, is_news) if known is not None else None
            return beat or self._read_whole(message)
        except (ValidationError, ValueError) as fault:
            raise RemoteProtocolError(str(fault)) from fault

    def _read_known(self, message: Message, known: _Known, is_news: bool) -> Beat | None:
        """None where the facts are not those that are known."""
        if message.is_json:
            return None
        body = codec.decode_except(message.data, known.packed())
        if body is None or body[_FACTS] is not None:
            return None
        body[_FACTS] = NO_FACTS  # theirs were checked before
        has_same_samples = bool(known.packed_samples) and body[_SAMPLES] is None
        if has_same_samples:
            body[_SAMPLES] = _NOTHING
        beat = _BEAT.validate_python(body)
        if beat["node"] != known.node:
            raise RemoteProtocolError("a beat under another node's name")
        beat["facts"] = known.facts
        if has_same_samples:
            beat["samples"] = known.samples
            return beat
        _share_usual(beat["samples"])
        if is_news:
            known.packed_samples = codec.packed_value(message.data, _SAMPLES)
            known.samples = beat["samples"]
        elif known.packed_samples:
            known.packed_samples, known.samples = b"", _NOTHING
        return beat

    def _read_whole(self, message: Message) -> Beat:
        node = subjects.parse_beat(message.subject)
        beat = _BEAT.validate_python(message.body())
        if not ids.is_name(beat["node"]):
            raise RemoteProtocolError("not a node's name")
        if beat["node"] != node:
            raise RemoteProtocolError("a beat under another node's name")
        if not message.is_json:
            beat["facts"] = cast(NodeFacts, _compact(beat["facts"], {}))
            packed = codec.packed_value(message.data, _FACTS)
            self._known[message.subject] = _Known(node, beat["facts"], packed)
        _share_usual(beat["samples"])
        return beat


def _share_usual(samples: list[GpuSample]) -> None:
    for sample in samples:
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
