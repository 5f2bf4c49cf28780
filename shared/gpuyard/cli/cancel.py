"""`gpuyard cancel`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuyard.cli.completing import live_job_ids
from gpuyard.cli.ending import UsageFault, say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.streams import write
from gpuyard.model.quantities import counted

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


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
    from gpuyard.cli.each import ask_each
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

    async def work(client: "AsyncClient") -> int:
        return await ask_each(named, lambda id: client.cancel(id, reason=reason), settings)

    return with_yard(settings, work)


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

    jobs = counted(count, "jobs")
    otherwise = f"{jobs} would be cancelled"
    return confirmed(f"Cancel {jobs}?", otherwise=otherwise, yes=yes)
