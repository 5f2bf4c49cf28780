"""Why a job waits, in full (INTERFACES table D): per node, the limit that binds, smallest changes.

The changes themselves are found in `changes`.
"""

from collections import Counter
from typing import Any

from gpuyard.model.states import JobState
from gpuyard.views import LimitView, NodeFit, ReasonView, WhyView
from gpuyard_coordinator.core import quota
from gpuyard_coordinator.core.changes import MOST_CHANGES, changes
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import explain_fully
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.state import Job, Shape


def why(cluster: Cluster, job: Job) -> WhyView:
    """Table D of a job; one that does not wait has neither verdict, nodes nor changes."""
    if job.state is not JobState.QUEUED:
        return not_waiting(job.id, str(job.state))
    view = why_shape(cluster, job.shape, since=job.queued_at)
    view["job"], view["state"] = job.id, str(job.state)
    return view


def not_waiting(id: str, state: str) -> WhyView:
    return {"v": 1, "job": id, "state": state, "verdict": None, "nodes": [], "changes": []}


def why_shape(cluster: Cluster, shape: Shape, *, since: str | None) -> WhyView:
    """Table D of a request that is no job yet."""
    found = explain_fully(cluster, shape)
    counts = Counter(str(verdict.code) for verdict in found.nodes.values() if verdict is not None)
    return {
        "v": 1,
        "job": None,
        "state": None,
        "verdict": {
            "code": str(found.code),
            "message": found.message,
            "since": since,
            "counts": dict(counts),
            "limit": None if found.hit is None else _limit(found.hit),
            "impossible_now": found.is_impossible,
        },
        "nodes": [_fit(name, verdict) for name, verdict in found.nodes.items()],
        "changes": changes(cluster, shape, found)[:MOST_CHANGES],
    }


def _limit(hit: quota.LimitHit) -> LimitView:
    return {
        "scope": f"tenant {hit.tenant}",
        "name": hit.name,
        "used": hit.used,
        "asked": hit.asked,
        "max": hit.max,
    }


def _fit(name: str, verdict: NodeVerdict | None) -> NodeFit:
    reasons: list[ReasonView] = []
    if verdict is not None:
        asked, have = _plain(verdict.asked), _plain(verdict.have)
        reasons = [{"code": str(verdict.code), "asked": asked, "have": have}]
    return {"name": name, "fits": verdict is None, "reasons": reasons}


def _plain(value: float | None) -> Any:
    """GPUs and MiB as whole numbers; only CPUs and parts of a GPU may have a fraction."""
    return int(value) if value is not None and value == int(value) else value
