"""`gpuyard hold` and `gpuyard release`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from gpuyard.cli.completing import live_job_ids
from gpuyard.cli.globals import current, global_options

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
    from gpuyard.cli.each import ask_each
    from gpuyard.cli.session import with_yard

    settings, named = current(), list(dict.fromkeys(ids))

    async def work(client: "AsyncClient") -> int:
        return await ask_each(named, lambda id: ask(client, id), settings)

    return with_yard(settings, work)
