"""`gpuyard completion SHELL`: what a shell's own start-up file takes in."""

import click

from gpuyard.cli.globals import global_options
from gpuyard.cli.streams import write

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell's completion.")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@global_options
def completion(shell: str) -> None:
    """Print the completion of commands, flags, job ids, node and tenant names.

    \b
      gpuyard completion bash > ~/.local/share/bash-completion/completions/gpuyard
      gpuyard completion zsh > ~/.zfunc/_gpuyard     # with ~/.zfunc in fpath
      gpuyard completion fish > ~/.config/fish/completions/gpuyard.fish
    """
    from click.shell_completion import get_completion_class

    from gpuyard.cli.app import COMPLETE_VARIABLE, cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} has no completion here")
    write(kind(cli, {}, "gpuyard", COMPLETE_VARIABLE).source() + "\n")
