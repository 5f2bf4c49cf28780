"""Logs of the daemons: one JSON object per line in services, readable lines on a terminal.

Both structlog's loggers and those of the standard library (the bus uses them) come out in the same
form, on standard error. structlog is loaded by the first call, so importing this costs nothing.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("json", "text")
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
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _add_extra],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(format),
            ],
        )
    )
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
