"""Two curves over time as an SVG of our own: GPUs in use, and jobs that wait, a line a policy."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from gpuyard_coordinator.simulate.play import Outcome

_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT, _TOP, _GAP = 60, 40, 60
_COLOURS: Final = ("#1b6ca8", "#d1495b", "#5a8f29", "#8d5a97", "#c98a1b", "#555555")
_UNITS: Final = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LINES: Final = 4


def svg(title: str, outcomes: Sequence[Outcome]) -> str:
    """The picture as a text; the same outcomes give the same text."""
    last = max((each.at_s[-1] for each in outcomes if each.at_s), default=0.0)
    per_unit, unit = next((u for u in _UNITS if last >= 2 * u[0]), _UNITS[-1])
    most = max((max(each.queued, default=0) for each in outcomes), default=0)
    span = f"{last / per_unit:.1f} {unit}"
    height = _TOP + 2 * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}">',
        "<style>text{font:12px sans-serif}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18">{escape(title)}</text>',
        *_legend(outcomes),
        *_panel("GPUs in use, %", outcomes, _TOP, last, 100.0, lambda each: each.allocated),
        *_panel(
            "jobs that wait",
            outcomes,
            _TOP + _HEIGHT + _GAP,
            last,
            float(max(1, most)),
            lambda each: each.queued,
        ),
        f'<text x="{_LEFT + _WIDTH}" y="{height - 12}" text-anchor="end">{span}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f'<text x="{_LEFT + 260 + 110 * n}" y="18" fill="{_colour(n)}">{escape(each.policy)}</text>'
        for n, each in enumerate(outcomes)
    ]


def _panel(
    name: str,
    outcomes: Sequence[Outcome],
    top: int,
    last: float,
    most: float,
    values_of: Callable[[Outcome], Sequence[float]],
) -> list[str]:
    bottom = top + _HEIGHT
    parts = [f'<text x="{_LEFT}" y="{top - 6}">{name}</text>']
    for line in range(_LINES + 1):
        y = bottom - _HEIGHT * line / _LINES
        parts.append(f'<path d="M{_LEFT} {y:g}h{_WIDTH}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{most * line / _LINES:g}</text>'
        )
    for number, each in enumerate(outcomes):
        points = " ".join(
            f"{_LEFT + _WIDTH * at / (last or 1):.1f},{bottom - _HEIGHT * value / most:.1f}"
            for at, value in zip(each.at_s, values_of(each), strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_colour(number)}"/>')
    return parts


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
