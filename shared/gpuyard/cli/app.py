"""The command `gpuyard`: which commands there are, and how every one of them ends.

A command's module is imported when the command runs, never for `--help`. Whatever goes wrong
becomes one line on stderr and an exit code of INTERFACES table I.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click

from gpuyard.cli.globals import Globals, global_options

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("gpuyard.cli.up:up", "Start a yard on this machine"),
    "down": ("gpuyard.cli.up:down", "End the yard of this folder"),
    "run": ("gpuyard.cli.run:run", "Run a container, follow its output, exit with its code"),
    "submit": ("gpuyard.cli.submit:submit", "Hand in jobs and print their ids"),
    "jobs": ("gpuyard.cli.jobs:jobs", "List jobs"),
    "job": ("gpuyard.cli.job:job", "Show one job with its attempts and events"),
    "logs": ("gpuyard.cli.logs:logs", "Show a job's output"),
    "events": ("gpuyard.cli.logs:events", "Show what happens to a job, or to all"),
    "wait": ("gpuyard.cli.wait:wait", "Wait for jobs and exit with their code"),
    "cancel": ("gpuyard.cli.wait:cancel", "End jobs"),
    "nodes": ("gpuyard.cli.nodes:nodes", "List nodes and their GPUs"),
    "node": ("gpuyard.cli.nodes:node", "Show one node, GPU by GPU"),
    "version": ("gpuyard.cli.version:version", "Show versions"),
}
ALIASES: Final = {"ps": "jobs"}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if home is None:
            return None
        module, _, attribute = home[0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and name not in ALIASES and not name.startswith("-"):
            raise click.UsageError(_unknown_command(name), ctx)
        ctx.ensure_object(Globals).command = ALIASES.get(name, name)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]  # always ends the process, so it returns nothing
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        """Run a command line and exit: no exception and no traceback gets out."""
        settings = Globals()
        try:
            code = self._run(list(sys.argv[1:] if args is None else args), settings)
            sys.stdout.flush()
        except BaseException as fault:  # noqa: BLE001  # the top of the program: all must end well
            from gpuyard.cli.ending import code_of

            code = code_of(fault, settings)
        sys.exit(code)

    def _run(self, args: list[str], settings: Globals) -> int:
        try:
            with self.make_context("gpuyard", args, obj=settings) as ctx:
                result = self.invoke(ctx)
        except click.exceptions.Exit as end:
            return end.exit_code
        return result if isinstance(result, int) else 0


def _unknown_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
    return f"no such command: {name}" + (f"; did you mean {near[0]}?" if near else "")


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import gpuyard

        click.echo(f"gpuyard {gpuyard.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 100},
    epilog="'gpuyard COMMAND --help' tells more. Without a yard, start with 'gpuyard up'.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@global_options
def cli() -> None:
    """Run container jobs on the GPUs of plain Docker hosts."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().ensure_object(Globals).no_color = True
