"""Changes to the caller's own config.toml that leave every other line as it is.

The file is edited by lines, read back, and only kept if it then says what was meant: a form that
this does not understand is never damaged.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpuyard import small_files
from gpuyard.client.config import ConfigError, check_value, read_toml
from gpuyard.model import ids

_HEADER: Final = re.compile(r"\s*\[")


def set_value(path: Path, context: str, key: str, value: str) -> None:
    """Write `key = value` into [contexts.CONTEXT]; raises ConfigError and changes nothing."""
    check_value(key, value)
    _check_context(context)

    def meant(document: dict[str, Any]) -> None:
        document.setdefault("contexts", {}).setdefault(context, {})[key] = value

    _edit(path, lambda lines: _set_in_section(lines, context, key, value), meant)


def use_context(path: Path, context: str, known: list[str]) -> None:
    """Make a context the one that is used when nobody names one."""
    if context not in known:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"there is no context {context!r}; known contexts: {listed}")

    def meant(document: dict[str, Any]) -> None:
        document["context"] = context

    _edit(path, lambda lines: _set_at_top(lines, context), meant)


def _check_context(name: str) -> None:
    if not ids.is_user(name):
        raise ConfigError(f"context {name!r} is no name: lower-case letters, digits, _ and -")


def _edit(
    path: Path,
    change: Callable[[list[str]], list[str]],
    meant: Callable[[dict[str, Any]], None],
) -> None:
    wanted: dict[str, Any] = {}
    lines: list[str] = []
    if path.exists():
        wanted = read_toml(path)
        lines = small_files.read_text(path).splitlines()
    meant(wanted)
    text = "\n".join(change(lines)) + "\n"
    try:
        is_meant = tomllib.loads(text) == wanted
    except ValueError:
        is_meant = False
    if not is_meant:
        raise ConfigError(f"{path} is written in a way that cannot be changed here; edit it")
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    """In one step, with the rights that the file had; a link stays one."""
    real = path.resolve()
    fresh = real.with_name(f"{real.name}.new")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
        fresh.unlink(missing_ok=True)
        # A url may hold a token, so a new file is for its owner alone.
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(real)
    except OSError as fault:
        raise ConfigError(f"{path} cannot be written: {fault.strerror}") from fault


def _set_in_section(lines: list[str], context: str, key: str, value: str) -> list[str]:
    entry = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    start = _section(lines, context)
    if start is None:
        gap = [""] if lines and lines[-1].strip() else []
        return [*lines, *gap, f"[contexts.{context}]", entry]
    end = next((i for i in range(start + 1, len(lines)) if _HEADER.match(lines[i])), len(lines))
    for i in range(start + 1, end):
        if re.match(rf"\s*{re.escape(key)}\s*=", lines[i]):
            return [*lines[:i], entry, *lines[i + 1 :]]
    return [*lines[: start + 1], entry, *lines[start + 1 :]]


def _section(lines: list[str], context: str) -> int | None:
    name = re.escape(context)
    header = re.compile(rf"\s*\[\s*contexts\s*\.\s*(?:{name}|\"{name}\"|'{name}')\s*\]\s*(#.*)?")
    return next((i for i, line in enumerate(lines) if header.fullmatch(line)), None)


def _set_at_top(lines: list[str], context: str) -> list[str]:
    entry = f"context = {json.dumps(context, ensure_ascii=False)}"
    end = next((i for i, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    for i in range(end):
        if re.match(r"\s*context\s*=", lines[i]):
            return [*lines[:i], entry, *lines[i + 1 :]]
    return [entry, *lines]
