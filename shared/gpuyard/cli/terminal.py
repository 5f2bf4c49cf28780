"""The terminal a person sits at: is there one, the keys that detach, and a line of progress."""

import asyncio
import contextlib
import os
import shutil
import sys
import termios
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

CTRL_P: Final = b"\x10"
CTRL_Q: Final = b"\x11"


def is_interactive() -> bool:
    """Whether a person can be told something and answer with the keyboard."""
    return _is_terminal(0) and _is_terminal(2)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


class DetachKeys:
    """Watches the keyboard for Ctrl-P Ctrl-Q; Ctrl-C and Ctrl-Z work as ever.

    A context manager: the terminal is as it was afterwards. Where stdin is no terminal of ours,
    in the background for instance, it does nothing.
    """

    def __init__(self, on_detach: Callable[[], None]) -> None:
        self._on_detach = on_detach
        self._saved: list[Any] | None = None
        self._last = b""

    def __enter__(self) -> Self:
        if not is_interactive() or os.tcgetpgrp(0) != os.getpgrp():
            return self
        self._saved = termios.tcgetattr(0)
        self._set_keys()
        asyncio.get_running_loop().add_reader(0, self._on_keys)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._saved is not None:
            asyncio.get_running_loop().remove_reader(0)
            # A terminal that has gone away has nothing to be set back.
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(0, termios.TCSANOW, self._saved)

    def resume(self) -> None:
        """Set the keys again: after Ctrl-Z and `fg` the shell has set its own."""
        if self._saved is not None and os.tcgetpgrp(0) == os.getpgrp():
            self._set_keys()

    def _set_keys(self) -> None:
        attributes = termios.tcgetattr(0)
        # Ctrl-Q is the terminal's own "go on" key until IXON is off.
        attributes[0] &= ~termios.IXON
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(0, termios.TCSANOW, attributes)

    def _on_keys(self) -> None:
        try:
            keys = os.read(0, 1024)
        except OSError:
            keys = b""
        if not keys:
            asyncio.get_running_loop().remove_reader(0)
            return
        seen = self._last + keys
        if CTRL_P + CTRL_Q in seen:
            self._on_detach()
        self._last = seen[-1:]


class ProgressLine:
    """One line on stderr that is written over; silent where stderr is no terminal."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_on = not is_quiet and _is_terminal(2)
        self._shown = ""

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it."""
        return self._is_on

    def show(self, text: str) -> None:
        if not self._is_on or text == self._shown:
            return
        width = shutil.get_terminal_size().columns
        cut = text if len(text) < width else text[: max(width - 2, 1)] + "…"
        self._write(f"\r\x1b[K{cut}")
        self._shown = text

    def clear(self) -> None:
        """Take the line away, before anything else is written to the terminal."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = ""

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # The terminal has gone away; what happens then is decided elsewhere.
            self._is_on = False
