"""The page of the command line, from click itself."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click

from gpuyard.cli.app import ALIASES, cli
from gpuyard.cli.docker_flags import REFUSED
from reference.markdown import block, code, page, table


def cli_page() -> str:
    root = click.Context(cli, info_name="gpuyard")
    own = {"help", *(str(param.name) for param in cli.params)}
    names = cli.list_commands(root)
    commands = [(name, cli.get_command(root, name)) for name in names]
    return page(
        "The command line",
        "Tables are for people and fit the terminal; `--json` is for programs and keeps its keys. "
        "Answers are on stdout, everything else is one line on stderr. "
        "[Exit codes](exit-codes.md), [settings](settings.md).",
        "An id may be written as its first characters (at least 4) where they are unique, or as "
        "the name of an unfinished job.",
        "## Options of every command",
        "Before the command's name or after it.",
        _options([param for param in cli.params if param.name != "help"], root),
        *(part for name, command in commands if command for part in _command(name, command, own)),
        "## Flags of `docker run` that are refused",
        "By name, with what to do instead; none is dropped in silence.",
        table(["flag", "instead"], ((code(flag), _plain(text)) for flag, text in REFUSED.items())),
    )


def _command(name: str, command: click.Command, own: set[str]) -> Iterator[str]:
    context = click.Context(command, info_name=f"gpuyard {name}")
    other = [alias for alias, meant in ALIASES.items() if meant == name]
    yield f"## gpuyard {name}"
    yield code(" ".join([f"gpuyard {name}", *command.collect_usage_pieces(context)]))
    if other:
        yield f"Also: {', '.join(code(f'gpuyard {alias}') for alias in other)}."
    yield from _paragraphs(command.help or "")
    options = [p for p in command.params if isinstance(p, click.Option) and p.name not in own]
    if shown := [option for option in options if not option.hidden]:
        yield _options(shown, context)
    if command.epilog:
        yield from _paragraphs(command.epilog)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if (child := command.get_command(context, inner)) is not None:
                yield from _command(f"{name} {inner}", child, own)


def _options(params: list[Any], context: click.Context) -> str:
    records = [record for param in params if (record := param.get_help_record(context))]
    return table(["option", "means"], ((code(flags), _plain(text)) for flags, text in records))


def _paragraphs(text: str) -> Iterator[str]:
    """Prose as prose; what click is told not to wrap, as a block of commands."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if part.startswith("\b"):
            yield block("sh", inspect.cleandoc(part.removeprefix("\b").strip("\n")))
        else:
            yield _plain(" ".join(part.split()))


def _plain(text: str) -> str:
    """What Markdown would take for its own signs stands as it is."""
    return re.sub(r"([*<>_])", r"\\\1", text)
