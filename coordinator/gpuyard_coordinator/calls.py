"""One request of the API: who asks what, and how it is refused."""

import asyncio
from dataclasses import dataclass
from typing import Any

from gpuyard import codec, subjects
from gpuyard.bus import Message
from gpuyard.errors import GpuyardError, InvalidJob, RequestError, Unavailable
from gpuyard.messages import ErrorReply
from gpuyard.model.tenant import DEFAULT_TENANT
from gpuyard_coordinator.core.effects import Outcome

Body = dict[str, Any]
Reply = Body | bytes
"""A body, or one that is encoded already in the form that its request came in."""


@dataclass(slots=True)
class Call:
    """One request: who asks, what, and the future of its outcome where it changes something."""

    message: Message
    tenant: str
    user: str
    operation: str
    arguments: Body
    outcome: "asyncio.Future[Outcome] | None" = None

    @property
    def inbox(self) -> str:
        return subjects.tenant_inbox(self.tenant, self.user)

    @property
    def as_json(self) -> bool:
        """True where the caller wrote JSON and is answered in it."""
        return codec.is_json(self.message.data, self.message.headers)

    def answer(self, outcome: Outcome) -> None:
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(outcome)

    def text(self, name: str) -> str:
        value = self.arguments.get(name)
        if not isinstance(value, str) or not value:
            raise RequestError(f"{name} is required and must be a text", field=name)
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{name} must be a text", field=name)
        return value or None

    def number(self, name: str, *, default: int, most: int) -> int:
        value = self.arguments.get(name)
        if value is None:
            return default
        if type(value) is not int or not 1 <= value <= most:
            raise RequestError(f"{name} must be a number from 1 to {most}", field=name)
        return value

    def seconds(self, name: str, *, default: float, most: float) -> float:
        value = self.arguments.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise RequestError(f"{name} must be a number of seconds from 0", field=name)
        return min(float(value), most)

    def tenant_asked(self) -> str:
        """The tenant a job is looked for in: the caller's own, or for operators the one named."""
        if self.tenant != subjects.OPERATOR_TENANT:
            return self.tenant
        return str(self.arguments.get("tenant") or DEFAULT_TENANT)


def error_reply(error: GpuyardError) -> tuple[Body, dict[str, str]]:
    """The body and headers of a refused request; nothing of our own insides crosses the wire."""
    code = error.code if isinstance(error, RequestError | Unavailable) else "invalid"
    body: ErrorReply = {
        "v": 1,
        "error": {
            "code": code,
            "message": str(error),
            "field": error.field if isinstance(error, RequestError) else None,
            "hint": error.hint if isinstance(error, RequestError) else None,
        },
    }
    if isinstance(error, InvalidJob):
        body["error"]["errors"] = [fault.as_dict() for fault in error.faults]
    return dict(body), {"Nats-Service-Error-Code": code, "Nats-Service-Error": str(error)[:200]}
