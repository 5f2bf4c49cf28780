"""Jobs as readers are shown them, one by one and in lists that are filtered."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.errors import RequestError
from gpuyard.messages import JobDocument
from gpuyard.model.states import JobState, NodeState
from gpuyard.views.jobs import JobView, job_view
from gpuyard_coordinator.core import arrays, documents
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.explain import PAGE_LOOKS, RecentWords, Words
from gpuyard_coordinator.core.holdups import holdup
from gpuyard_coordinator.core.lineup import Lineup
from gpuyard_coordinator.core.roster import Roster
from gpuyard_coordinator.core.state import Job

Filter = Callable[[Mapping[str, Any]], bool]


def every(view: Mapping[str, Any]) -> bool:
    """The filter that keeps all."""
    return True


def live_job(
    cluster: Cluster, job: Job, told: tuple[str, str] | None, position: int | None
) -> JobView:
    """A job that is not over, at its position in line; `told` are the code and the message of its
    verdict, None where it has none or nobody knows; what holds it up comes before."""
    found = (cluster.nodes.get(part.node) for part in (job.last.parts if job.last else ()))
    nodes = [node for node in found if node is not None]
    node = next((n for n in nodes if n.state is NodeState.LOST), nodes[0] if nodes else None)
    index = {uuid: gpu.facts["index"] for node in nodes for uuid, gpu in node.gpus.items()}
    reserved = cluster.reservations.by_job.get(job.key)
    verdict = holdup(cluster, job)
    if verdict is None and told is not None and not arrays.is_all_begun(cluster, job):
        verdict = {"code": told[0], "message": told[1], "since": job.queued_at}
    return job_view(
        documents.job_document(job),
        node_state=str(node.state) if node else None,
        runtime=node.facts["runtime"] if node else None,
        gpu_index=index,
        queue_position=position,
        expected_start_at=None if reserved is None else reserved.start_at,
        verdict=verdict,
        state=str(arrays.shown_state(cluster, job)),
        tasks=None if job.array is None else arrays.states(cluster, job),
    )


def ended_job(document: JobDocument) -> JobView:
    return job_view(document)


@dataclass(slots=True)
class JobList:
    """Unfinished jobs for lists; a verdict in one may be as old as `explain.KEPT_S`, a position as
    `Lineup` says."""

    cluster: Cluster
    _roster: Roster = field(init=False)
    _recent: RecentWords = field(default_factory=RecentWords)
    _lineup: Lineup = field(init=False)

    def __post_init__(self) -> None:
        self._roster = Roster(self.cluster)
        self._lineup = Lineup(self.cluster)

    def views(
        self, tenant: str | None, after: int, keep: Filter, now: float
    ) -> Iterator[tuple[int, JobView | None]]:
        """Jobs accepted after `after` (a submit_seq), oldest first, each with its own and with
        None for a view where `keep` has none of it. `now` is monotonic."""
        words = Words(self.cluster, PAGE_LOOKS)
        for job in self._roster.after(after, tenant):
            is_kept = keep is every or keep(_listed(self.cluster, job))
            yield job.submit_seq, self._view(job, words, now) if is_kept else None

    def view(self, job: Job, now: float) -> JobView:
        return self._view(job, Words(self.cluster), now)

    def explained(self, job: Job, now: float) -> JobView:
        """The same with its verdict as of now."""
        is_queued = job.state is JobState.QUEUED
        return self._at(job, Words(self.cluster).of(job.shape) if is_queued else None, now)

    def _view(self, job: Job, words: Words, now: float) -> JobView:
        is_queued = job.state is JobState.QUEUED
        return self._at(job, self._recent.of(job.shape, words, now) if is_queued else None, now)

    def _at(self, job: Job, told: tuple[str, str] | None, now: float) -> JobView:
        is_queued = job.state is JobState.QUEUED
        position = self._lineup.position(job, now) if is_queued else None
        return live_job(self.cluster, job, told, position)


def _listed(cluster: Cluster, job: Job) -> dict[str, Any]:
    """The keys of a job's view that a list may be filtered by."""
    last = job.last
    return {
        "state": arrays.shown_state(cluster, job),
        "user": job.user,
        "node": last.node if last is not None and job.state is not JobState.QUEUED else None,
        "nodes": [part.node for part in last.members] if last is not None else [],
        "name": job.name,
        "submitted_at": job.submitted_at,
    }


def matcher(arguments: Mapping[str, Any]) -> Filter:
    """A filter over views from the arguments of `jobs`: state, user, node, name, since."""
    asked = arguments.get("state") or []
    asked = [asked] if isinstance(asked, str) else asked
    if not isinstance(asked, list) or not all(isinstance(state, str) for state in asked):
        raise RequestError("state must be a list of states", field="state")
    states = set(asked)
    if unknown := states - {str(state) for state in JobState}:
        raise RequestError(f"no such state: {', '.join(sorted(unknown))}", field="state")
    exact = {key: arguments[key] for key in ("user", "name") if arguments.get(key)}
    node = arguments.get("node")
    since = arguments.get("since")
    if since is not None and not isinstance(since, str):
        raise RequestError("since must be a time in RFC 3339", field="since")
    if not (states or exact or node or since):
        return every

    def keep(view: Mapping[str, Any]) -> bool:
        if states and view["state"] not in states:
            return False
        if since and view["submitted_at"] < since:
            return False
        if node and (not view["node"] or node not in (view["node"], *(view.get("nodes") or ()))):
            return False
        return all(view[key] == value for key, value in exact.items())

    return keep
