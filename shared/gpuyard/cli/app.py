"""The command `gpuyard`: which commands there are, and how every one of them ends.

A command's module is imported when the command runs, never for `--help`. Whatever goes wrong
becomes one line on stderr and an exit code (docs/reference/exit-codes.md).
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from gpuyard.cli.globals import Globals, global_options
from gpuyard.cli.nearest import unknown_command

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("gpuyard.cli.up:up", "Start a yard on this machine"),
    "down": ("gpuyard.cli.up:down", "End the yard of this folder"),
    "run": ("gpuyard.cli.run:run", "Run a container, follow its output, exit with its code"),
    "submit": ("gpuyard.cli.submit:submit", "Hand in jobs and print their ids"),
    "jobs": ("gpuyard.cli.jobs:jobs", "List jobs"),
    "job": ("gpuyard.cli.job:job", "Show one job with its attempts and events"),
    "why": ("gpuyard.cli.why:why", "Say why a job waits and what would start it"),
    "logs": ("gpuyard.cli.logs:logs", "Show a job's output"),
    "events": ("gpuyard.cli.events:events", "Show what happens to a job, or to all"),
    "wait": ("gpuyard.cli.wait:wait", "Wait for jobs and exit with their code"),
    "cancel": ("gpuyard.cli.cancel:cancel", "End jobs"),
    "hold": ("gpuyard.cli.hold:hold", "Keep queued jobs from starting"),
    "release": ("gpuyard.cli.hold:release", "Let held jobs start"),
    "status": ("gpuyard.cli.status:status", "Show the whole yard on one screen"),
    "nodes": ("gpuyard.cli.nodes:nodes", "List nodes and their GPUs"),
    "node": ("gpuyard.cli.nodes:node", "Show one node, GPU by GPU"),
    "cordon": ("gpuyard.cli.operate:cordon", "Keep new jobs off a node or a GPU"),
    "uncordon": ("gpuyard.cli.operate:uncordon", "Let jobs on a node or a GPU again"),
    "drain": ("gpuyard.cli.operate:drain", "Empty a node and wait until it is empty"),
    "forget": ("gpuyard.cli.operate:forget", "Take a node that will not come back off the list"),
    "tenants": ("gpuyard.cli.tenants:tenants", "List tenants, their limits and their use"),
    "tenant": ("gpuyard.cli.tenants:tenant", "Show one tenant"),
    "apply": ("gpuyard.cli.apply:apply", "Set tenants' limits from files"),
    "delete-tenant": ("gpuyard.cli.tenants:delete_tenant", "Remove a tenant"),
    "simulate": ("gpuyard.cli.simulate:simulate", "Replay decisions, or try other policies"),
    "backup": ("gpuyard.cli.backup:backup", "Write the yard's state into a file"),
    "restore": ("gpuyard.cli.restore:restore", "Put the state of a file back onto the bus"),
    "config": ("gpuyard.cli.config:config", "Show and change this program's settings"),
    "completion": ("gpuyard.cli.completion:completion", "Print a shell's completion"),
    "version": ("gpuyard.cli.version:version", "Show versions"),
}
ALIASES: Final = {"ps": "jobs"}
COMPLETE_VARIABLE: Final = "_GPUYARD_COMPLETE"
"""Set by the completion of a shell, which then reads words from stdout."""


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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # By the table: asking each command for its help would import them all.
        words = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return words + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_known = name in COMMANDS or name in ALIASES or name.startswith("-")
        if not is_known and not ctx.resilient_parsing:
            raise click.UsageError(unknown_command(name, [*COMMANDS, *ALIASES]), ctx)
        ctx.ensure_object(Globals).command = ALIASES.get(name, name)
        if sys.stdout is None:
            raise click.UsageError("standard output is closed; write >/dev/null to drop it", ctx)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]  # always ends the process, so it returns nothing
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        """Run a command line and exit: no exception and no traceback gets out."""
        sys.exit(self.outcome(args))

    def outcome(self, args: Sequence[str] | None = None) -> int:
        """Run a command line (that of the process where None) and return the exit code."""
        settings = Globals()
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            return _complete(self, instruction)
        try:
            code = self._run(list(sys.argv[1:] if args is None else args), settings)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BaseException as fault:  # noqa: BLE001  # the top of the program: all must end well
            from gpuyard.cli.ending import code_of

            code = code_of(fault, settings)
        return code

    def _run(self, args: list[str], settings: Globals) -> int:
        try:
            with self.make_context("gpuyard", args, obj=settings) as ctx:
                result = self.invoke(ctx)
        except click.exceptions.Exit as end:
            return end.exit_code
        return result if isinstance(result, int) else 0


def _complete(group: click.Group, instruction: str) -> int:
    """Answers the shell; silent where it cannot, since its words would land in a command line."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(group, {}, "gpuyard", COMPLETE_VARIABLE, instruction)
    except Exception:  # noqa: BLE001  # the top of the program: see above
        return 1


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
