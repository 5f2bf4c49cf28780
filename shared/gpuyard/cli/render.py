"""One way to show a list: as a table that fits the terminal, wide, as JSON, or as bare ids.

Rows are padded here: libraries for tables take seconds for ten thousand rows.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gpuyard.cli.globals import Globals
from gpuyard.cli.streams import write

View = Mapping[str, Any]
GAP: Final = 2
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z\b")
"""As the yard writes times."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `text` makes a cell; `least` is how narrow it may get.

    Where the terminal is too narrow for all, the column with the highest `drop` goes first; 0
    never goes.
    """

    title: str
    text: Callable[[View], str]
    least: int = 4
    drop: int = 0
    is_right: bool = False
    only_wide: bool = False


def show_list(
    items: Sequence[View],
    columns: Sequence[Column],
    settings: Globals,
    *,
    key: str,
    wide: bool = False,
    empty: str = "",
) -> None:
    """Prints the list as the options ask; `key` is what a quiet list prints of each item."""
    if settings.json:
        write(json_array(items))
    elif settings.quiet:
        write("".join(f"{item[key]}\n" for item in items))
    elif not items:
        if empty:
            sys.stderr.write(f"{empty}\n")
    else:
        shown = [column for column in columns if wide or not column.only_wide]
        write("\n".join(table(items, shown, width=None if wide else terminal_width())) + "\n")


def json_array(items: Iterable[Any]) -> str:
    """One JSON array, an element a line."""
    body = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    return f"[\n{body}\n]\n" if body else "[]\n"


def json_object(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False, indent=2) + "\n"


def json_answer(items: Sequence[Any], *, is_one: bool) -> str:
    """Of a command for one thing or several: an object where one was asked for and is there."""
    return json_object(items[0]) if is_one and items else json_array(items)


def json_line(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n"


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none, so nothing is cut."""
    if not sys.stdout.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def table(items: Sequence[View], columns: Sequence[Column], *, width: int | None) -> list[str]:
    """The lines of a table: a header, then one line an item, none wider than `width`."""
    cells = [_cells(column, items) for column in columns]
    natural = [
        max(len(column.title), *map(len, texts)) if texts else len(column.title)
        for column, texts in zip(columns, cells, strict=True)
    ]
    kept, widths = _fit(columns, natural, width)
    # Column by column: a row at a time takes twice as long, which ten thousand rows show.
    padded = [
        _padded([columns[i].title, *cells[i]], wide, is_right=columns[i].is_right)
        for i, wide in zip(kept, widths, strict=True)
    ]
    gap = " " * GAP
    return [gap.join(row).rstrip() for row in zip(*padded, strict=True)]


def _cells(column: Column, items: Sequence[View]) -> list[str]:
    texts = [column.text(item) for item in items]
    # All of them at once: there is hardly ever anything to take out.
    return texts if "".join(texts).isprintable() else [plain(text) for text in texts]


def _padded(texts: Sequence[str], width: int, *, is_right: bool) -> list[str]:
    """Each text exactly so wide: what is longer is cut."""
    if max(map(len, texts)) > width:
        cut = max(width - 1, 0)
        texts = [text if len(text) <= width else f"{text[:cut]}…" for text in texts]
    return [text.rjust(width) for text in texts] if is_right else [t.ljust(width) for t in texts]


def _fit(
    columns: Sequence[Column], natural: Sequence[int], width: int | None
) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide each is."""
    kept = list(range(len(columns)))
    if width is None:
        return kept, list(natural)
    while len(kept) > 1 and _total([_least(columns, natural, i) for i in kept]) > width:
        goes = max(kept, key=lambda i: columns[i].drop)
        if columns[goes].drop == 0:
            break
        kept.remove(goes)
    widths = [natural[i] for i in kept]
    least = [_least(columns, natural, i) for i in kept]
    over = _total(widths) - width
    while over > 0:
        # The widest gives way first: it is the one whose text can best be cut.
        spare = [wide - low for wide, low in zip(widths, least, strict=True)]
        place = max(range(len(kept)), key=lambda i: (spare[i] > 0, widths[i]))
        if spare[place] <= 0:
            break
        widths[place] -= 1
        over -= 1
    return kept, widths


def _least(columns: Sequence[Column], natural: Sequence[int], i: int) -> int:
    return min(natural[i], max(columns[i].least, len(columns[i].title)))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def plain(text: str) -> str:
    """The text as one line that a terminal shows and does not obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def parse_time(text: str | None) -> datetime | None:
    """A time of a view; None where it is unknown."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def local_time(text: str | None) -> str:
    """A time of a view as this machine's clock and zone show it; JSON keeps UTC."""
    then = parse_time(text)
    return "-" if then is None else then.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def local_times(message: str) -> str:
    """A message of the yard for people: the times in it as `local_time` shows them."""
    # Most messages have no time in them, and a list has ten thousand.
    return _TIME.sub(lambda found: local_time(found[0]), message) if "Z" in message else message


def age(text: str | None, now: datetime | None = None) -> str:
    """How long ago, in the two largest figures that matter: 42s, 5m, 3h12m, 4d."""
    then = parse_time(text)
    if then is None:
        return "-"
    return span(((now or datetime.now(UTC)) - then).total_seconds())


def span(seconds: float) -> str:
    """A length of time for people."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 60:
        return f"{whole}s"
    if minutes < 60:
        return f"{minutes}m{whole % 60}s" if minutes < 10 and whole % 60 else f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24}h" if hours % 24 and days < 10 else f"{days}d"


def mib(number: int | None) -> str:
    """A size in MiB for people; `-` where it is unknown."""
    if number is None:
        return "-"
    return f"{number} MiB" if number < 1024 else f"{number / 1024:.1f} GiB"
