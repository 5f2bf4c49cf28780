"""Changes by which a waiting job comes before others, or passes them by; see `changes`.

A node may be kept for a job that comes first, and preemptible jobs may run where this one would. A
higher priority overtakes both; a time limit lets a job through that is over before the node is
needed; else it waits for the one for whom the node is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from gpuyard.model.fields import MOST_PRIORITY
from gpuyard.model.quantities import format_days
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.why import Change
from gpuyard_coordinator.core import ends, explain, preemption
from gpuyard_coordinator.core.clearing import Site
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.fairshare import rank_of
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.ordering import Rank
from gpuyard_coordinator.core.reservations import HANDOVER_S, PULL_S, Reservation, competes
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Now

_LEAVE_S: Final = 30.0
"""Time to ask anew in, while the limit that would do grows shorter."""
_LIMIT_UNIT_S: Final = 60
_RESERVED: Final = VerdictCode.RESERVED_FOR_OTHER


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with what decides when its turn comes."""

    shape: Shape
    rank: Rank
    grace_s: float
    """Between SIGTERM and SIGKILL."""


def overtake(
    cluster: Cluster, asked: Asked, refusing: dict[str, NodeVerdict], now: Now
) -> Iterator[Change]:
    """A shorter time limit, and the least higher priority, that let it start."""
    kept = [name for name, verdict in refusing.items() if verdict.code is _RESERVED]
    limits = [limit for name in kept if (limit := _limit_s(cluster, asked, name, now)) is not None]
    if limits:
        yield _shorter(asked, max(limits))
    past = [change for name in kept if (change := _past_holders(cluster, asked, name)) is not None]
    past += [c for c in _preempting(cluster, asked, refusing, now) if c["to"] <= MOST_PRIORITY]
    if past:
        yield min(past, key=lambda change: int(change["to"]))


def wait_for_holder(
    cluster: Cluster, asked: Asked, refusing: dict[str, NodeVerdict], now: Now
) -> Iterator[Change]:
    """The one job for which a node is kept that would take this one, who starts first."""
    found: list[tuple[float, str, Reservation]] = []
    for name, verdict in refusing.items():
        holders = _holders(cluster, asked.shape, name) if verdict.code is _RESERVED else []
        if len(holders) == 1:
            (held,) = holders
            found.append((held.start if held.start is not None else inf, name, held))
    for start, name, held in sorted(found, key=lambda each: each[:2]):
        with cluster.reservations.set_aside(held.job):
            is_enough = explain.fits(cluster, cluster.nodes[name], asked.shape)
        job = cluster.jobs.get(held.job)
        if is_enough and job is not None:
            busy_s = held.shape.busy_s
            end = inf if busy_s is None else start + PULL_S + busy_s + HANDOVER_S
            yield ends.wait_for([job], end, now, why=f"for which node {name} is kept")
            return


def _holders(cluster: Cluster, shape: Shape, node: str) -> list[Reservation]:
    """For whom a node is kept off a shape."""
    held = cluster.reservations.by_node.get(node, ())
    return [each for each in held if each.shape != shape and competes(shape, each.shape)]


def _limit_s(cluster: Cluster, asked: Asked, node: str, now: Now) -> int | None:
    """The longest time limit with which it is over before a node is needed, in whole minutes."""
    starts = [held.start for held in _holders(cluster, asked.shape, node)]
    if not starts or None in starts:
        return None
    first = min(start for start in starts if start is not None)
    left_s = first - now.mono - PULL_S - HANDOVER_S - asked.grace_s - _LEAVE_S
    minutes = int(left_s // _LIMIT_UNIT_S)
    return minutes * _LIMIT_UNIT_S if minutes > 0 else None


def _shorter(asked: Asked, limit_s: int) -> Change:
    busy_s = asked.shape.busy_s
    text = f"ask for a time limit of {format_days(limit_s)} or less"
    return {
        "kind": "ask_less",
        "field": "max_runtime",
        "asked": None if busy_s is None else busy_s - asked.grace_s,
        "to": limit_s,
        "text": f"{text}: it is over before the job for which a node is kept starts",
    }


def _past_holders(cluster: Cluster, asked: Asked, node: str) -> Change | None:
    """The priority with which it comes before all for whom a node is kept."""
    holders = _holders(cluster, asked.shape, node)
    highest = max((held.rank for held in holders), default=None)
    if highest is None or highest.tenant != asked.rank.tenant or highest.job >= MOST_PRIORITY:
        return None
    told = ", ".join(held.job[1] for held in holders)
    return _priority(asked, highest.job + 1, f"it then comes before {told} on node {node}")


def _preempting(
    cluster: Cluster, asked: Asked, refusing: dict[str, NodeVerdict], now: Now
) -> Iterator[Change]:
    """The least priority with which preemptible jobs of a node are stopped for it."""
    rank = Rank(asked.rank.tenant, MOST_PRIORITY)
    for verdict in ends.nearest(refusing):
        node = cluster.nodes[verdict.node]
        if not any(job.is_preemptible for job, _ in node.attempts.values()):
            continue
        choice = preemption.choice(Site(cluster, node), asked.shape, rank, now)
        claim = choice and preemption.claim(choice, asked.shape, now)
        if claim and claim.victims:
            kept = cluster.reservations.by_node.get(node.name, ())
            ranks = [rank_of(cluster, victim) for victim in claim.victims]
            highest = max(*ranks, *(held.rank for held in kept), asked.rank)
            if highest.tenant == asked.rank.tenant:
                told = ", ".join(victim.id for victim in claim.victims)
                why = f"{told} {'is' if len(ranks) == 1 else 'are'} stopped for it on {node.name}"
                yield _priority(asked, highest.job + 1, why)


def _priority(asked: Asked, to: int, why: str) -> Change:
    return {
        "kind": "ask_more",
        "field": "priority",
        "asked": asked.rank.job,
        "to": to,
        "text": f"ask for priority {to} or more: {why}",
    }
