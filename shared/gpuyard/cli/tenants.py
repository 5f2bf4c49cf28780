"""`gpuyard tenants`, `gpuyard tenant NAME` and `gpuyard delete-tenant NAME`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.completing import tenant_names
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.render import Column, View, json_object, span, table, terminal_width
from gpuyard.cli.streams import write
from gpuyard.model.quantities import parse_duration_s

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.views.tenants import TenantView

LIMITS: Final = ("gpus", "gpu_memory_gib", "running_jobs", "queued_jobs")
EMPTY: Final = "no tenants; 'gpuyard apply --template dev NAME' makes one"


@click.command()
@click.option("--watch", "is_watching", is_flag=True, help="Go on; show again on every change.")
@global_options
def tenants(is_watching: bool) -> None:
    """List the tenants with what they use of what they may.

    \b
      gpuyard tenants
      gpuyard tenants --watch
      gpuyard tenants --json | jq '.[] | select(.over != [])'
    """
    from gpuyard.cli.watch import Watched, list_or_watch

    watched = Watched(
        fetch=lambda client: client.tenants(),
        columns=tenant_columns,
        identity=lambda tenant: str(tenant["tenant"]),
        key="tenant",
        empty=EMPTY,
    )
    list_or_watch(watched, current(), is_watching=is_watching, as_operator=True)


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=tenant_names)
@global_options
def tenant(name: str | None) -> None:
    """Show one tenant, yours where none is named: its limits, its use, what a job of it may.

    \b
      gpuyard tenant
      gpuyard tenant team-a
      gpuyard tenant --json team-a | jq .used.gpus
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> "TenantView":
        return await client.tenant(name)

    view = with_yard(settings, work)
    if settings.json:
        write(json_object(view))
    elif settings.quiet:
        write(f"{view['tenant']}\n")
    else:
        write("".join(f"{line}\n" for line in detail(view)))


@click.command()
@click.argument("name", metavar="NAME", shell_complete=tenant_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options
def delete_tenant(name: str, yes: bool) -> int:
    """Remove a tenant and its limits. It must have no unfinished jobs.

    \b
      gpuyard delete-tenant team-a
      gpuyard cancel --tenant team-a --all -y && gpuyard delete-tenant -y team-a
    """
    from gpuyard.cli.asking import confirmed
    from gpuyard.cli.session import with_yard

    settings = current()
    otherwise = f"tenant {name} would be deleted"
    if not confirmed(f"Delete tenant {name}?", otherwise=otherwise, yes=yes):
        return 1

    async def work(client: "AsyncClient") -> "TenantView":
        return await client.delete_tenant(name)

    view = with_yard(settings, work, as_operator=True)
    if settings.json:
        write(json_object(view))
    else:
        write(f"{name}\n" if settings.quiet else f"tenant {name} deleted\n")
    return 0


def tenant_columns() -> Sequence[Column]:
    return [
        Column("TENANT", lambda view: view["tenant"], least=8),
        Column("GPUS", lambda view: _of(view, "gpus"), is_right=True),
        Column("GPU GIB", lambda view: _of(view, "gpu_memory_gib"), drop=3, is_right=True),
        Column("RUNNING", lambda view: _of(view, "running_jobs"), drop=1, is_right=True),
        Column("QUEUED", lambda view: _of(view, "queued_jobs"), drop=2, is_right=True),
        Column("MODELS", lambda view: ",".join(view["models"] or []) or "-", least=8, drop=5),
        Column("OVER", lambda view: ",".join(view["over"]) or "-", least=6, drop=4),
    ]


def detail(view: View) -> Iterator[str]:
    """What a person reads of one tenant."""
    from gpuyard.cli.job import fields

    models = view["models"]
    yield from fields(
        [
            ("Tenant", view["tenant"]),
            ("Limits", "" if view["exists"] else "none: nobody has applied any"),
            ("Over", ", ".join(view["over"])),
            ("Models", "any" if models is None else ", ".join(models) or "none"),
            ("Shares", "beside other tenants too" if view["share_across_tenants"] else "apart"),
            ("Priority", "" if view["priority"] is None else number(view["priority"])),
            ("Weight", "" if view["weight"] is None else number(view["weight"])),
        ]
    )
    rows = [{"name": name, "view": view} for name in LIMITS]
    columns = [
        Column("LIMIT", lambda row: row["name"], least=8),
        Column("USED", lambda row: number(row["view"]["used"][row["name"]]), is_right=True),
        Column("MOST", lambda row: number(row["view"]["limits"][row["name"]]), is_right=True),
    ]
    yield ""
    yield from table(rows, columns, width=terminal_width())
    per_job = [(key, cap(value)) for key, value in view["per_job"].items() if value is not None]
    if per_job:
        yield ""
        yield "Each job"
        yield from (f"  {line}" for line in fields(per_job))


def cap(value: Any) -> str:
    """A cap or default of a job; a length of time as people write it."""
    if not isinstance(value, str):
        return number(value)
    try:
        return span(parse_duration_s(value))
    except ValueError:
        return value


def _of(view: View, name: str) -> str:
    """`3/8`; `3/-` where there is no limit."""
    return f"{number(view['used'][name])}/{number(view['limits'][name])}"


def number(value: Any) -> str:
    """A number as people write it, to a thousandth of a GPU or a tenth of what is larger."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    digits = 3 if abs(value) < 10 else 1
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".")
