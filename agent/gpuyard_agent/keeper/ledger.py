"""Fences and what is due of them: no I/O, no clock. Times are seconds on the boot clock."""

AGENT_FIRST_S = 1.0
"""The agent, where it lives, sends the SIGTERM; the keeper's comes this much later, so that a
command need not bear two."""


class Fence:
    """One attempt's fence."""

    __slots__ = ("deadline", "fence_s", "grace_s", "killed", "reach", "stopping", "termed")

    def __init__(self, deadline: float, fence_s: float, grace_s: float) -> None:
        self.deadline = deadline
        """SIGKILL is due, and the attempt over."""
        self.fence_s = fence_s
        self.grace_s = grace_s
        self.reach: tuple[str, str] | None = None
        """Where the attempt's processes are found; None before anything was made."""
        self.stopping = False
        """The agent has sent the SIGTERM itself."""
        self.termed: tuple[float, float] | None = None
        """When the keeper sent SIGTERM: on the boot clock, and on the wall's."""
        self.killed: tuple[float, float] | None = None
        """When the keeper sent the first SIGKILL."""

    @property
    def is_sealed(self) -> bool:
        """True once the keeper has begun to end it: no later word prolongs it."""
        return self.termed is not None or self.killed is not None

    def arm(self, told: "Fence") -> None:
        """Takes the agent's word in: a deadline never goes back, a place is never unlearnt."""
        self.reach = told.reach or self.reach
        self.stopping = self.stopping or told.stopping
        if not self.is_sealed:
            self.deadline = max(self.deadline, told.deadline)
            self.fence_s, self.grace_s = told.fence_s, told.grace_s

    def due(self, now: float) -> str | None:
        """The signal that is to be sent now."""
        if now >= self.deadline:
            return "SIGKILL"
        return "SIGTERM" if self.termed is None and now >= self._term_at() else None

    def next_at(self, now: float) -> float:
        """When `due` may say something else than now."""
        term_at = self._term_at()
        return term_at if self.termed is None and now < term_at else self.deadline

    def _term_at(self) -> float:
        if self.stopping:
            return self.deadline
        return self.deadline - self.grace_s + min(AGENT_FIRST_S, self.grace_s / 4)

    def as_record(self) -> dict[str, object]:
        """What `parse` reads."""
        return {
            "deadline": self.deadline,
            "fence_s": self.fence_s,
            "grace_s": self.grace_s,
            "reach": self.reach,
            "stopping": self.stopping,
            "termed": self.termed,
            "killed": self.killed,
        }


def parse(record: object) -> Fence:
    """A fence from its record; raises ValueError for what is none."""
    if not isinstance(record, dict):
        raise ValueError(f"not a fence: {record!r:.80}")
    fence = Fence(*(_number(record.get(name)) for name in ("deadline", "fence_s", "grace_s")))
    reach = record.get("reach")
    if reach is not None:
        fence.reach = _reach(reach)
    fence.stopping = record.get("stopping") is True
    fence.termed, fence.killed = _moment(record.get("termed")), _moment(record.get("killed"))
    return fence


def _number(value: object) -> float:
    # Not a number and infinity would never be over.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"not a number of seconds: {value!r:.80}")
    return float(value)


def _reach(value: object) -> tuple[str, str]:
    if isinstance(value, list | tuple) and len(value) == 2:
        kind, name = value
        # A short or empty name would be found in processes of others.
        if kind == "container" and isinstance(name, str) and len(name) == 64 and name.isalnum():
            return kind, name
        if kind == "folder" and isinstance(name, str) and name.startswith("/"):
            return kind, name
    raise ValueError(f"not a place to find processes: {value!r:.80}")


def _moment(value: object) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, list | tuple) and len(value) == 2:
        return _number(value[0]), _number(value[1])
    raise ValueError(f"not a moment: {value!r:.80}")
