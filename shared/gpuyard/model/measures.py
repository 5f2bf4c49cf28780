"""Values of labels that can be ordered: versions, sizes and numbers."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

_VERSION: Final = re.compile(r"(?a)\d{1,18}(?:\.\d{1,18})*")
_NUMBER: Final = re.compile(r"(?ai)[+-]?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?")
_SIZE: Final = re.compile(r"(?ai)(\d{1,18}(?:\.\d{1,18})?) ?(b|[kmgt](?:b|i|ib)?)")
_GIB_PER: Final = {unit: 1024.0 ** (power - 3) for power, unit in enumerate("bkmgt")}


class Quantity(NamedTuple):
    """A value that can be ordered: digits with dots by `version`, anything else by `number`."""

    number: float | None
    """GiB where a unit stands; None for three or more parts."""
    parts: tuple[int, ...] | None = None
    """None for a size and for a number with a sign or an exponent."""
    version: tuple[int, ...] = ()
    """`parts` without zeros at the end, so that comparing tuples takes missing parts as 0."""


@lru_cache(maxsize=8192)
def quantity(text: str) -> Quantity | None:
    """None for a text that cannot be ordered."""
    if _VERSION.fullmatch(text):
        digits = text.split(".")
        kept = len(digits)
        while kept > 1 and not digits[kept - 1].strip("0"):
            kept -= 1
        parts = tuple(map(int, digits))
        return Quantity(float(".".join(digits[:kept])) if kept < 3 else None, parts, parts[:kept])
    if _NUMBER.fullmatch(text):
        return Quantity(float(text))
    if match := _SIZE.fullmatch(text):
        return Quantity(float(match[1]) * _GIB_PER[match[2][0].lower()])
    return None


def order(have: Quantity, bound: Quantity) -> int | None:
    """-1, 0 or 1; None where the two cannot be compared."""
    if have.parts is not None and bound.parts is not None:
        return (have.version > bound.version) - (have.version < bound.version)
    if have.number is None or bound.number is None:
        return None
    return (have.number > bound.number) - (have.number < bound.number)


def is_same(wanted: Quantity, have: Quantity) -> bool:
    """Whether a value is one that `=` asks for; of versions, as many parts count as are asked."""
    if wanted.parts is None or have.parts is None:
        return order(have, wanted) == 0
    return padded(have.parts, len(wanted.parts)) == wanted.parts


def padded(parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    """A version's first parts, with zeros for those that are missing."""
    return (parts + (0,) * (length - len(parts)))[:length]
