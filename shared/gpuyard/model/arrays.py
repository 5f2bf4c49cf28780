"""Arrays: the tasks that one submission stands for, written as `0-99`, `1,3,7`, `0-99:2%8`."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

MOST_TASKS: Final = 100_000
"""Of one array. What is stored of it before they start is one document, whatever their number."""
_LONGEST_TEXT: Final = 4096
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_FORMS: Final = "write 0-99, 1,3,7, 0-99:2 or 0-99%8"


@dataclass(frozen=True, slots=True)
class Tasks:
    """The numbers of an array's tasks in the order in which they start."""

    parts: tuple[range, ...]
    limit: int | None
    """How many may be under way at once; None: as many as there is room for."""
    _ends: tuple[int, ...]

    def __len__(self) -> int:
        return self._ends[-1]

    def at(self, position: int) -> int:
        """The number of the task at a position, from 0."""
        part = bisect_right(self._ends, position)
        return self.parts[part][position - (self._ends[part - 1] if part else 0)]

    def position_of(self, number: int) -> int | None:
        """The reverse; None for a number that is no task's."""
        for part, end in zip(self.parts, self._ends, strict=True):
            if number in part:
                return end - len(part) + part.index(number)
        return None

    def text(self, first: int) -> str:
        """The numbers from a position on, in short: `5-99`."""
        last = len(self) - 1
        return f"{self.at(first)}-{self.at(last)}" if first < last else f"{self.at(last)}"


@lru_cache(maxsize=1024)
def parse_array(text: str) -> Tasks:
    """The tasks that a text means; raises ValueError with a line that says what is wrong."""
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"has {len(text)} characters, at most {_LONGEST_TEXT} are allowed")
    numbers, percent, most = text.replace(" ", "").partition("%")
    if percent and not (most.isascii() and most.isdecimal() and 0 < len(most) < 10 and int(most)):
        raise ValueError(f"'%{most[:20]}' is no limit; write %8 for at most 8 at once")
    parts = tuple(_part(part) for part in numbers.split(","))
    total = sum(map(len, parts))
    if total > MOST_TASKS:
        raise ValueError(f"has {total} tasks, at most {MOST_TASKS} are allowed; submit several")
    if len(parts) > 1 and (twice := _named_twice(parts)) is not None:
        raise ValueError(f"names task {twice} twice; name each once")
    return Tasks(parts, int(most) if percent else None, tuple(accumulate(map(len, parts))))


def kept_form(text: str) -> str:
    """The text without spaces; raises as `parse_array`."""
    parse_array(text)
    return text.replace(" ", "")


def _named_twice(parts: tuple[range, ...]) -> int | None:
    seen: set[int] = set()
    for part in parts:
        for number in part:
            if number in seen:
                return number
            seen.add(number)
    return None


def _part(text: str) -> range:
    match = _PART.fullmatch(text)
    if match is None or not text.isascii():
        raise ValueError(f"'{text[:40]}' is no range of tasks; {_FORMS}")
    first, last, step = (None if number is None else int(number) for number in match.groups())
    assert first is not None
    if last is None:
        return range(first, first + 1)
    if last < first or step == 0:
        raise ValueError(f"'{text[:40]}' holds no task; {_FORMS}")
    return range(first, last + 1, step or 1)
