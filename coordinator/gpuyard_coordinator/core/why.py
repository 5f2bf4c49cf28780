"""Why a job waits, in full: per node, the limit that binds, smallest changes.

The changes themselves are found in `changes`.
"""

from collections import Counter

from gpuyard.model.grace import stop_grace_s
from gpuyard.model.states import JobState
from gpuyard.model.verdicts import Verdict, VerdictCode
from gpuyard.views.why import FullVerdict, LimitView, NodeFit, ReasonView, WhyView
from gpuyard_coordinator.core import arrays, quota, selection
from gpuyard_coordinator.core.changes import changes
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import UNITS, explain_fully
from gpuyard_coordinator.core.fairshare import rank_of
from gpuyard_coordinator.core.filters import NodeVerdict
from gpuyard_coordinator.core.forecast import forecast
from gpuyard_coordinator.core.holdups import holdup
from gpuyard_coordinator.core.overtaking import Asked
from gpuyard_coordinator.core.reservations import Reservation
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import Job, Node, Now


def why(cluster: Cluster, job: Job, now: Now) -> WhyView:
    """Table D of a job; one that does not wait has neither nodes nor changes, and a verdict only
    where it holds on a node that is lost."""
    if job.state is not JobState.QUEUED or arrays.is_all_begun(cluster, job):
        view = not_waiting(job.id, str(job.state))
    else:
        with cluster.reservations.set_aside(job.key):
            asked = Asked(job.shape, rank_of(cluster, job), stop_grace_s(job.spec))
            own = cluster.reservations.by_job.get(job.key)
            view = why_asked(cluster, asked, now, since=job.queued_at, held=own)
    view["job"], view["state"] = job.id, str(arrays.shown_state(cluster, job))
    if (held := holdup(cluster, job)) is not None:
        view["verdict"], view["changes"] = full_verdict(held, view["verdict"]), []
        view["forecast"] = None
    return view


def full_verdict(held: Verdict, other: FullVerdict | None) -> FullVerdict:
    """What holds a job up comes before what the nodes say."""
    counts = other["counts"] if other is not None else {}
    impossible = other["impossible_now"] if other is not None else False
    return {**held, "counts": counts, "limit": None, "impossible_now": impossible}


def not_waiting(id: str, state: str) -> WhyView:
    return {
        "v": 1,
        "job": id,
        "state": state,
        "verdict": None,
        "nodes": [],
        "forecast": None,
        "changes": [],
    }


def why_asked(
    cluster: Cluster,
    asked: Asked,
    now: Now,
    *,
    since: str | None = None,
    held: Reservation | None = None,
) -> WhyView:
    """Table D of a request that is no job yet, or of one with its reservation, which must be set
    aside."""
    shape = asked.shape
    found = explain_fully(cluster, shape)
    changed = changes(cluster, asked, found, now)
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
        "nodes": [
            _fit(cluster.nodes[name], shape, verdict) for name, verdict in found.nodes.items()
        ],
        "forecast": forecast(cluster, shape, found, changed, held, now),
        "changes": changed,
    }


def _limit(hit: quota.LimitHit) -> LimitView:
    return {
        "scope": f"tenant {hit.tenant}",
        "name": hit.name,
        "used": None if hit.is_per_job else hit.used,
        "asked": hit.asked,
        "max": hit.max,
    }


def _fit(node: Node, shape: Shape, verdict: NodeVerdict | None) -> NodeFit:
    reasons = [] if verdict is None else [_reason(node, shape, verdict)]
    return {"name": node.name, "fits": verdict is None, "reasons": reasons}


def _reason(node: Node, shape: Shape, verdict: NodeVerdict) -> ReasonView:
    code = verdict.code
    if code is VerdictCode.WHERE_MISMATCH:
        line, has = selection.mismatch(node, shape)
        return {"code": str(code), "asked": line, "have": has, "unit": None}
    if verdict.note is not None:
        told = f"{verdict.note} since {verdict.since}" if verdict.since else verdict.note
        return {"code": str(code), "asked": None, "have": told, "unit": None}
    asked, have = _plain(verdict.asked), _plain(verdict.have)
    unit = None if asked is None and have is None else UNITS.get(code, "GPUs")
    if shape.mig is not None and unit == "GPUs":
        unit = "instances"
    return {"code": str(code), "asked": asked, "have": have, "unit": unit}


def _plain(value: float | None) -> int | float | None:
    """GPUs and MiB as whole numbers; only CPUs and parts of a GPU may have a fraction."""
    return int(value) if value is not None and value == int(value) else value
