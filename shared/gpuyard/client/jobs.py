"""What the SDK hands out: a job as it was seen, and lines of its log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from gpuyard.errors import Unavailable
from gpuyard.model.reasons import exit_code_of
from gpuyard.model.states import FINAL_STATES


class StillUnfinished(Unavailable):
    """The caller's own time was over before the job was; the job goes on."""

    def __init__(self, message: str, *, job: "Job") -> None:
        super().__init__(message, code="timeout")
        self.job = job


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the yard last showed it; `view` has every key of `gpuyard jobs --json`.

    It does not follow the job: `wait` and `job` of a client return a newer one.
    """

    id: str
    tenant: str
    user: str
    state: str
    name: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    message: str | None = None
    image: str | None = None
    node: str | None = None
    attempt: int | None = None
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    view: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    warning: str | None = None
    """Set where the job is stored but no leader has answered yet, and where it is the first of a
    tenant that nothing limits, in a yard that limits others."""

    @classmethod
    def from_view(cls, view: Mapping[str, Any], *, warning: str | None = None) -> Self:
        return cls(
            id=str(view.get("id")),
            tenant=str(view.get("tenant")),
            user=str(view.get("user")),
            state=str(view.get("state")),
            name=view.get("name"),
            reason=view.get("reason"),
            exit_code=view.get("exit_code"),
            message=view.get("message"),
            image=view.get("image"),
            node=view.get("node"),
            attempt=view.get("attempt"),
            submitted_at=view.get("submitted_at"),
            started_at=view.get("started_at"),
            ended_at=view.get("ended_at"),
            view=view,
            warning=warning,
        )

    @property
    def is_over(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def is_succeeded(self) -> bool:
        return self.state == "succeeded"

    @property
    def exit_status(self) -> int | None:
        """What `gpuyard run` exits with for this job; None until it is over.

        The container's own code where it ended by itself, else what the end reason stands for.
        """
        if not self.is_over:
            return None
        return 0 if self.is_succeeded else exit_code_of(self.reason, self.exit_code)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's output, without its line end."""

    stream: Literal["stdout", "stderr"]
    text: str
    at: str
    """When the agent read it, RFC 3339 UTC."""
    attempt: int = 1
    lost_bytes: int = 0
    """Bytes that were cut right before this line, because of the job's log limit."""
    rank: int | None = None
    """Which of a gang's members wrote it; None for a job on one node."""
