"""What somebody may have meant."""

from collections.abc import Iterable


def unknown_command(name: str, known: Iterable[str]) -> str:
    """The line for a command that there is not."""
    return f"no such command: {name}{nearest(name, known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean jobs?`, or nothing where nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
