"""`--watch`: a list that is shown again whenever it changes.

The yard's events say when to look; a slow re-check finds what brings no event. A burst of events
is one look, and looks never take more than a third of the time.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from gpuyard.cli.ending import say
from gpuyard.cli.globals import Globals
from gpuyard.cli.render import Column, View, json_line, show_list, table, terminal_width
from gpuyard.cli.session import with_yard
from gpuyard.cli.streams import write
from gpuyard.client.async_client import AsyncClient
from gpuyard.errors import GpuyardError, Unavailable

CALM_S: Final = 0.2
"""The least time between two looks."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One list: how it is read, shown, and told from what it was."""

    fetch: Callable[[AsyncClient], Awaitable[Sequence[View]]]
    columns: Callable[[], Sequence[Column]]
    """Made anew each time: ages count from now."""
    identity: Callable[[View], str]
    key: str
    empty: str = ""
    why_empty: Callable[[AsyncClient], Awaitable[str | None]] | None = None
    """A better text than `empty` for a list that is shown once; None where there is none."""
    wide: bool = False
    recheck_s: float = 5.0
    ignored: tuple[str, ...] = ()
    """Keys that change by themselves and mean nothing."""
    last_view: Callable[[AsyncClient, View], Awaitable[View]] | None = None
    """How an item that left the list is read once more; without it, it is shown as removed."""

    def core(self, view: View) -> str:
        """What two looks are compared by."""
        kept = {key: value for key, value in view.items() if key not in self.ignored}
        return json.dumps(kept, sort_keys=True, default=str)


def list_or_watch(
    watched: Watched, settings: Globals, *, is_watching: bool, as_operator: bool = False
) -> None:
    """Shows the list once, or goes on."""
    if is_watching:
        with_yard(
            settings, lambda client: watch(client, watched, settings), as_operator=as_operator
        )
        return

    async def once(client: AsyncClient) -> tuple[Sequence[View], str | None]:
        found = await watched.fetch(client)
        if found or watched.why_empty is None:
            return found, None
        return found, await watched.why_empty(client)

    found, why_empty = with_yard(settings, once, as_operator=as_operator)
    show_list(
        found,
        watched.columns(),
        settings,
        key=watched.key,
        wide=watched.wide,
        empty=why_empty or watched.empty,
    )


@dataclass(slots=True)
class Wakes:
    """Set by the yard's events; `wait` also ends when its time is over."""

    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self.news.wait()
        except TimeoutError:
            return


@asynccontextmanager
async def wakes_of(client: AsyncClient) -> AsyncIterator[Wakes]:
    """Listens to the events of the client's tenant, or as an operator to all."""
    wakes = Wakes()
    # Before the first look, so that nothing falls between the two.
    subscription = await client.on_event(lambda _: wakes.news.set())
    try:
        yield wakes
    finally:
        await subscription.close()


async def watch(client: AsyncClient, watched: Watched, settings: Globals) -> None:
    """Shows the list until it is interrupted or its reader leaves."""
    loop = asyncio.get_running_loop()
    shown = _shower(watched, client, settings)
    is_silent = False
    async with wakes_of(client) as wakes:
        while True:
            wakes.news.clear()
            began = loop.time()
            try:
                await shown.show(await watched.fetch(client))
                if is_silent:
                    say("the yard answers again")
                is_silent = False
            except Unavailable as fault:
                if not is_silent:
                    say(f"{fault}; still trying")
                is_silent = True
            await asyncio.sleep(max(CALM_S, 2 * (loop.time() - began)))
            await wakes.wait(watched.recheck_s)


def _shower(watched: Watched, client: AsyncClient, settings: Globals) -> "_Lines | _Ids | _Screen":
    if settings.json:
        return _Lines(watched, client)
    if settings.quiet:
        return _Ids(watched)
    return _Screen(watched)


class _Lines:
    """JSON: an object for everything that is new, changed or gone."""

    def __init__(self, watched: Watched, client: AsyncClient) -> None:
        self._watched = watched
        self._client = client
        self._last: dict[str, tuple[str, View]] = {}

    async def show(self, items: Sequence[View]) -> None:
        now = {self._watched.identity(item): (self._watched.core(item), item) for item in items}
        gone = [view for name, (_, view) in self._last.items() if name not in now]
        for name, (core, item) in now.items():
            if name not in self._last or self._last[name][0] != core:
                write(json_line(item))
        self._last = now
        for view in gone:
            write(json_line(await self._left(view)))

    async def _left(self, view: View) -> View:
        if self._watched.last_view is None:
            return {**view, "removed": True}
        try:
            return await self._watched.last_view(self._client, view)
        except Unavailable:
            raise
        except GpuyardError:
            return {**view, "removed": True}


class _Ids:
    """Quiet: each id when it is first seen."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._known: set[str] = set()

    async def show(self, items: Sequence[View]) -> None:
        for item in items:
            name = self._watched.identity(item)
            if name not in self._known:
                self._known.add(name)
                write(f"{item[self._watched.key]}\n")


class _Screen:
    """A table: over the last one on a terminal, else below it when something changed."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._height = 0
        self._last: list[str] | None = None

    async def show(self, items: Sequence[View]) -> None:
        if sys.stdout.isatty():
            width = terminal_width()
            # A line that wraps would make the table higher than it is counted.
            lines = [line[:width] for line in self._lines(items, width)]
            room = max(_terminal_rows() - 1, 2)
            if len(lines) > room:
                lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more"]
            # Up to where the last table began, and nothing of it is left below.
            back = f"\x1b[{self._height}A" if self._height else ""
            write(f"{back}\r\x1b[J" + "".join(f"{line}\n" for line in lines))
            self._height = len(lines)
            return
        cores = [self._watched.core(item) for item in items]
        if cores != self._last:
            gap = "\n" if self._last is not None else ""
            self._last = cores
            write(gap + "".join(f"{line}\n" for line in self._lines(items, None)))

    def _lines(self, items: Sequence[View], width: int | None) -> list[str]:
        if not items:
            return [self._watched.empty]
        shown = [c for c in self._watched.columns() if self._watched.wide or not c.only_wide]
        return table(items, shown, width=width)


def _terminal_rows() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except OSError:
        return 24
