"""The bytes of a message that is published, made in one go.

The library puts a message's headers together piece by piece, which is most of the time that a commit
of hundreds of messages takes.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

Outgoing = tuple[str, bytes, Mapping[str, str] | None]
"""Subject, payload, headers."""
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def publish_command(
    subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None
) -> bytes | None:
    """What goes to the server; None for headers that the library would refuse or mend."""
    if headers is None:
        return b"%b %d\r\n%b\r\n" % (f"PUB {subject} {reply}".encode(), len(payload), payload)
    lines = "".join([f"{name}: {value.strip()}\r\n" for name, value in headers.items()])
    has_breaks = lines.count("\n") + lines.count("\r") != 2 * len(headers)
    if has_breaks or not all(map(_is_name, headers)):
        return None
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode()
    return b"%b%b%b\r\n" % (head, block, payload)


@lru_cache(maxsize=256)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
