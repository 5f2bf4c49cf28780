"""Which jobs are stopped for one of higher rank that cannot start, so that the least harm is done.

Stopped are preemptible jobs of lower rank alone, of one node: those of the lowest rank first, of
these the youngest, as few as will do, and none that has not had its node for `min_runtime_s`. What
is stopping there already costs nothing. A job stopped may not stop another of its own rank, so that
whatever follows from one preemption comes to an end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.model.grace import stop_grace_s
from gpuyard_coordinator.core.backfill import expected_end
from gpuyard_coordinator.core.clearing import Site, least, needed, suffices
from gpuyard_coordinator.core.fairshare import rank_of
from gpuyard_coordinator.core.moments import seconds_until
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.reservations import HANDOVER_S
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Now


@dataclass(frozen=True, slots=True)
class Claim:
    node: str
    victims: tuple[Job, ...]
    """Empty where what stops already makes enough room."""
    start: float
    """When their room is free at the latest, monotonic."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A node with the jobs that may be stopped there, those whose end does the least harm first."""

    site: Site
    stopping: Sequence[Job]
    eligible: Sequence[Job]
    harm: tuple[Rank, int]
    """At least: the highest rank among victims, and their number."""


def choice(site: Site, shape: Shape, rank: Rank, now: Now) -> Choice | None:
    """What might be done on a node for a job of this shape and rank; None where nothing helps."""
    stopping = site.stopping
    held = [job for job, _ in site.node.attempts.values()]
    eligible = [job for job in held if _may_stop(site, job, rank, now)]
    if not (stopping or eligible):
        return None
    eligible.sort(key=_age)
    eligible.sort(key=lambda job: rank_of(site.cluster, job))
    count = least(site, shape, [*stopping, *eligible])
    if count is None:
        return None
    victims = max(count - len(stopping), 0)
    worst = rank_of(site.cluster, eligible[victims - 1]) if victims else Rank(-1, -1)
    return Choice(site, stopping, eligible, (worst, victims))


def _may_stop(site: Site, job: Job, rank: Rank, now: Now) -> bool:
    attempt, cluster = job.last, site.cluster
    if attempt is None or attempt.stop is not None or job.key in site.doomed:
        return False
    if not (job.is_preemptible and rank_of(cluster, job) < rank):
        return False
    had_s = seconds_until(attempt.assigned_at, now.at)
    return had_s >= cluster.settings.min_runtime_s


def _age(job: Job) -> tuple[float, int]:
    """Smaller for what was assigned later."""
    assigned = datetime.fromisoformat(job.last.assigned_at).timestamp() if job.last else 0.0
    return (-assigned, -job.submit_seq)


def claim(choice: Choice, shape: Shape, now: Now) -> Claim | None:
    """The fewest of a choice's victims after whose ends the shape has room; None where not even all
    would do, or where it is not room that is lacking."""
    site = choice.site
    jobs = [*choice.stopping, *choice.eligible]
    count = needed(site, shape, jobs)
    if not count:
        return None
    ended = jobs[:count]
    for victim in reversed(ended[len(choice.stopping) :]):
        fewer = [job for job in ended if job is not victim]
        ended = fewer if suffices(site, shape, fewer) else ended
    victims = tuple(ended[min(len(choice.stopping), count) :])
    ends = [expected_end(job, now) for job in choice.stopping if job.last and job.last.stop]
    told = [*victims, *(job for job in choice.stopping if job.last and not job.last.stop)]
    ends += [now.mono + stop_grace_s(victim.spec) + HANDOVER_S for victim in told]
    return Claim(site.node.name, victims, max(ends))
