"""`gpuyard backup`: the yard's state in one file, while the yard runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import json_object
from gpuyard.cli.streams import write
from gpuyard.model.quantities import counted

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.state_file import Backup

KINDS = ("job", "done", "node", "tenant")


@click.command(epilog="Exit code: 0 written, 1 not, 3 the bus does not answer.")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@global_options
def backup(file: Path) -> None:
    """Write jobs, nodes and tenants as they are at one moment into FILE.

    The yard goes on meanwhile; no coordinator is needed. Events, logs and usage records stay on
    the bus alone. FILE holds the environment of jobs, so only its owner may read it.

    \b
      gpuyard backup /backup/yard.gz
      gpuyard backup "/backup/yard-$(date +%F).gz" && ls -l /backup
      zcat /backup/yard.gz | head -1
    """
    from gpuyard.cli.session import with_yard
    from gpuyard.client.backup import take_backup
    from gpuyard.client.state_file import write_backup

    settings = current()

    async def work(client: "AsyncClient") -> "Backup":
        return await take_backup(client.bus)

    taken = with_yard(settings, work, as_operator=True)
    checksum = write_backup(file, taken)
    if settings.json:
        write(json_object(view(taken, checksum) | {"file": str(file)}))
    elif not settings.quiet:
        write(f"yard {taken.yard} as of {taken.taken_at}: {counts(taken)}, in {file}\n")


def view(taken: "Backup", checksum: str) -> dict[str, object]:
    """What `--json` says of a backup."""
    return {
        "v": 1,
        "yard": taken.yard,
        "generation": taken.generation,
        "sequence": taken.sequence,
        "taken_at": taken.taken_at,
        "made_by": taken.made_by,
        "sha256": checksum,
        "documents": {kind: taken.count(kind) for kind in KINDS},
    }


def counts(taken: "Backup") -> str:
    """`3 unfinished jobs, 120 ended jobs, 2 nodes, 1 tenant`."""
    names = ("unfinished jobs", "ended jobs", "nodes", "tenants")
    numbers = [taken.count(kind) for kind in KINDS]
    return ", ".join(map(counted, numbers, names))
