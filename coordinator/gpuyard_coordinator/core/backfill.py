"""When a job that cannot start can, at the latest: the ends that are expected on each node.

A job that runs ends at the latest with its time limit and its grace, one that still pulls has its
pull before it, one that was asked to stop has its grace left. After the last end that is needed
comes the hand-over. Where jobs without time limits are in the way nobody can tell.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Final

from gpuyard_coordinator.core.clearing import Holder, Planned, Site, least, needed
from gpuyard_coordinator.core.moments import seconds_until
from gpuyard_coordinator.core.reservations import HANDOVER_S, PULL_S
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Now

_MOST_TRIES: Final = 32
"""Nodes whose books are tried for one job, those first where counting promises most."""


@dataclass(frozen=True, slots=True)
class Prospect:
    node: str
    start: float
    """Monotonic, at the latest; infinite where nobody knows."""


def expected_end(job: Holder, now: Now) -> float:
    """When what a job holds is free for the next one, monotonic; infinite where nobody knows."""
    busy_s = job.shape.busy_s
    if isinstance(job, Planned):
        return inf if busy_s is None else now.mono + PULL_S + busy_s + HANDOVER_S
    attempt = job.last
    if attempt is None:
        return inf
    if attempt.stop is not None:
        left = attempt.stop["grace_s"] - _since(attempt.stop_requested_at, now)
    elif busy_s is None:
        return inf
    elif attempt.started_at is not None:
        left = busy_s - _since(attempt.started_at, now)
    else:
        left = PULL_S + busy_s
    return now.mono + max(left, 0.0) + HANDOVER_S


def _since(at: str | None, now: Now) -> float:
    return 0.0 if at is None else seconds_until(at, now.at)


def earliest(shape: Shape, sites: Iterable[Site], now: Now) -> Prospect | None:
    """Where a job can start first, and when; of nodes where nobody knows, the one that lacks the
    fewest ends. None where no end helps."""
    best: Prospect | None = None
    for bound in _bounds(shape, sites, now)[:_MOST_TRIES]:
        if best is not None and bound.at >= best.start:
            break
        prospect = _prospect(bound, shape)
        if prospect is not None and (best is None or prospect.start < best.start):
            best = prospect
    return best


def prospects(shape: Shape, sites: Iterable[Site], now: Now) -> list[Prospect]:
    """When each node can take one member of a gang, of as many nodes as it may need and some more,
    those first where counting promises most."""
    most = shape.nodes + _MOST_TRIES
    tried = (_prospect(bound, shape) for bound in _bounds(shape, sites, now)[:most])
    return [prospect for prospect in tried if prospect is not None]


def _bounds(shape: Shape, sites: Iterable[Site], now: Now) -> "list[_Bound]":
    bounds = [bound for site in sites if (bound := _bound(site, shape, now)) is not None]
    return sorted(bounds, key=lambda bound: (bound.at, bound.count, bound.site.node.name))


def _prospect(bound: "_Bound", shape: Shape) -> Prospect | None:
    """None where it has room, so that something other than room is in the way, or gets none."""
    count = needed(bound.site, shape, bound.jobs)
    return Prospect(bound.site.node.name, bound.ends[count - 1]) if count else None


@dataclass(frozen=True, slots=True)
class _Bound:
    """No start on this node before `at`."""

    at: float
    count: int
    site: Site
    jobs: list[Holder]
    ends: list[float]
    """Of the jobs, ascending."""


def _bound(site: Site, shape: Shape, now: Now) -> _Bound | None:
    held = sorted(site.node.attempts.items())
    holders: list[Holder] = [*(job for _, (job, _) in held), *site.planned]
    by_end = sorted(((expected_end(each, now), each) for each in holders), key=itemgetter(0))
    ends, jobs = [end for end, _ in by_end], [each for _, each in by_end]
    count = least(site, shape, jobs)
    if count is None:
        return None
    return _Bound(ends[count - 1] if count else now.mono, count, site, jobs, ends)
