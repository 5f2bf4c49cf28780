"""Logs of the daemons: one JSON object per line in services, readable lines on a terminal.

Both structlog's loggers and those of the standard library (the bus uses them) come out in the same
form, on standard error. Where that is the journal of systemd each line says how grave it is
(`<4>`, sd-daemon(3)), so that `journalctl -p warning` finds it. structlog is loaded by the first
call, so importing this costs nothing.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("json", "text")
_GRADES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
"""The syslog levels error, warning, info and debug, by the least level of Python's."""
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(*, level: str, format: str | None) -> None:
    """Sets the process's logging up; call it once, before the first event.

    `level` is one of LEVELS, `format` of FORMATS; None is text on a terminal and JSON elsewhere.
    """
    structlog = _structlog()
    format = format or ("text" if sys.stderr.isatty() else "json")
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, _add_extra],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_rendering(format),
        ],
    )
    is_journal = _is_journal(os.environ.get("JOURNAL_STREAM", ""))
    handler.setFormatter(_Graded(formatter) if is_journal else formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for noisy in ("asyncio", "docker", "nats"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))


def _structlog() -> Any:
    """The library without `rich`, which it would load where anything brought that: it would draw
    other tracebacks, and be 3 MiB of every daemon."""
    if "structlog" not in sys.modules and "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment] # how an import is made to fail
        try:
            import structlog
        finally:
            del sys.modules["rich"]
    import structlog

    return structlog


class _Graded(logging.Formatter):
    """Each line of what another formatter makes begins with its syslog level."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        grade = next(grade for level, grade in _GRADES if record.levelno >= level)
        return "\n".join(f"<{grade}>{line}" for line in self._inner.format(record).splitlines())


def _is_journal(stream: str) -> bool:
    """Whether standard error is the connection to the journal that systemd made, as
    JOURNAL_STREAM says (systemd.exec(5)): it may have been redirected since."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def _rendering(format: str) -> list[Any]:
    import structlog

    if format == "text":
        coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        return [structlog.dev.ConsoleRenderer(colors=coloured)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def _add_extra(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The `extra` of a standard-library call as fields of the event."""
    record = event.get("_record")
    if record is not None:
        extra = {k: v for k, v in vars(record).items() if k not in _OWN_FIELDS and k not in event}
        event.update(extra)
    return event
