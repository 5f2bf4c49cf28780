"""Questions before something that cannot be taken back.

They are asked outside of any event loop: inside of one, Ctrl-C would only be noted for its next
turn, and the question stay.
"""

import click

from gpuyard.cli.ending import UsageFault
from gpuyard.cli.terminal import is_interactive


def confirmed(question: str, *, otherwise: str, yes: bool) -> bool:
    """Whether to go on. Where nobody can be asked it raises UsageFault, led by `otherwise`."""
    if yes:
        return True
    if not is_interactive():
        raise UsageFault(f"{otherwise}; -y says yes where nobody can be asked")
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        # The line of the question ends here, not where the shell writes next.
        click.echo(err=True)
        raise
