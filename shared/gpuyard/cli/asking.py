"""Questions before something that cannot be taken back."""

import click

from gpuyard.cli.ending import UsageFault
from gpuyard.cli.terminal import is_interactive


def confirmed(question: str, *, otherwise: str, yes: bool) -> bool:
    """Whether to go on. Where nobody can be asked it raises UsageFault, led by `otherwise`."""
    if yes:
        return True
    if not is_interactive():
        raise UsageFault(f"{otherwise}; -y says yes where nobody can be asked")
    return click.confirm(question, err=True)
