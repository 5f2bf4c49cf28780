"""Bodies as bytes and back: msgpack between our programs, JSON from anybody.

`decode` is the door for what others wrote. What passes it is a plain map of strings, numbers,
bytes, booleans, lists and maps that both forms can carry again; everything else raises
`RemoteProtocolError` with one line that says what is wrong.
"""

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, NoReturn

import msgpack

from gpuyard.errors import LocalProtocolError, RemoteProtocolError
from gpuyard.messages import VERSION

CONTENT_TYPE: Final = "Content-Type"
MSGPACK_TYPE: Final = "application/msgpack"
JSON_TYPE: Final = "application/json"
MAX_BYTES: Final = 8 * 1024 * 1024
MAX_DEPTH: Final = 32
"""Maps and lists inside each other; the deepest body of ours has seven."""

_MAX_ITEMS: Final = 1_000_000
_MAX_INTEGER_DIGITS: Final = 20
# What bytes of no length are, and what begins a number that is not finite: rare among the bytes of
# others. Written so that one byte is looked for, which is quicker than a pair.
_EMPTY: Final = tuple(map(re.compile, (rb"\xc4(?=\0)", rb"\xc5(?=\0\0)", rb"\xc6(?=\0\0\0\0)")))
_NOT_FINITE: Final = (re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]"), re.compile(rb"\xca[\x7f\xff]"))
# The library raises its own subclasses of ValueError, and others where the stack is exhausted.
_NOT_MSGPACK: Final = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    msgpack.UnpackException,
)
_JSON_STARTS: Final = frozenset(b'{[" \t\r\n-0123456789tfn\xef')


def encode(body: Mapping[str, Any]) -> bytes:
    """The msgpack form; the same body always gives the same bytes."""
    try:
        packed: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as fault:
        raise LocalProtocolError(f"cannot encode this body: {fault}") from fault
    return packed


def encode_json(body: Mapping[str, Any]) -> bytes:
    """The JSON form, compact; bytes become base64 text."""
    try:
        text = json.dumps(
            to_json_ready(body), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode()
    except (TypeError, ValueError) as fault:
        raise LocalProtocolError(f"cannot encode this body: {fault}") from fault


def encode_json_list(around: Mapping[str, Any], name: str, items: Sequence[bytes]) -> bytes:
    """The JSON form of `around` with one key more, a list of items that are encoded already.

    `around` must have a key of its own.
    """
    key = encode_json({name: []})[1:-3]
    return b"%b,%b[%b]}" % (encode_json(around)[:-1], key, b",".join(items))


def may_have_odd_number(data: bytes) -> bool:
    """True where a body in msgpack may hold a number that is not finite: `decode` tells, other
    readers may let it pass."""
    # To look for one byte is five times as quick as for a pattern, and it runs for every beat.
    if b"\x7f" not in data and b"\xff" not in data:
        return False
    return any(pattern.search(data) for pattern in _NOT_FINITE)


def is_json(data: bytes, headers: Mapping[str, str] | None = None) -> bool:
    """True for a body in JSON; an empty one counts as JSON, since only foreign clients send it."""
    kind = headers.get(CONTENT_TYPE) if headers else None
    if kind:
        name = kind.split(";", 1)[0].strip().lower()
        if name == JSON_TYPE:
            return True
        if name == MSGPACK_TYPE:
            return False
    # The digits 0 to 9 and the letters are also msgpack's small integers, but never a map.
    return not data or data[0] in _JSON_STARTS


def decode(data: bytes, *, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The body in `data`, in whichever form it is; raises RemoteProtocolError for anything else.

    A header `Content-Type` decides the form, else the first byte. `v` may be missing, which means
    1; a `v` that this program does not know is refused.
    """
    if not data:
        raise RemoteProtocolError("the body is empty")
    if len(data) > MAX_BYTES:
        raise RemoteProtocolError(f"the body has {len(data)} bytes, more than {MAX_BYTES}")
    body = _from_json(data) if is_json(data, headers) else _from_msgpack(data)
    if not isinstance(body, dict):
        raise RemoteProtocolError("the body is not a map")
    check_version(body)
    return body


def check_version(body: Mapping[str, Any]) -> None:
    """Raises RemoteProtocolError for a `v` that this program does not know; without one it is 1."""
    version = body.get("v", 1)
    if type(version) is not int or version < 1:
        raise RemoteProtocolError("v must be an integer from 1")
    if version > VERSION:
        raise RemoteProtocolError(f"v is {version}, and this program knows up to {VERSION}")


def peek(data: bytes, key: str, *, headers: Mapping[str, str] | None = None) -> Any:
    """The value of one key of a body, without taking a large one apart; None where it has none.

    It checks nothing: a body that cannot be read has no key here, and `decode` says why.
    """
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=MAX_BYTES)
    try:
        if is_json(data, headers):
            return decode(data, headers=headers).get(key)
        unpacker.feed(data)
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == key:
                return unpacker.unpack()
            unpacker.skip()
    except (RemoteProtocolError, ValueError, TypeError, msgpack.UnpackException):
        return None
    return None


def to_json_ready(value: Any, *, binary: Literal["base64", "text"] = "base64") -> Any:
    """A copy in which bytes are text: base64, or UTF-8 with a replacement for what is not."""
    if isinstance(value, bytes | bytearray):
        if binary == "text":
            return value.decode("utf-8", errors="replace")
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {key: to_json_ready(item, binary=binary) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_ready(item, binary=binary) for item in value]
    return value


def _from_msgpack(data: bytes) -> Any:
    has_bytes = False
    try:
        # Hardly any body has bytes in it, and without them its keys need no look.
        body = _unpack(data, max_bin_len=0)
    except _NOT_MSGPACK:
        has_bytes = True
        try:
            body = _unpack(data, max_bin_len=len(data))
        except _NOT_MSGPACK as fault:
            raise RemoteProtocolError(f"the body is not msgpack: {_one_line(fault)}") from fault
    if type(body) is dict:
        _check_levels(body, with_leaves=has_bytes or _is_suspect(data))
    return body


def _is_suspect(data: bytes) -> bool:
    """True where bytes of no length may be in it, or a number that is not finite."""
    return may_have_odd_number(data) or any(pattern.search(data) for pattern in _EMPTY)


def _unpack(data: bytes, *, max_bin_len: int) -> Any:
    limit = min(_MAX_ITEMS, len(data))
    return msgpack.unpackb(
        data,
        raw=False,
        strict_map_key=True,
        max_str_len=len(data),
        max_bin_len=max_bin_len,
        max_array_len=limit,
        max_map_len=limit,
        max_ext_len=0,
    )


def _from_json(data: bytes) -> Any:
    try:
        body = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short_integer,
        )
    except RemoteProtocolError:
        raise
    except (ValueError, RecursionError) as fault:
        raise RemoteProtocolError(f"the body is not JSON: {_one_line(fault)}") from fault
    if type(body) is dict:
        _check_levels(body, with_leaves=False)
    try:
        # What msgpack cannot carry (a lone surrogate, an integer above 64 bit) could not be stored.
        msgpack.packb(body)
    except (ValueError, OverflowError) as fault:
        raise RemoteProtocolError(f"the body cannot be kept: {_one_line(fault)}") from fault
    return body


def _check_levels(body: Any, *, with_leaves: bool) -> None:
    """Level by level, since a recursion could be made to overflow; this runs for every beat."""
    level = [body]
    for _ in range(MAX_DEPTH + 1):
        if with_leaves:
            _check_leaves(level)
        level = [
            value
            for container in level
            for value in (container.values() if type(container) is dict else container)
            if type(value) is dict or type(value) is list
        ]
        if not level:
            return
    raise RemoteProtocolError(f"the body is nested more than {MAX_DEPTH} deep")


def _check_leaves(level: list[Any]) -> None:
    """Refuse keys that are no text and numbers that are none, of containers side by side."""
    maps = [container for container in level if type(container) is dict]
    # All keys and values in one go each: a list of jobs has hundreds of thousands.
    if not {str}.issuperset(map(type, chain.from_iterable(maps))):
        raise RemoteProtocolError("the body has a key that is not text")
    lists = [container for container in level if type(container) is list]
    values = chain(chain.from_iterable(map(dict.values, maps)), chain.from_iterable(lists))
    if not all(map(math.isfinite, (value for value in values if type(value) is float))):
        raise RemoteProtocolError("the body has a number that is not finite")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RemoteProtocolError(f"the key {twice[:64]!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise RemoteProtocolError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise RemoteProtocolError(f"the number {text[:32]} is too large")
    return number


def _short_integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_DIGITS:
        raise RemoteProtocolError(f"the integer {text[:32]} is too large")
    return int(text)


def _one_line(fault: BaseException) -> str:
    return (" ".join(str(fault).split()) or type(fault).__name__)[:200]
