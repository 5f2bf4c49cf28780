"""How a command ends: from an exception to one line on stderr and an exit code."""

import os
import sys
from typing import Final

import click

from gpuyard.cli.globals import Globals
from gpuyard.client.config import ConfigError
from gpuyard.errors import GpuyardError, NotAllowed, ProtocolError, RequestError, Unavailable

USAGE: Final = 2
UNAVAILABLE: Final = 3
NOT_ALLOWED: Final = 4
OWN_TIMEOUT: Final = 124
"""Of a `--timeout` that is over."""
YARD_FAILED: Final = 125
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141


class UsageFault(click.UsageError):
    """Something on the command line, or in a file named there, cannot be used."""


class Ended(Exception):
    """Ends the command with this code; what there was to say has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(text: str) -> None:
    """One line of the program itself, on stderr."""
    _tell(f"gpuyard: {one_line(text)}\n")


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # A closed pipe, a terminal that has gone away: there is nobody to tell.
        return


def one_line(text: str) -> str:
    """The text without line ends and without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def code_of(fault: BaseException, settings: Globals) -> int:
    """Says what went wrong, where there is something to say, and returns the exit code."""
    if isinstance(fault, Ended):
        return fault.code
    if isinstance(fault, SystemExit):
        return fault.code if isinstance(fault.code, int) else 1
    if isinstance(fault, BrokenPipeError):
        _silence_stdout()
        return CLOSED_PIPE
    if isinstance(fault, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(fault, click.exceptions.NoArgsIsHelpError):
        _tell(f"{fault.format_message()}\n")
        return USAGE
    if settings.debug:
        import traceback

        traceback.print_exception(fault)
    code, line = explain(fault, settings.command)
    say(line)
    return code


def explain(fault: BaseException, command: str) -> tuple[int, str]:
    """(exit code, the line) for an exception that ends `command`."""
    is_run = command == "run"
    if isinstance(fault, click.UsageError):
        return YARD_FAILED if is_run else USAGE, _usage_line(fault, command)
    if isinstance(fault, click.ClickException):
        return YARD_FAILED if is_run else 1, fault.format_message()
    if isinstance(fault, ConfigError):
        return YARD_FAILED if is_run else USAGE, str(fault)
    if isinstance(fault, NotAllowed):
        return NOT_ALLOWED, _with_hint(fault)
    if isinstance(fault, RequestError):
        return YARD_FAILED if is_run else 1, _with_hint(fault)
    if isinstance(fault, Unavailable | ProtocolError):
        return UNAVAILABLE, str(fault)
    if isinstance(fault, GpuyardError):
        return YARD_FAILED if is_run else 1, str(fault)
    if isinstance(fault, OSError):
        named = f"{fault.filename}: " if fault.filename else ""
        return YARD_FAILED if is_run else 1, f"{named}{_lowered(fault.strerror or str(fault))}"
    text = f"this is a fault of gpuyard itself: {type(fault).__name__}: {fault}"
    return YARD_FAILED if is_run else 1, f"{text}; --debug shows where"


def _with_hint(fault: RequestError) -> str:
    return f"{fault}; {fault.hint}" if fault.hint else str(fault)


def _usage_line(fault: click.UsageError, command: str) -> str:
    text = _own_words(fault, command)
    see = f"gpuyard {command} --help" if command else "gpuyard --help"
    return text if "; " in text else f"{text}; see '{see}'"


def _own_words(fault: click.UsageError, command: str) -> str:
    from gpuyard.cli.other_words import FLAGS, ONE_OF

    if isinstance(fault, click.NoSuchOption):
        from gpuyard.cli.docker_flags import REFUSED
        from gpuyard.cli.nearest import nearest

        if reason := REFUSED.get(fault.option_name):
            return f"{fault.option_name} cannot be used here; {reason}"
        if ours := FLAGS.get(command, {}).get(fault.option_name):
            return f"no such option: {fault.option_name}; {ours}"
        near = nearest(fault.option_name, fault.possibilities or ())
        return f"no such option: {fault.option_name}{near}"
    text = fault.format_message().rstrip(".")
    text = _lowered(text)
    if command in ONE_OF and text.startswith("got unexpected extra argument"):
        return f"{text}; one alone: gpuyard {ONE_OF[command]}"
    return text


def _lowered(text: str) -> str:
    """As it stands after a colon: small, unless it begins with a name in capitals."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush finds no closed pipe."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        return
