"""Lists cut into replies that stay below the bus's message limit."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuyard import codec

PAGE_BYTES: Final = 768 * 1024
"""The bus takes messages of 1 MiB; the rest is for what stands around the items."""


def fill(
    items: Iterable[tuple[Any, Mapping[str, Any]]], limit: int
) -> tuple[list[Mapping[str, Any]], Any]:
    """Items of (place, view) up to `limit` and `PAGE_BYTES`, at least one where there is one.

    The second value is the place of the last item taken if more follow, else None.
    """
    taken: list[Mapping[str, Any]] = []
    last: Any = None
    size = 0
    for place, view in items:
        size += len(codec.encode(view))
        if len(taken) == limit or (taken and size > PAGE_BYTES):
            return taken, last
        taken.append(view)
        last = place
    return taken, None
