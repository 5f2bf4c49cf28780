"""A command for several jobs: what is asked for each, and what is told of all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpuyard.cli.ending import explain, say
from gpuyard.cli.globals import Globals
from gpuyard.cli.render import json_answer
from gpuyard.cli.streams import write
from gpuyard.client.jobs import Job
from gpuyard.errors import GpuyardError

AT_ONCE: Final = 32
"""Jobs asked for at one time."""


async def ask_each(
    ids: Sequence[str], ask: Callable[[str], Awaitable[Job]], settings: Globals
) -> int:
    """Asks for each job and prints those that it was done for, in the order of `ids`.

    One that is refused does not keep the others from it; each of those is a line on stderr.
    Returns the worst exit code.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> Job | GpuyardError:
        async with gate:
            try:
                return await ask(id)
            except GpuyardError as fault:
                return fault

    code, views = 0, []
    for id, outcome in zip(ids, await asyncio.gather(*map(one, ids)), strict=True):
        if isinstance(outcome, GpuyardError):
            worst, line = explain(outcome, settings.command)
            say(line if id in line else f"{id}: {line}")
            code = max(code, worst)
            continue
        views.append(dict(outcome.view))
        if not settings.json:
            write(f"{outcome.id}\n")
    if settings.json:
        write(json_answer(views, is_one=len(ids) == 1))
    return code
