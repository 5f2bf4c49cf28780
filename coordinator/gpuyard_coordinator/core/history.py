"""What a tenant held of late, with less weight the longer ago it was. Integers alone: the same
events give the same history on every machine.

It loses weight once a slot, by a fixed factor, so that after `HALF_LIFE_S` half of it is left.
"""

from functools import lru_cache
from typing import Final, NamedTuple

SLOT_MS: Final = 60_000
HALF_LIFE_S: Final = 6 * 3600
"""Long enough that a night of idling is a claim in the morning, short enough that it is none the
day after."""
SPAN_MS: Final = 31_162_213
"""A use that never changed adds up to itself times this: the half-life over ln 2."""
_SCALE_BITS: Final = 32
_FACTOR: Final = 4_286_705_684
"""2^32 times 2^(-1/360): what a slot leaves, 360 of them being a half-life."""
_POWER_BITS: Final = 64
_LONGEST_SLOTS: Final = 20 * HALF_LIFE_S * 1000 // SLOT_MS
"""What is longer ago weighs less than a millionth."""
KEPT_S: Final = _LONGEST_SLOTS * SLOT_MS // 1000
"""How long it matters what somebody held."""

Amounts = tuple[int, int, int]
"""milli-GPUs, milli-CPUs, MiB of host memory."""


class History(NamedTuple):
    """Amounts times milliseconds, decayed, up to `until_ms`: since 1970 by a clock that is never
    set, `Cluster.clock_ms`."""

    spent: Amounts = (0, 0, 0)
    until_ms: int = 0


def settled(history: History, held: Amounts, now_ms: int) -> History:
    """The history as of `now_ms` of one who held the same since it was settled last."""
    if history.until_ms == now_ms:
        return history  # as for all but the first of those that start or end in one turn
    since = max(history.until_ms, (now_ms // SLOT_MS - _LONGEST_SLOTS) * SLOT_MS)
    spent = _decayed(history.spent, since // SLOT_MS - history.until_ms // SLOT_MS)
    if not any(held):
        spent = _decayed(spent, now_ms // SLOT_MS - since // SLOT_MS)
        return History(spent, max(now_ms, since))
    slots = now_ms // SLOT_MS - since // SLOT_MS
    if slots > 0:
        begin = (since // SLOT_MS + 1) * SLOT_MS
        spent = _decayed(_added(spent, held, begin - since), slots)
        spent, since = _with_slots(spent, held, slots - 1), now_ms // SLOT_MS * SLOT_MS
    return History(_added(spent, held, max(0, now_ms - since)), max(now_ms, since))


def _added(spent: Amounts, held: Amounts, ms: int) -> Amounts:
    return (spent[0] + held[0] * ms, spent[1] + held[1] * ms, spent[2] + held[2] * ms)


def _decayed(spent: Amounts, slots: int) -> Amounts:
    if slots <= 0 or not any(spent):
        return spent
    if slots > _LONGEST_SLOTS:
        return (0, 0, 0)
    left = _left(slots)
    return (
        spent[0] * left >> _POWER_BITS,
        spent[1] * left >> _POWER_BITS,
        spent[2] * left >> _POWER_BITS,
    )


@lru_cache(maxsize=_LONGEST_SLOTS + 1)
def _left(slots: int) -> int:
    """2^64 times what so many slots leave of a use, by squaring, so that days cost no more than
    minutes."""
    left, factor = 1 << _POWER_BITS, _FACTOR << (_POWER_BITS - _SCALE_BITS)
    while slots:
        if slots & 1:
            left = left * factor >> _POWER_BITS
        factor, slots = factor * factor >> _POWER_BITS, slots >> 1
    return left


def _with_slots(spent: Amounts, held: Amounts, slots: int) -> Amounts:
    """With what was held over so many whole slots that are just over: a geometric series."""
    lost = (1 << _POWER_BITS) - _left(slots)
    weight = lost * _FACTOR * SLOT_MS // ((1 << _SCALE_BITS) - _FACTOR)
    return (
        spent[0] + (held[0] * weight >> _POWER_BITS),
        spent[1] + (held[1] * weight >> _POWER_BITS),
        spent[2] + (held[2] * weight >> _POWER_BITS),
    )
