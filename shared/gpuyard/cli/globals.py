"""The options that every command takes, before its name or after it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import click

from gpuyard.cli.completing import context_names, tenant_names

F = TypeVar("F", bound=Callable[..., Any])

_MAY_BE_EMPTY: Final = frozenset({"command", "entrypoint", "reason"})
"""Parameters whose empty text says something, as with docker."""
_INSTEAD_OF_EMPTY: Final = {
    "--gpus": "write --gpus 0 for none",
    "ID": "a job's id or name is needed",
    "IMAGE": "an image is needed",
    "NAME": "a name is needed",
}


@dataclass(slots=True)
class Globals:
    """What the global options said; the click context's `obj`."""

    command: str = ""
    url: str | None = None
    context: str | None = None
    tenant: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    refuse_empty(param, value)
    # Given before the command's name and not after it, an option keeps what it was given.
    if value and param.name:
        setattr(ctx.ensure_object(Globals), param.name, value)


def global_options(function: F) -> F:
    """Adds the options; their values are in the context's `Globals`, not in the arguments.

    No option or argument of the command may be an empty text, as an unset variable leaves it.
    """
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
        # Scripts pass it out of habit, and are not to fail for it.
        (
            ("--no-color",),
            {"is_flag": True, "callback": None, "help": "Accepted: nothing is ever coloured."},
        ),
        (("--debug",), {"is_flag": True, "help": "Tracebacks and the log of the connection."}),
    ]

    @functools.wraps(function)
    def checked(*arguments: Any, **values: Any) -> Any:
        for param in click.get_current_context().command.params:
            refuse_empty(param, values.get(param.name or ""))
        return function(*arguments, **values)

    wrapped = cast(F, checked)
    for names, options in reversed(flags):
        kept = {"callback": _keep, "expose_value": False} | options
        wrapped = click.option(*names, **kept)(wrapped)
    return wrapped


def refuse_empty(param: click.Parameter, value: Any) -> None:
    """Raises UsageError where a value is an empty text: left out, it would mean something else."""
    is_empty = value == "" or (isinstance(value, tuple) and "" in value)
    if not is_empty or param.name in _MAY_BE_EMPTY:
        return
    is_option = isinstance(param, click.Option)
    # An argument's name as its usage shows it, without what says that there may be more or none.
    name = max(param.opts, key=len) if is_option else param.make_metavar(_context()).strip("[]…")
    advice = _INSTEAD_OF_EMPTY.get(name, "give it a value, or leave it out")
    raise click.UsageError(f"{name} is empty; {advice}")


def _context() -> click.Context:
    return click.get_current_context()


def current() -> Globals:
    """The global options of the command that runs."""
    return click.get_current_context().ensure_object(Globals)
