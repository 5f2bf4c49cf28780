"""Conditions that can never hold together."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from gpuyard.model.measures import Quantity, padded
from gpuyard.model.where import Condition, holds

_MAX_ALTERNATIVES: Final = 128
"""With more on one key, contradictions are not looked for."""


def contradiction(conditions: Iterable[Condition]) -> str | None:
    """Which conditions can never hold together, in one line; None where none was found.

    Never wrong about what it names; conditions whose `*` overlap may pass unseen.
    """
    groups: dict[str, list[Condition]] = {}
    for condition in dict.fromkeys(conditions):
        groups.setdefault(condition.key, []).append(condition)
    for group in groups.values():
        if _can_never_hold(group):
            named = next(filter(_can_never_hold, combinations(group, 2)), group)
            return f"{' and '.join(map(str, named))} can never hold together"
    return None


def _can_never_hold(group: Sequence[Condition]) -> bool:
    """Whether it is certain that no value of their one key satisfies all."""
    ops = {condition.op for condition in group}
    if ops <= {"lacks", "!="}:
        return False
    if "lacks" in ops:
        return True
    equal = [condition.patterns for condition in group if condition.op == "="]
    denied = {p.text for c in group if c.op == "!=" for p in c.patterns}
    if len(group) + len(denied) + sum(map(len, equal)) > _MAX_ALTERNATIVES:
        return False
    for patterns in equal:
        if all(len(p.pieces) == 1 and p.quantity is None for p in patterns):
            tried = [{group[0].key: pattern.text} for pattern in patterns]
            return not any(all(holds(c, labels) for c in group) for labels in tried)
    if "*" in denied or any(denied.issuperset(p.text for p in patterns) for patterns in equal):
        return True
    return any(_are_apart(low, high) for low in group for high in group)


def _are_apart(low: Condition, high: Condition) -> bool:
    """True if whatever satisfies `low` is too large for `high`."""
    if low.op not in (">", ">=", "=") or high.op not in ("<", "<=", "="):
        return False
    floors = [p.quantity for p in low.patterns] or [low.bound]
    tops = [p.quantity for p in high.patterns] or [high.bound]
    is_open, is_equal = low.op == ">" or high.op == "<", high.op == "="
    return all(_is_above(a, b, is_open=is_open, is_equal=is_equal) for a in floors for b in tops)


def _is_above(low: Quantity | None, top: Quantity | None, *, is_open: bool, is_equal: bool) -> bool:
    """True if no label, be it a version, a size or a number, reaches `low` and not `top`."""
    if low is None or top is None or low.number is None or top.number is None:
        return False
    above = low.number > top.number or (is_open and low.number == top.number)
    if low.parts is not None and top.parts is not None:
        if is_equal:
            return above and padded(low.parts, len(top.parts)) > top.parts
        is_later = low.version > top.version or (is_open and low.version == top.version)
        return above and is_later
    if len(low.version) > 1 or len(top.version) > 1:
        return False  # beside a size, the dots of the other would be a fraction
    return low.number >= top.number + 1 if is_equal and top.parts else above
