"""`gpuyard events`: what happened to a job, or what happens to all."""

from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.completing import job_ids
from gpuyard.cli.ending import UsageFault
from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.nearest import nearest
from gpuyard.cli.render import json_array, json_line, local_time
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.messages import Event

KINDS: Final = (
    *("accepted", "rejected", "queued", "verdict", "assigned", "preparing", "pulling", "running"),
    *("usage", "warning", "stopping", "requeued", "succeeded", "failed", "cancelled"),
)


@click.command()
@click.argument("id", metavar="[ID]", required=False, shell_complete=job_ids)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND[,…]", help="Only these kinds.")
@click.option("-A", "--all-tenants", is_flag=True, help="Of every tenant (operators).")
@global_options
def events(id: str | None, follow: bool, kinds: tuple[str, ...], all_tenants: bool) -> None:
    """Show what happened to a job; without ID, what happens to all jobs from now on.

    \b
      gpuyard events 7k3m
      gpuyard events -f --kind failed,cancelled
      gpuyard events -f --json | jq -r .message
    """
    from gpuyard.cli.session import with_yard

    settings = current()
    wanted = _wanted(kinds)
    if id is not None and all_tenants:
        raise UsageFault("ID and -A are both given; an id names a job of one tenant")
    is_live = follow or id is None

    async def work(client: "AsyncClient") -> None:
        found = []
        async for event in client.events(id, follow=is_live):
            if wanted and event["kind"] not in wanted:
                continue
            if settings.json and not is_live:
                found.append(event)
            else:
                write(_line(event, settings, is_of_many=id is None, with_tenant=all_tenants))
        if settings.json and not is_live:
            write(json_array(found))

    with_yard(settings, work, as_operator=all_tenants)


def _wanted(kinds: tuple[str, ...]) -> set[str]:
    wanted = {kind.strip() for text in kinds for kind in text.split(",")}
    for kind in sorted(wanted):
        if kind not in KINDS:
            near = nearest(kind, KINDS) or f"; the kinds are {', '.join(KINDS)}"
            raise UsageFault(f"--kind {kind!r} is none{near}")
    return wanted


def _line(event: "Event", settings: Globals, *, is_of_many: bool, with_tenant: bool) -> str:
    from gpuyard.cli.job import event_text
    from gpuyard.cli.progress import short_id
    from gpuyard.cli.render import plain

    if settings.json:
        return json_line(event)
    parts = [local_time(event["at"])]
    if is_of_many:
        tenant = f"{event['tenant']}/" if with_tenant else ""
        parts.append(plain(f"{tenant}{short_id(event['job'])}"))
    return "  ".join([*parts, event_text(event)]) + "\n"
