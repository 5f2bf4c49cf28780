"""msgpack as `gpuyard.codec` writes it, in a third of its time: for what the leader packs and reads
thousands of times a second.

Bodies that anybody may send go through `gpuyard.codec`, which says more of what is wrong with them.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec

from gpuyard._typing import TypedDict
from gpuyard.codec import check_version
from gpuyard.errors import LocalProtocolError, RemoteProtocolError
from gpuyard.messages import VERSION

Raw = msgspec.Raw
"""A value that is packed already: one of a body to encode, or one to read that stays packed."""
NIL: Final = Raw(b"\xc0")
Struct = msgspec.Struct
fields_of: Final = msgspec.structs.astuple
"""The values of a `Struct`, in the order of its fields."""
Version = Annotated[int, msgspec.Meta(ge=1, le=VERSION)]
"""Type of the `v` of a body: one that this program knows."""
T = TypeVar("T")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


def encode(body: Mapping[str, Any]) -> bytes:
    """The same bytes as `codec.encode`; values may be `Raw`."""
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError) as fault:
        raise LocalProtocolError(f"cannot encode this body: {fault}") from fault


def decode_own(data: bytes) -> dict[str, Any]:
    """A map that a program of this yard has packed, with no check beyond that and its `v`.

    For what was checked when it came in; raises RemoteProtocolError for what cannot be read.
    """
    try:
        body = _decode(data)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise RemoteProtocolError(f"the document cannot be read: {fault}") from fault
    check_version(body)
    return body


def reader(kind: type[T], *, leaving_out: str = "") -> Callable[[bytes], T]:
    """A function that reads bodies of one type and checks them against it; it raises
    RemoteProtocolError with the field that is wrong.

    Keys that the type does not have are left out, and so is the one that `leaving_out` names.
    """
    decode = msgspec.msgpack.Decoder(_without(kind, leaving_out) if leaving_out else kind).decode

    def read(data: bytes) -> T:
        try:
            return decode(data)
        except (msgspec.DecodeError, RecursionError) as fault:
            raise RemoteProtocolError(str(fault)) from fault

    return read


def check(body: Mapping[str, Any], kind: type[T]) -> T:
    """A body that is read already, as `reader` gives it."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as fault:
        raise RemoteProtocolError(str(fault)) from fault


def _without(kind: type[T], key: str) -> type[T]:
    hints = get_type_hints(kind, include_extras=True)
    del hints[key]
    make: Any = TypedDict
    rest: type[T] = make(kind.__name__, hints)
    return rest
