"""Tables, code and types as Markdown."""

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

GENERATED = "<!-- Made by scripts/generate_reference.py; do not edit. -->"
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", bytes: "bytes"}


def page(title: str, *parts: str) -> str:
    """A whole page: the title, then the parts with a blank line between."""
    return "\n\n".join([f"# {title}", GENERATED, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """The text as inline code; one that is itself in backticks stays readable."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def block(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"


def value(item: Any) -> str:
    """A default or an example as JSON, which is YAML too."""
    return code(json.dumps(item, ensure_ascii=False))


def described(names: Iterable[str], words: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
    """Each name with its words; raises SystemExit where the two do not match."""
    wanted = list(names)
    if missing := [name for name in wanted if name not in words]:
        raise SystemExit(f"scripts/reference: {where}: no words for {', '.join(missing)}")
    if extra := [name for name in words if name not in wanted]:
        raise SystemExit(f"scripts/reference: {where}: words for unknown {', '.join(extra)}")
    return [(name, words[name]) for name in wanted]


def hints(shape: type, link: Callable[[type], str]) -> list[tuple[str, str]]:
    """The keys of a typed dictionary with their types in words."""
    found = typing.get_type_hints(shape)
    return [(key, _hint(kind, link)) for key, kind in found.items()]


def _hint(kind: Any, link: Callable[[type], str]) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is type(None):
        return "null"
    if kind is Any:
        return "any"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_hint(one, link) for one in inner)
    if origin is typing.Literal:
        return ", ".join(code(str(one)) for one in inner)
    if origin is list:
        return f"list of {_hint(inner[0], link)}"
    if origin is dict:
        return "map" if inner[1] is Any else f"map to {_hint(inner[1], link)}"
    if typing.is_typeddict(kind) or hasattr(kind, "__required_keys__"):
        return link(kind)
    return str(getattr(kind, "__name__", kind))
