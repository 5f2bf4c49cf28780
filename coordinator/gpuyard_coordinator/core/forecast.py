"""When a waiting job, or one that is only tried, starts; or why nobody can tell.

Ends are expected as for reservations, so a time told holds as long as jobs keep their limits;
sooner where they end before. Other waiting jobs count where a node is reserved for them.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from gpuyard.model.quantities import first_named
from gpuyard.model.verdicts import VerdictCode
from gpuyard.views.why import Change, Forecast
from gpuyard_coordinator.core import backfill, ends
from gpuyard_coordinator.core.clearing import Site
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import Explanation
from gpuyard_coordinator.core.moments import later
from gpuyard_coordinator.core.reservations import Reservation
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Now

MOST_NODES: Final = 1000
"""Nodes whose jobs' ends are looked at, those first that lack least: some 25 us each."""
_MOST_NAMED: Final = 3


def forecast(
    cluster: Cluster,
    shape: Shape,
    found: Explanation,
    changes: Sequence[Change],
    held: Reservation | None,
    now: Now,
) -> Forecast:
    """Of a request that `found` explains; `changes` are what was found to change, `held` is its
    own reservation, which is set aside for the call."""
    if held is not None:
        return _told(held.start_at, held.node, held.text)
    if found.code is VerdictCode.WAITING_TURN:
        return _told(now.at, None, "there is room for it now: it starts when its turn comes")
    if found.is_impossible:
        why = "no known node could ever hold it" if found.hit is None else found.hit.text
        return _told(None, None, f"it cannot start as it is: {why}")
    waits = [change for change in changes if change["kind"] == "wait_for"]
    told = _by_ends(cluster, shape, found, now) if found.hit is None else None
    if told is not None and told["expected_start_at"] is not None:
        return told
    for change in waits:
        if (at := change["expected_at"]) is not None:
            return _told(at, None, f"there is room for it by {at}, unless a job before it takes it")
    if told is not None:
        return told
    if waits:
        ids = ", ".join(job["id"] for job in waits[0]["jobs"])
        return _unknown(f"it waits for jobs without a time limit: {ids}")
    return _unknown("no end of a job would let it start")


def _by_ends(cluster: Cluster, shape: Shape, found: Explanation, now: Now) -> Forecast | None:
    """None where no ends of jobs make room on one node."""
    refusing = {name: verdict for name, verdict in found.nodes.items() if verdict is not None}
    by_node = cluster.reservations.by_node
    sites = (
        Site(cluster, cluster.nodes[v.node], (), [r.shape for r in by_node.get(v.node, ())])
        for v in ends.nearest(refusing, MOST_NODES)
    )
    prospect = backfill.earliest(shape, sites, now)
    if prospect is None:
        return None
    node = prospect.node
    if prospect.start == inf:
        holders = [job for job, _ in cluster.nodes[node].attempts.values()]
        endless = sorted(job.id for job in holders if backfill.expected_end(job, now) == inf)
        named = first_named(endless, _MOST_NAMED)
        return _unknown(f"jobs without a time limit are in its way on node {node}: {named}")
    at = later(now.at, prospect.start - now.mono)
    text = f"there is room for it on node {node} by {at}, unless a job before it takes it"
    return _told(at, node, text)


def _told(at: str | None, node: str | None, text: str) -> Forecast:
    return {"expected_start_at": at, "node": node, "text": text}


def _unknown(why: str) -> Forecast:
    return _told(None, None, f"when it starts nobody can tell: {why}")
