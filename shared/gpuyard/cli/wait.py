"""`gpuyard wait`."""

from typing import TYPE_CHECKING

import click

from gpuyard.cli.completing import job_ids
from gpuyard.cli.ending import OWN_TIMEOUT, say
from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.jobs import Job


@click.command(epilog="Exit code: the job's own, as 'gpuyard run'; of several the largest.")
@click.argument("ids", nargs=-1, required=True, metavar="ID…", shell_complete=job_ids)
@click.option("--timeout", metavar="TIME", default=None, help="Stop waiting after this (124).")
@global_options
def wait(ids: tuple[str, ...], timeout: str | None) -> int:
    """Wait until the jobs are over and exit with their code.

    \b
      gpuyard wait 7k3m && echo done
      gpuyard wait --timeout 2h $(gpuyard jobs -q --name nightly)
    """
    import asyncio

    from gpuyard.cli.session import with_yard
    from gpuyard.cli.spec_texts import duration_s
    from gpuyard.client.jobs import StillUnfinished

    settings = current()
    timeout_s = duration_s("--timeout", timeout)

    async def one(client: "AsyncClient", id: str) -> "tuple[int, Job]":
        try:
            job = await client.wait(id, timeout_s=timeout_s)
        except StillUnfinished as fault:
            say(str(fault))
            return OWN_TIMEOUT, fault.job
        return ended_code(job, settings), job

    async def work(client: "AsyncClient") -> int:
        ended = await asyncio.gather(*(one(client, id) for id in dict.fromkeys(ids)))
        if settings.json:
            from gpuyard.cli.render import json_answer

            write(json_answer([dict(job.view) for _, job in ended], is_one=len(ids) == 1))
        return max(code for code, _ in ended)

    return with_yard(settings, work)


def ended_code(job: "Job", settings: Globals) -> int:
    """The exit code for a job that is over; says why where the container did not just end."""
    from gpuyard.cli.progress import ending

    if not settings.quiet and (text := ending(job.view)):
        say(text)
    if job.reason in (None, "exited") and job.exit_code is None and not job.is_succeeded:
        return 1
    return 1 if job.exit_status is None else job.exit_status
