"""`gpuyard logs`."""

import sys
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.completing import job_ids
from gpuyard.cli.ending import UsageFault, say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import json_array, json_line, parse_time
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


@click.command()
@click.argument("id", metavar="ID", shell_complete=job_ids)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", default=None, help="Only this one.")
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Only this member of a gang.")
@click.option("--node", metavar="NAME", help="Only the member of a gang on this node.")
@click.option("-t", "--timestamps", is_flag=True, help="Lines with the time they were read.")
@global_options
def logs(
    id: str,
    follow: bool,
    attempt: int | None,
    rank: int | None,
    node: str | None,
    timestamps: bool,
) -> None:
    """Show a job's output: its stdout on stdout, its stderr on stderr, byte for byte.

    That of a job over several nodes line by line, each behind the rank of its member.

    \b
      gpuyard logs 7k3m
      gpuyard logs -f -t train
      gpuyard logs --attempt 1 7k3m 2>/dev/null > out.txt
      gpuyard logs --rank 0 7k3m
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> None:
        which = rank if node is None else await _rank_on(client, id, node)
        asked: dict[str, Any] = {"follow": follow, "attempt": attempt, "rank": which}
        if settings.json or timestamps:
            await _lines(client, id, asked, as_json=settings.json)
        else:
            await _bytes(client, id, asked)

    if rank is not None and node is not None:
        raise UsageFault("--rank and --node both choose a member; leave one out")
    with_yard(settings, work)


async def _rank_on(client: "AsyncClient", id: str, node: str) -> int:
    """The rank of a job's member on a node, 0 for a job that has it alone; raises UnknownThing."""
    from gpuyard.errors import UnknownThing

    view = (await client.job(id)).view
    attempts = view.get("attempts") or []
    for attempt in reversed(attempts):
        for rank, part in enumerate(attempt.get("members") or [attempt]):
            if part["node"] == node:
                return int(part.get("rank") or rank)
    raise UnknownThing(f"job {view['id']} has no attempt on node {node}")


async def _bytes(client: "AsyncClient", id: str, asked: dict[str, Any]) -> None:
    from gpuyard.cli.members import RankedOutput
    from gpuyard.cli.output_writer import OutputWriter

    writer, ranked = OutputWriter(), RankedOutput()
    try:
        async for chunk in client.output(id, **asked):
            if "rank" in chunk and asked["rank"] is None:
                for stream, data in ranked.feed(chunk):
                    await writer.write(stream, data)
                continue
            if chunk["lost_bytes"]:
                await writer.drain()
                say(f"{chunk['lost_bytes']} bytes of output are missing here")
            if chunk["data"]:
                await writer.write(chunk["stream"], chunk["data"])
        for stream, data in ranked.flush():
            await writer.write(stream, data)
        await writer.drain()
    finally:
        writer.end()


async def _lines(client: "AsyncClient", id: str, asked: dict[str, Any], *, as_json: bool) -> None:
    from dataclasses import asdict

    found = []
    async for line in client.logs(id, **asked):
        if not as_json:
            out = sys.stdout if line.stream == "stdout" else sys.stderr
            whose = "" if line.rank is None or asked["rank"] is not None else f"{line.rank} | "
            out.write(f"{whose}{_stamp(line.at)} {line.text}\n")
            out.flush()
        elif asked["follow"]:
            write(json_line(asdict(line)))
        else:
            found.append(asdict(line))
    if as_json and not asked["follow"]:
        write(json_array(found))


def _stamp(text: str) -> str:
    """The time with this machine's offset: it sorts, and a person can read it."""
    then = parse_time(text)
    return text if then is None else then.astimezone().isoformat(timespec="milliseconds")
