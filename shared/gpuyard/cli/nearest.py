"""What somebody may have meant."""

from collections.abc import Iterable
from typing import Final

CLOSE: Final = 0.7
"""How alike two words must be, of 1: a letter left out, doubled or swapped; more is a guess."""


def unknown_command(name: str, known: Iterable[str]) -> str:
    """The line for a command that there is not."""
    from gpuyard.cli.other_words import COMMANDS

    if ours := COMMANDS.get(name):
        return f"no such command: {name}; did you mean {ours}?"
    return f"no such command: {name}{nearest(name, known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean jobs?`, or nothing where nothing is near. The dashes of an option count for
    nothing, and a beginning is near whatever is left out."""
    from difflib import get_close_matches

    words = {word.lstrip("-"): word for word in known}
    bare = name.lstrip("-")
    begun = [word for word in words if len(bare) > 1 and word.startswith(bare)]
    near = get_close_matches(bare, words, n=1, cutoff=CLOSE) or begun[:1]
    return f"; did you mean {words[near[0]]}?" if near else ""
