"""`gpuyard restore`: the state of a backup back onto the bus."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.ending import say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import json_object
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.restore import Restored


@click.command(epilog="Exit code: 0 restored, 1 refused or broken off, 3 the bus does not answer.")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Also where the yard has unfinished jobs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options
def restore(file: Path, replace: bool, yes: bool) -> int:
    """Put the jobs, nodes and tenants of FILE back, onto an empty bus or the yard's own.

    Nothing that runs is stopped: nodes report what they run, and the next coordinator takes it
    over. What the bus knows of jobs and nodes is newer than FILE and stays; tenants become as they
    are in FILE. Coordinators may run meanwhile: none leads until the restore has ended.

    \b
      gpuyard restore /backup/yard.gz
      gpuyard restore --replace -y /backup/yard.gz
    """
    from gpuyard.bus import fit_streams
    from gpuyard.cli.asking import confirmed
    from gpuyard.cli.backup import counts, view
    from gpuyard.cli.session import with_yard
    from gpuyard.client.restore import restore as put_back
    from gpuyard.client.state_file import read_backup

    settings = current()
    taken, checksum = read_backup(file)
    what = f"yard {taken.yard} as of {taken.taken_at}, {counts(taken)}"
    if not confirmed(f"Restore {what}?", otherwise=f"{what} would be restored", yes=yes):
        return 1

    async def work(client: "AsyncClient") -> "Restored":
        await fit_streams(client.bus.jetstream)
        return await put_back(
            client.bus, taken, checksum=checksum, user=client.config.user, replaces=replace
        )

    done = with_yard(settings, work, as_operator=True)
    if done.deposed:
        say("a coordinator led; it has stepped down, and leads again now")
    if settings.json:
        told = {"generation": done.generation, "restored": done.documents, "kept": done.kept}
        write(json_object(view(taken, checksum) | told))
    elif not settings.quiet:
        write(f"{told_of(done)}\n")
    return 0


def told_of(done: "Restored") -> str:
    """`yard dz1jz7 restored: 3 documents`, and how many the bus knew better."""
    from gpuyard.model.quantities import counted

    text = f"yard {done.yard} restored: {counted(done.documents, 'documents')}"
    if not done.kept:
        return text
    were = "was" if done.kept == 1 else "were"
    return f"{text}; {counted(done.kept, 'documents')} {were} newer on the bus or had expired"
