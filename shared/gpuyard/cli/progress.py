"""What a job's events tell the person who waits for it, in a few words each."""

from collections.abc import Mapping
from typing import Any

from gpuyard.cli.render import mib
from gpuyard.messages import Event
from gpuyard.model.reasons import REASONS, EndReason


def doing(event: Event) -> str | None:
    """What the job does now, for a line of progress; None where the event changes nothing."""
    kind, node = event["kind"], event["node"] or "a node"
    if kind in ("accepted", "queued", "verdict", "requeued"):
        return f"queued: {event['message']}" if event["message"] else "queued"
    if kind == "assigned":
        return f"starting on {node}"
    if kind == "preparing":
        return f"preparing on {node}"
    if kind == "pulling":
        loaded = pulled(event["data"])
        return f"pulling the image on {node}{f': {loaded}' if loaded else ''}"
    if kind == "running":
        return f"running on {node}"
    if kind == "stopping":
        return f"stopping: {event['reason'] or event['message'] or ''}".rstrip(": ")
    return None


def holding_up(event: Event) -> str | None:
    """What a job waits for, for a line of its own where no line of progress is seen."""
    if event["kind"] in ("queued", "verdict") and event["message"]:
        return f"waits: {event['message']}"
    return None


class PullLines:
    """The begin and the end of a job's pulls, for lines where no line of progress is seen.

    Each node of an attempt tells its own; that the job runs means that all have pulled.
    """

    def __init__(self, image: str) -> None:
        self._image = image
        self._nodes: list[str] = []

    def begun(self, event: Event) -> str | None:
        """The line for an event that tells of a pull, once per node and attempt."""
        if event["kind"] == "requeued":
            self._nodes.clear()
        node = str((event["data"] or {}).get("node") or event["node"] or "a node")
        if event["kind"] != "pulling" or node in self._nodes:
            return None
        self._nodes.append(node)
        return f"is pulling {self._image} on {node}"

    def ended(self) -> str | None:
        """The line for the job's first sign of life after a pull."""
        if not self._nodes:
            return None
        nodes, self._nodes = self._nodes, []
        return f"has pulled {self._image} on {', '.join(nodes)}"


def note(event: Event) -> str | None:
    """What must be told in a line of its own: warnings, and a new attempt."""
    if event["kind"] == "warning":
        return event["message"] or event["reason"] or "warning"
    if event["kind"] == "requeued":
        why = event["message"] or event["reason"] or "it ended early"
        return f"attempt {event['attempt'] or '?'} is over ({why}); the job is queued again"
    return None


def ending(view: Mapping[str, Any]) -> str | None:
    """Why a job ended, in one line; None where the container simply ended by itself, unless it was
    one of a gang's: then which."""
    reason, message = view.get("reason"), view.get("message")
    is_plain = reason == EndReason.EXITED and not (len(view.get("nodes") or ()) > 1 and message)
    if view.get("state") == "succeeded" or is_plain:
        return None
    try:
        told = REASONS[EndReason(reason or "")].text
    except ValueError:
        told = "it ended for a reason that this version does not know"
    named = f"{view.get('state')} ({reason})" if reason else str(view.get("state"))
    return f"job {short_id(str(view.get('id')))} {named}: {message or told}"


def short_id(id: str) -> str:
    """8 characters of a random id; an id that somebody chose stays whole, and so does the number of
    an array's task."""
    job, underscore, number = id.partition("_")
    is_random = len(job) == 16 and "-" not in job
    return f"{job[:8]}{underscore}{number}" if is_random else id


def pulled(data: Mapping[str, Any]) -> str:
    """How much of an image has arrived; nothing before its layers are known."""
    pull = data.get("pull") if isinstance(data.get("pull"), dict) else data
    done, total = (pull.get(key) for key in ("done_bytes", "total_bytes")) if pull else (None, None)
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return ""
    return f"{mib(done >> 20)} of {mib(total >> 20)}"
