"""A message as a callback gets it, made once, where it is read off the connection."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gpuyard import codec

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Message:
    """A message as it arrived. `reply` is what its sender says, and is proven by nothing."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(
        self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.subject = subject
        self.data = data
        self.reply = reply
        self.headers = headers or NO_HEADERS

    @property
    def is_json(self) -> bool:
        """True for a body in JSON, which is answered in JSON."""
        return codec.is_json(self.data, self.headers)

    def body(self) -> dict[str, Any]:
        """The decoded body; raises RemoteProtocolError."""
        return codec.decode(self.data, headers=self.headers)

    def encode_answer(self, body: Mapping[str, Any]) -> bytes:
        """The body of an answer, in the form in which this came."""
        return codec.encode_json(body) if self.is_json else codec.encode(body)

    def peek(self, key: str) -> Any:
        """The value of one key; see `codec.peek`."""
        return codec.peek(self.data, key, headers=self.headers)
