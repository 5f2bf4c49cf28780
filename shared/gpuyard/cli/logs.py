"""`gpuyard logs`."""

import sys
from typing import TYPE_CHECKING

import click

from gpuyard.cli.completing import job_ids
from gpuyard.cli.ending import say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import json_array, json_line, parse_time
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


@click.command()
@click.argument("id", metavar="ID", shell_complete=job_ids)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", default=None, help="Only this one.")
@click.option("-t", "--timestamps", is_flag=True, help="Lines with the time they were read.")
@global_options
def logs(id: str, follow: bool, attempt: int | None, timestamps: bool) -> None:
    """Show a job's output: its stdout on stdout, its stderr on stderr, byte for byte.

    \b
      gpuyard logs 7k3m
      gpuyard logs -f -t train
      gpuyard logs --attempt 1 7k3m 2>/dev/null > out.txt
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> None:
        if settings.json or timestamps:
            await _lines(client, id, follow, attempt, as_json=settings.json)
        else:
            await _bytes(client, id, follow, attempt)

    with_yard(settings, work)


async def _bytes(client: "AsyncClient", id: str, follow: bool, attempt: int | None) -> None:
    from gpuyard.cli.output_writer import OutputWriter

    writer = OutputWriter()
    try:
        async for chunk in client.output(id, follow=follow, attempt=attempt):
            if chunk["lost_bytes"]:
                await writer.drain()
                say(f"{chunk['lost_bytes']} bytes of output are missing here")
            if chunk["data"]:
                await writer.write(chunk["stream"], chunk["data"])
        await writer.drain()
    finally:
        writer.end()


async def _lines(
    client: "AsyncClient", id: str, follow: bool, attempt: int | None, *, as_json: bool
) -> None:
    from dataclasses import asdict

    found = []
    async for line in client.logs(id, follow=follow, attempt=attempt):
        if not as_json:
            out = sys.stdout if line.stream == "stdout" else sys.stderr
            out.write(f"{_stamp(line.at)} {line.text}\n")
            out.flush()
        elif follow:
            write(json_line(asdict(line)))
        else:
            found.append(asdict(line))
    if as_json and not follow:
        write(json_array(found))


def _stamp(text: str) -> str:
    """The time with this machine's offset: it sorts, and a person can read it."""
    then = parse_time(text)
    return text if then is None else then.astimezone().isoformat(timespec="milliseconds")
