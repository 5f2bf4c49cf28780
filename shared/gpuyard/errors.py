"""Every exception that gpuyard raises on purpose.

::

    GpuyardError
    ├── RequestError        the caller's fault; `code` is stable and crosses the wire
    │   ├── InvalidJob      code "invalid": carries every fault of the spec
    │   ├── UnknownThing    code "unknown_job", "unknown_node", "unknown_tenant"
    │   ├── NotAllowed      code "not_allowed"
    │   ├── Conflict        code "conflict"
    │   └── TooLarge        code "too_large"
    ├── Unavailable         try again later: code "no_leader" or "timeout"
    │   └── BusTooOld       the server lacks what the yard needs; trying again will not help
    ├── ProtocolError       someone broke the contract
    │   ├── LocalProtocolError   we did
    │   └── RemoteProtocolError  the other side did
    └── RuntimeFailure      Docker or NVML said no; `temporary` tells retry from give-up

Outcomes that a user must understand (a verdict, an end reason) are values, not exceptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class GpuyardError(Exception):
    """The root; its text is one line that a user may be shown."""


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One thing that is wrong with a submitted document."""

    field: str
    code: str
    message: str
    did_you_mean: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return {
            "field": self.field,
            "code": self.code,
            "message": self.message,
            "did_you_mean": self.did_you_mean,
        }

    def __str__(self) -> str:
        hint = f" (did you mean {self.did_you_mean}?)" if self.did_you_mean else ""
        return f"{self.field}: {self.message}{hint}" if self.field else f"{self.message}{hint}"


class RequestError(GpuyardError):
    """The caller's fault. `code` is one of the stable codes of the error reply."""

    code = "invalid"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.field = field
        self.hint = hint


class InvalidJob(RequestError):
    """The spec cannot be accepted; `faults` names every field that is wrong."""

    code = "invalid"

    def __init__(self, faults: Sequence[FieldFault], *, code: str | None = None) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "; ".join(str(fault) for fault in self.faults),
            code=code,
            field=self.faults[0].field if self.faults else None,
        )


class UnknownThing(RequestError):
    """No job, node or tenant of that name or prefix."""

    code = "unknown_job"


class NotAllowed(RequestError):
    """The caller may not do that."""

    code = "not_allowed"


class Conflict(RequestError):
    """The same id stands for something else already."""

    code = "conflict"


class TooLarge(RequestError):
    """A document is over its size limit; the text holds both numbers."""

    code = "too_large"


class Unavailable(GpuyardError):
    """The yard cannot answer now; the same call may go through later."""

    def __init__(self, message: str, *, code: str = "timeout") -> None:
        super().__init__(message)
        self.code = code


class BusTooOld(Unavailable):
    """The NATS server lacks message TTLs or atomic batches (it is older than 2.12)."""


class ProtocolError(GpuyardError):
    """Someone broke the contract; never the user's fault."""


class LocalProtocolError(ProtocolError):
    """This program broke it."""


class RemoteProtocolError(ProtocolError):
    """The other side broke it: a body that cannot be decoded, an unknown kind."""


class RuntimeFailure(GpuyardError):
    """Docker or NVML refused. `temporary` is True where the same call may succeed later."""

    def __init__(self, message: str, *, temporary: bool, reason: str = "runtime_error") -> None:
        super().__init__(message)
        self.temporary = temporary
        self.reason = reason


_BY_CODE: Mapping[str, type[RequestError]] = {
    "invalid": RequestError,
    "unknown_job": UnknownThing,
    "unknown_node": UnknownThing,
    "unknown_tenant": UnknownThing,
    "not_allowed": NotAllowed,
    "conflict": Conflict,
    "too_large": TooLarge,
}


def error_from_wire(body: Mapping[str, Any]) -> GpuyardError:
    """The exception that an error reply stands for; an unknown code becomes a `RequestError`."""
    code = str(body.get("code") or "invalid")
    message = str(body.get("message") or code)
    if code in ("no_leader", "timeout"):
        return Unavailable(message, code=code)
    faults = body.get("errors")
    if code == "invalid" and isinstance(faults, list) and faults:
        return InvalidJob([_fault_from_wire(fault) for fault in faults if isinstance(fault, dict)])
    kind = _BY_CODE.get(code, RequestError)
    return kind(message, code=code, field=body.get("field"), hint=body.get("hint"))


def _fault_from_wire(fault: Mapping[str, Any]) -> FieldFault:
    return FieldFault(
        field=str(fault.get("field") or ""),
        code=str(fault.get("code") or "invalid"),
        message=str(fault.get("message") or ""),
        did_you_mean=fault.get("did_you_mean"),
    )
