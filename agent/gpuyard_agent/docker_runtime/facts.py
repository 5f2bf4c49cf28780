"""Reading what an engine says of a container: pure functions of its documents."""

from collections.abc import Mapping
from typing import Any, Final

from gpuyard_agent.core.containers import Exit, Status
from gpuyard_agent.core.times import epoch_s, rfc3339
from gpuyard_agent.docker_runtime.failures import start_exit_code

KILLED: Final = 137
UNKNOWN: Final = 255
"""What an engine says of a container whose end it did not see."""
AMBIGUOUS: Final = frozenset({KILLED, 143, UNKNOWN})
"""Codes that can have several causes."""

_STATUS: Final = {
    "created": Status.CREATED,
    "running": Status.RUNNING,
    "paused": Status.RUNNING,
    "restarting": Status.RUNNING,
    "exited": Status.EXITED,
    "dead": Status.EXITED,
    "removing": Status.EXITED,
}


def status_of(word: str) -> Status:
    """The state that an engine's word means; an unknown one counts as running: never restarted."""
    return _STATUS.get(word, Status.RUNNING)


def time_of(text: str | None) -> str | None:
    """An engine's time in our form; None for the year 1, by which engines say never."""
    at = epoch_s(text)
    return None if at is None or at <= 0 else rfc3339(at)


def exit_of(inspect: Mapping[str, Any], *, now: float) -> Exit | None:
    """How an inspected container ended; None while it runs or was not begun.

    A command that could not be begun leaves a container that was never started: that is an end
    with docker's own code, 127 or 126.
    """
    state: Mapping[str, Any] = inspect["State"]
    status = status_of(str(state["Status"]))
    error = str(state.get("Error") or "") or None
    if status is Status.CREATED:
        code = start_exit_code(error) if error else None
        if code is None:
            return None
        return Exit(code, time_of(inspect.get("Created")) or rfc3339(now), message=error)
    if status is not Status.EXITED:
        return None
    code = state.get("ExitCode")
    return Exit(
        code if isinstance(code, int) else None,
        time_of(state.get("FinishedAt")) or rfc3339(now),
        out_of_memory=bool(state.get("OOMKilled")) and code == KILLED,
        message=error,
    )


def died(attributes: Mapping[str, str], time_nano: int) -> Exit:
    """How a container ended, as the event of its death says it."""
    code = attributes.get("exitCode", "")
    at = rfc3339(time_nano / 1_000_000_000)
    return Exit(int(code) if code.isdecimal() else None, at)


def image_digest(image: Mapping[str, Any]) -> str | None:
    """The digest that a registry knows the image by, else its local id."""
    for name in image.get("RepoDigests") or []:
        _, _, digest = str(name).partition("@")
        if digest:
            return digest
    found = image.get("Id")
    return str(found) if found else None
