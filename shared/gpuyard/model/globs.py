"""Texts in which `*` stands for any text: what fits one, and which two have nothing in common."""

from collections.abc import Sequence


def fits(pieces: Sequence[str], value: str) -> bool:
    """Whether a value fits a pattern, given as what stands between its `*`.

    Finds the pieces from left to right: no pattern can make this go back and take long.
    """
    if len(pieces) == 1:
        return value == pieces[0]
    head, *middle, tail = pieces
    at, end = len(head), len(value) - len(tail)
    if at > end or not value.startswith(head) or not value.endswith(tail):
        return False
    for piece in middle:
        found = value.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether some text fits both patterns, given as what stands between their `*`."""
    if len(one) == 1:
        return fits(other, one[0])
    if len(other) == 1:
        return fits(one, other[0])
    # What stands between the ends can follow one another, so the ends alone may differ.
    heads, tails = sorted((one[0], other[0]), key=len), sorted((one[-1], other[-1]), key=len)
    return heads[1].startswith(heads[0]) and tails[1].endswith(tails[0])
