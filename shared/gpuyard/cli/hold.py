"""`gpuyard hold` and `gpuyard release`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from gpuyard.cli.completing import live_job_ids
from gpuyard.cli.ending import say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.jobs import Job


@click.command(epilog="Exit code: 0 all are held, 1 one could not be.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=live_job_ids)
@global_options
def hold(ids: tuple[str, ...]) -> int:
    """Keep queued jobs from starting until somebody releases them.

    \b
      gpuyard hold 7k3m
      gpuyard hold $(gpuyard jobs -q --state queued --name nightly)
    """
    return _each(ids, lambda client, id: client.hold(id))


@click.command(epilog="Exit code: 0 all are released, 1 one could not be.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=live_job_ids)
@global_options
def release(ids: tuple[str, ...]) -> int:
    """Let held jobs go: they take the place in line that their age gives them.

    \b
      gpuyard submit --hold --id train-7 busybox true
      gpuyard release train-7
    """
    return _each(ids, lambda client, id: client.release(id))


def _each(ids: Sequence[str], ask: "Callable[[AsyncClient, str], Awaitable[Job]]") -> int:
    """Asks for each; one that is refused does not keep the others from it."""
    from gpuyard.cli.ending import explain
    from gpuyard.cli.render import json_array, json_object
    from gpuyard.cli.session import with_yard
    from gpuyard.errors import RequestError

    settings = current()

    async def work(client: "AsyncClient") -> int:
        code, views = 0, []
        for id in dict.fromkeys(ids):
            try:
                job = await ask(client, id)
            except RequestError as fault:
                worst, line = explain(fault, settings.command)
                say(line if id in line else f"{id}: {line}")
                code = max(code, worst)
                continue
            views.append(dict(job.view))
            if not settings.json:
                write(f"{job.id}\n")
        if settings.json:
            write(json_object(views[0]) if len(ids) == 1 and views else json_array(views))
        return code

    return with_yard(settings, work)
