"""`gpuyard wait` and `gpuyard cancel`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.completing import job_ids, live_job_ids
from gpuyard.cli.ending import UsageFault, say
from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.jobs import Job

OWN_TIMEOUT: Final = 124
AT_ONCE: Final = 32
"""Jobs waited for or cancelled at one time."""


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
            from gpuyard.cli.render import json_array, json_object

            views = [dict(job.view) for _, job in ended]
            write(json_object(views[0]) if len(ids) == 1 else json_array(views))
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


@click.command()
@click.argument("ids", nargs=-1, metavar="ID…", shell_complete=live_job_ids)
@click.option("--all", "is_all", is_flag=True, help="Every unfinished job of the tenant.")
@click.option("--user", metavar="NAME", default=None, help="Every unfinished job of this user.")
@click.option("--state", "states", multiple=True, metavar="STATE[,…]", help="Every job in it.")
@click.option("--reason", metavar="TEXT", default=None, help="Kept with the job.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options
def cancel(
    ids: tuple[str, ...],
    is_all: bool,
    user: str | None,
    states: tuple[str, ...],
    reason: str | None,
    yes: bool,
) -> int:
    """Ask for the end of jobs: SIGTERM, their grace, SIGKILL.

    \b
      gpuyard cancel 7k3m
      gpuyard cancel $(gpuyard jobs -q --name nightly)
      gpuyard cancel --state queued -y
    """
    from gpuyard.cli.session import with_yard

    settings = current()
    is_filtered = is_all or user is not None or bool(states)
    if bool(ids) == is_filtered:
        raise UsageFault("name jobs by ID, or choose them by --all, --user or --state")
    chosen = _chosen_states(states)

    async def meant(client: "AsyncClient") -> list[str]:
        return [job.id async for job in client.jobs(state=chosen, user=user)]

    named = with_yard(settings, meant) if is_filtered else list(dict.fromkeys(ids))
    if not named:
        say("no unfinished job is meant")
        if settings.json:
            write("[]\n")
        return 0
    if is_filtered and not _confirmed(len(named), yes=yes):
        return 1
    return with_yard(settings, lambda client: _cancel(client, named, reason, settings))


def _chosen_states(states: Sequence[str]) -> list[str]:
    """States to choose by, of those that can still be ended."""
    from gpuyard.cli.jobs import chosen_states
    from gpuyard.model.states import FINAL_STATES

    chosen = chosen_states(states)
    for state in chosen:
        if state in FINAL_STATES:
            raise UsageFault(f"--state {state}: jobs in it are over; there is nothing to cancel")
    return chosen


def _confirmed(count: int, *, yes: bool) -> bool:
    from gpuyard.cli.asking import confirmed

    jobs = f"{count} job{'s' if count != 1 else ''}"
    otherwise = f"{jobs} would be cancelled"
    return confirmed(f"Cancel {jobs}?", otherwise=otherwise, yes=yes)


async def _cancel(
    client: "AsyncClient", ids: Sequence[str], reason: str | None, settings: Globals
) -> int:
    """Cancels each; one that cannot be does not keep the others from it."""
    import asyncio

    from gpuyard.cli.ending import explain
    from gpuyard.cli.render import json_array, json_object
    from gpuyard.errors import GpuyardError

    gate = asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> "Job | GpuyardError":
        async with gate:
            try:
                return await client.cancel(id, reason=reason)
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
        write(json_object(views[0]) if len(ids) == 1 and views else json_array(views))
    return code
