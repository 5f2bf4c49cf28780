"""The bytes of a message that is published, made in one go.

The library puts a message's headers together piece by piece, which is most of the time that a
commit of hundreds of messages takes.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

Outgoing = tuple[str, bytes, str | None]
"""Subject, payload, and what `header_lines` makes of the headers; None where it has none."""
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def header_lines(headers: Mapping[str, str]) -> str | None:
    """Headers as they are sent; None for those that the library would refuse or mend."""
    lines = "".join([f"{name}: {value.strip()}\r\n" for name, value in headers.items()])
    has_breaks = lines.count("\n") + lines.count("\r") != 2 * len(headers)
    return None if has_breaks or not all(map(_is_name, headers)) else lines


def publish_command(subject: str, reply: str, payload: bytes, lines: str | None) -> bytes:
    """What goes to the server; `lines` None is for a message without headers."""
    if lines is None:
        return b"%b %d\r\n%b\r\n" % (f"PUB {subject} {reply}".encode(), len(payload), payload)
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode()
    return b"%b%b%b\r\n" % (head, block, payload)


@lru_cache(maxsize=256)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
