"""Lists cut into replies that stay below the bus's message limit; each item is encoded once."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuyard import codec
from gpuyard_coordinator import fast_codec

PAGE_BYTES: Final = 768 * 1024
"""The bus takes messages of 1 MiB; the rest is for what stands around the items."""
MOST_PASSED: Final = 20_000
"""Items that a filter may pass over for one page; more would hold up the beats behind it."""


@dataclass(frozen=True, slots=True)
class Page:
    items: list[bytes]
    """In the form, JSON or msgpack, of the reply."""
    last: Any
    """The place of the last item looked at if more may follow, else None."""
    as_json: bool

    def reply(self, next: str | None) -> bytes:
        """The body `{v, items, next}`."""
        around = {"v": 1, "next": next}
        if self.as_json:
            return codec.encode_json_list(around, "items", self.items)
        return fast_codec.encode({**around, "items": [fast_codec.Raw(i) for i in self.items]})


def fill(
    items: Iterable[tuple[Any, Mapping[str, Any] | None]], limit: int, *, as_json: bool = False
) -> Page:
    """Items of (place, view) up to `limit` and `PAGE_BYTES`, at least one where there is one.

    An item whose view is None is passed over; after `MOST_PASSED` of them the page ends.
    """
    encode = codec.encode_json if as_json else fast_codec.encode
    taken: list[bytes] = []
    last: Any = None
    size = passed = 0
    for place, view in items:
        if passed == MOST_PASSED:
            return Page(taken, last, as_json)
        if view is None:
            passed, last = passed + 1, place
            continue
        data = encode(view)
        size += len(data)
        if len(taken) == limit or (taken and size > PAGE_BYTES):
            return Page(taken, last, as_json)
        taken.append(data)
        last = place
    return Page(taken, None, as_json)


def number_of(cursor: str, first: int) -> int:
    """Where a page begins that a caller asks for; `first` for a cursor that no page has told."""
    return int(cursor) if re.fullmatch("[0-9]{1,15}", cursor) else first
