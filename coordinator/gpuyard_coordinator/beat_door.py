"""The door for beats, which others wrote: thousands a second on a large yard.

More than half of a beat are the facts of its node, which hardly ever change. Those that came before
byte for byte are neither decoded nor checked again.
"""

from typing import Final

from pydantic import TypeAdapter, ValidationError

from gpuyard import codec, subjects
from gpuyard.bus import Message
from gpuyard.errors import RemoteProtocolError
from gpuyard.messages import Beat
from gpuyard.model import ids
from gpuyard.model.node import NodeFacts

_BEAT: Final = TypeAdapter(Beat)
_FACTS: Final = "facts"
_CHECKED: Final[NodeFacts] = {
    "labels": {},
    "driver_version": None,
    "cuda_version": None,
    "docker_version": None,
    "agent_version": "",
    "runtime": "docker",
    "gpu_injection": "none",
    "sharing": "none",
    "cpus": None,
    "memory_mib": None,
    "gpus": [],
    "links": [],
    "missing": [],
}
"""Stands for facts that were checked before while the rest of their beat is."""


class BeatDoor:
    """Reads beats. Keeps the last facts of each node."""

    def __init__(self) -> None:
        self._facts: dict[str, tuple[bytes, NodeFacts]] = {}

    def read(self, message: Message) -> Beat:
        """The beat of a message; raises RemoteProtocolError with what is wrong with it."""
        try:
            node = subjects.parse_beat(message.subject)
            beat = self._read(message, node)
        except (ValidationError, ValueError) as fault:
            raise RemoteProtocolError(str(fault)) from fault
        if not ids.is_name(beat["node"]):
            raise RemoteProtocolError("not a node's name")
        if beat["node"] != node:
            raise RemoteProtocolError("a beat under another node's name")
        return beat

    def _read(self, message: Message, node: str) -> Beat:
        if codec.is_json(message.data, message.headers):
            return _BEAT.validate_python(message.body())
        body, packed = codec.decode_split(message.data, _FACTS)
        known = self._facts.get(node)
        if known is None or known[0] != packed:
            beat = _BEAT.validate_python(message.body())
            self._facts[node] = (packed, beat["facts"])
            return beat
        body[_FACTS] = _CHECKED
        beat = _BEAT.validate_python(body)
        beat["facts"] = known[1]
        return beat
