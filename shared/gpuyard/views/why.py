"""What readers are shown of why a job waits."""

from typing import Any, Literal, NotRequired

from gpuyard._typing import TypedDict

Unit = Literal["GPUs", "instances", "MiB", "CPUs"]
Change = dict[str, Any]
"""What would start a job: its `kind`, a `text` for people, and what else that kind has."""


class LimitView(TypedDict):
    """A limit that binds, in its own unit."""

    scope: str
    name: str
    used: float | None
    """By the tenant's jobs; None where the limit is of each job by itself."""
    asked: float
    max: float


class FullVerdict(TypedDict):
    code: str
    message: str
    since: str | None
    counts: dict[str, int]
    """Nodes by the code that binds there."""
    limit: LimitView | None
    impossible_now: bool
    """True where no known node could ever hold the job."""


class ReasonView(TypedDict):
    """Why a node does not take a job; with `where_mismatch` the line of the request that fails."""

    code: str
    asked: int | float | str | None
    """A number in `unit`, or a line such as `gpu-memory>=24`."""
    have: int | float | str | None
    """What the node has of it now; the values of its label where a line fails, None for none. A
    text where nothing was asked is to be told instead of the code."""
    unit: Unit | None
    """None where `asked` and `have` are no numbers."""


class NodeFit(TypedDict):
    name: str
    fits: bool
    reasons: list[ReasonView]


class Forecast(TypedDict):
    """When a job that waits starts, as time limits stand."""

    expected_start_at: str | None
    """RFC 3339: by then there is room for it; sooner where jobs end before their limits, later
    where a job before it takes the place. None where nobody can tell."""
    node: str | None
    text: str
    """The same in words, or why nobody can tell."""


class WhyView(TypedDict):
    """`gpuyard why --json`; `job` and `state` are None for a dry run."""

    v: int
    job: str | None
    state: str | None
    verdict: FullVerdict | None
    nodes: list[NodeFit]
    forecast: NotRequired[Forecast | None]
    """None where it does not wait, or waits for something else than room and limits."""
    changes: list[Change]
