"""`gpuyard drain` from its order to the node's last job, or to whoever ends the drain."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from gpuyard.cli.ending import say
from gpuyard.cli.globals import Globals
from gpuyard.cli.progress import short_id
from gpuyard.cli.terminal import ProgressLine
from gpuyard.cli.watch import CALM_S, wakes_of
from gpuyard.client.async_client import AsyncClient
from gpuyard.errors import Unavailable
from gpuyard.model.quantities import counted, first_named

View = Mapping[str, Any]
RECHECK_S: Final = 2.0
NAMED: Final = 3
"""Jobs that the line of progress names."""


async def drained(client: AsyncClient, view: View, *, is_limited: bool, settings: Globals) -> View:
    """The node once it runs nothing, or once it is not draining any more.

    `is_limited` tells that the drain has a deadline. Cancelled, it says that the drain goes on.
    """
    name = view["name"]
    if view["jobs"] and not is_limited and not settings.quiet:
        alone = "itself" if len(view["jobs"]) == 1 else "themselves"
        say(f"waiting for {_jobs(view)} to end by {alone}; --deadline would set a limit")
    try:
        return await _emptied(client, view, settings)
    except asyncio.CancelledError:
        say(f"node {name} stays draining; 'gpuyard uncordon {name}' ends that")
        raise


async def _emptied(client: AsyncClient, view: View, settings: Globals) -> View:
    progress = ProgressLine(is_quiet=settings.quiet)
    is_silent = False
    try:
        async with wakes_of(client) as wakes:
            while view["jobs"] and view["scheduling"] == "draining":
                progress.show(f"draining {view['name']}: {_left(view)}")
                await wakes.wait(RECHECK_S)
                wakes.news.clear()
                try:
                    view = await client.node(view["name"])
                    is_silent = False
                except Unavailable as fault:
                    if not is_silent:
                        progress.clear()
                        say(f"{fault}; the drain goes on, still trying")
                    is_silent = True
                # A busy yard has many events that are not about this node.
                await asyncio.sleep(CALM_S)
    finally:
        progress.clear()
    return view


def _jobs(view: View) -> str:
    return counted(len(view["jobs"]), "jobs")


def _left(view: View) -> str:
    named = first_named([short_id(job) for job in view["jobs"]], NAMED)
    state = "" if view["state"] == "ready" else f" (node {view['state']})"
    return f"{_jobs(view)} left: {named}{state}"
