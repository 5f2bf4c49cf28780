"""A job's events in order of `seq`, each once, and what can be read from them. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuyard.errors import GpuyardError, InvalidJob, RequestError, error_from_wire
from gpuyard.messages import Event

_OWN_CODES = ("conflict", "not_allowed", "too_large")


class EventOrder:
    """Takes events as they arrive; hands them out when their turn has come."""

    def __init__(self) -> None:
        self.last_seq = 0
        self._early: dict[int, Event] = {}

    @property
    def has_gap(self) -> bool:
        return bool(self._early)

    def live(self, event: Event) -> list[Event]:
        """An event as published; what is ahead of its turn is held."""
        if event["seq"] > self.last_seq:
            self._early[event["seq"]] = event
        return self._drain()

    def history(self, events: Iterable[Event]) -> list[Event]:
        """All events that the yard keeps: what is missing among them will not come any more.

        A refusal of another submission with the same id has a number of its own, so it is left.
        """
        ready: list[Event] = []
        for event in sorted(events, key=lambda event: event["seq"]):
            if event["seq"] > self.last_seq and event["kind"] != "rejected":
                self._early.pop(event["seq"], None)
                self.last_seq = event["seq"]
                ready.append(event)
        return ready + self._drain()

    def skip_gap(self) -> list[Event]:
        """Give up what is missing before the held events."""
        if self._early:
            self.last_seq = min(self._early) - 1
        return self._drain()

    def _drain(self) -> list[Event]:
        ready = []
        while (event := self._early.pop(self.last_seq + 1, None)) is not None:
            self.last_seq += 1
            ready.append(event)
        return ready


def parse_event(body: Mapping[str, Any]) -> Event | None:
    """The event in a body that was published; None where it is none."""
    texts = all(isinstance(body.get(key), str) for key in ("job", "kind", "state", "at"))
    if not texts or type(body.get("seq")) is not int:
        return None
    return {
        "v": 1,
        "seq": body["seq"],
        "at": body["at"],
        "tenant": str(body.get("tenant")),
        "job": body["job"],
        "attempt": body.get("attempt"),
        "kind": body["kind"],
        "state": body["state"],
        "node": body.get("node"),
        "reason": body.get("reason"),
        "message": body.get("message"),
        "actor": body.get("actor"),
        "data": body.get("data") or {},
    }


def refusal_of(event: Event) -> GpuyardError:
    """The exception that a `rejected` event stands for, with every fault it names."""
    errors = [error for error in event["data"].get("errors") or [] if isinstance(error, dict)]
    code = str(errors[0].get("code")) if len(errors) == 1 else "invalid"
    message = event["message"] or event["reason"] or "the yard refused the job"
    if code in _OWN_CODES:
        text = str(errors[0].get("message") or message)
        return error_from_wire({"code": code, "message": text, "field": errors[0].get("field")})
    if not errors:
        return RequestError(message)
    fault = error_from_wire({"code": "invalid", "message": message, "errors": errors})
    if isinstance(fault, InvalidJob) and event["reason"] not in (None, "invalid"):
        # quota_impossible and queue_full are told by their reason, on the wire and here.
        return InvalidJob(fault.faults, code=event["reason"])
    return fault
