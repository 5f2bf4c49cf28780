"""The options that every command takes, before its name or after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from gpuyard.cli.completing import context_names, tenant_names

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Globals:
    """What the global options said; the click context's `obj`."""

    command: str = ""
    url: str | None = None
    context: str | None = None
    tenant: str | None = None
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    debug: bool = False


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    # Given before the command's name and not after it, an option keeps what it was given.
    if value and param.name:
        setattr(ctx.ensure_object(Globals), param.name, value)


def global_options(function: F) -> F:
    """Adds the options; their values are in the context's `Globals`, not in the arguments."""
    flags: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("--json",), {"is_flag": True, "help": "JSON on stdout."}),
        (("-q", "--quiet"), {"is_flag": True, "help": "Ids or nothing, where that makes sense."}),
        (("--url",), {"metavar": "URL", "help": "The bus, as nats://HOST:PORT."}),
        (
            ("--context",),
            {"metavar": "NAME", "shell_complete": context_names, "help": "One of config.toml."},
        ),
        (
            ("--tenant",),
            {"metavar": "NAME", "shell_complete": tenant_names, "help": "The tenant to act for."},
        ),
        (("--no-color",), {"is_flag": True, "help": "No colours."}),
        (("--debug",), {"is_flag": True, "help": "Tracebacks and the log of the connection."}),
    ]
    for names, options in reversed(flags):
        function = click.option(*names, expose_value=False, callback=_keep, **options)(function)
    return function


def current() -> Globals:
    """The global options of the command that runs."""
    return click.get_current_context().ensure_object(Globals)
