"""How scarce whole nodes are: a level that moves with a fleet, but not to and fro.

What is left for jobs of many GPUs is what is free in sets of as many GPUs of one node as the
largest jobs commonly take. Prices weigh room for such jobs by it.
"""

from enum import IntEnum
from typing import Final

SET_GPUS: Final = 8
"""GPUs of a set; as many as the largest node has where that is fewer."""
PLACED_BETWEEN: Final = 100
"""Placements after a change of the level that prices go by until they may follow another one."""
_BORDERS: Final = (20, 100)
"""Thousandths of all GPUs that are free in sets, between one level and the next."""
_PAST: Final = 4
"""Thousandths past a border where the next level begins: whoever hovers about it stays."""


class Headroom(IntEnum):
    """The level; kept with the state by value."""

    LOW = 0
    MIDDLE = 1
    HIGH = 2

    def after(self, free: int, gpus: int) -> "Headroom":
        """The level once so many of all GPUs are free in sets."""
        level = 0
        for border, per_mille in enumerate(_BORDERS):
            least = per_mille + (_PAST if self <= border else -_PAST)
            level += 1000 * free >= least * gpus
        return Headroom(level)
