"""`gpuyard config`: the settings with the place each came from, and ways to change them."""

import os
from typing import Any

import click

from gpuyard.cli.completing import context_names
from gpuyard.cli.ending import UsageFault
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.nearest import unknown_command
from gpuyard.cli.render import Column, json_object, table, terminal_width
from gpuyard.cli.streams import write


class _Group(click.Group):
    """A group whose unknown names are answered with the nearest known one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UsageFault(unknown_command(args[0], self.commands), ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Group, invoke_without_command=True)
@global_options
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show each setting with the place it came from.

    A flag goes before GPUYARD_* in the environment, that before the yard of this folder, that
    before the configuration files.

    \b
      gpuyard config
      gpuyard config set url nats://yard.example:4222 --context lab
      gpuyard config use-context lab
    """
    if ctx.invoked_subcommand is None:
        _show()


def _show() -> None:
    from gpuyard.bus import redact
    from gpuyard.client.config import KEYS, load_config

    settings = current()
    found = load_config(url=settings.url, tenant=settings.tenant, context=settings.context)
    values = {key: getattr(found, key) for key in KEYS} | {"url": redact(found.url)}
    origins = dict(found.origins) | {"context": _context_origin(found.context)}
    rows: list[dict[str, Any]] = [
        {"key": key, "value": value, "origin": origins[key]}
        for key, value in [*values.items(), ("context", found.context)]
    ]
    if settings.json:
        body = {row["key"]: {"value": row["value"], "origin": row["origin"]} for row in rows}
        write(json_object({"v": 1, **body}))
        return
    columns = [
        Column("KEY", lambda row: row["key"], least=11),
        Column("VALUE", lambda row: row["value"] or "-", least=12),
        Column("ORIGIN", lambda row: row["origin"], least=8),
    ]
    write("".join(f"{line}\n" for line in table(rows, columns, width=terminal_width())))


def _context_origin(context: str | None) -> str:
    if context is None:
        return "default"
    if current().context:
        return "argument"
    return "GPUYARD_CONTEXT" if os.environ.get("GPUYARD_CONTEXT") else "config.toml"


@config.command()
@global_options
def path() -> None:
    """Print the path of your own configuration file, whether it exists or not.

    \b
      gpuyard config path
      ${EDITOR:-vi} "$(gpuyard config path)"
    """
    from gpuyard.client.config import own_file

    file = own_file(os.environ)
    if current().json:
        write(json_object({"v": 1, "path": str(file), "exists": file.exists()}))
    else:
        write(f"{file}\n")


@config.command("use-context")
@click.argument("name", metavar="NAME", shell_complete=context_names)
@global_options
def use_context(name: str) -> None:
    """Use a context of the configuration files when none is named.

    \b
      gpuyard config use-context lab
    """
    from gpuyard.client import config_file
    from gpuyard.client.config import known_contexts, own_file

    file = own_file(os.environ)
    config_file.use_context(file, name, known_contexts(os.environ) if file.exists() else [])
    _told(f"context {name} is used from now on ({file})", {"context": name, "path": str(file)})


@config.command("set")
@click.argument(
    "key", metavar="KEY", type=click.Choice(["url", "tenant", "user", "credentials", "ca"])
)
@click.argument("value", metavar="VALUE")
@global_options
def set_value(key: str, value: str) -> None:
    """Set KEY of a context: the one that --context names, else the one in use, else default.

    KEY is url, tenant, user, credentials or ca.

    \b
      gpuyard config set tenant team-a
      gpuyard config set url nats://yard.example:4222 --context lab
    """
    from gpuyard.client import config_file
    from gpuyard.client.config import load_config, own_file

    settings = current()
    file = own_file(os.environ)
    context = settings.context
    if context is None:
        context = (load_config().context if file.exists() else None) or "default"
    config_file.set_value(file, context, key, value)
    body = {"context": context, "key": key, "value": value, "path": str(file)}
    _told(f"{key} of context {context} is set ({file})", body)


def _told(text: str, body: dict[str, Any]) -> None:
    settings = current()
    if settings.json:
        write(json_object({"v": 1, **body}))
    elif not settings.quiet:
        write(f"{text}\n")
