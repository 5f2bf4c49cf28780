"""A benchmark's outcome: figures, floors, goals, and how they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Unmeasurable(Exception):
    """This machine lacks what a benchmark needs; the text says what."""


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound; `value` and `most` are in `unit`."""

    what: str
    value: float
    most: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.value <= self.most

    def line(self) -> str:
        word = "met" if self.is_met else "MISSED"
        return f"{word}: {self.what} {number(self.value)} {self.unit} (goal: at most {self.most:g})"


@dataclass(slots=True)
class Result:
    """What one benchmark found; `figures` is the same for programs, units in the names."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)

    def missed(self) -> list[Goal]:
        return [goal for goal in self.goals if not goal.is_met]

    def __str__(self) -> str:
        lines = [f"== {self.name}: {self.title}", *self.text, *(g.line() for g in self.goals)]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        goals = [
            {"what": g.what, "value": g.value, "most": g.most, "unit": g.unit, "met": g.is_met}
            for g in self.goals
        ]
        return {"name": self.name, "title": self.title, "figures": self.figures, "goals": goals}


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really measured."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def p50_p99(values: Sequence[float]) -> tuple[float, float]:
    return percentile(values, 50), percentile(values, 99)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in columns: the first one to the left, the others to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
