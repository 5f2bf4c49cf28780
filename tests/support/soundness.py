"""What must hold of the core's state after every step, whatever happened before."""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gpuyard import codec, subjects
from gpuyard.messages import MAX_WANTED_BYTES, JobDocument, NodeDocument
from gpuyard.model.ids import JobKey
from gpuyard.model.states import FINAL_STATES, HOLDING_STATES, JobState
from gpuyard_coordinator.core import documents, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Attempt, Job

_SUBJECT = re.compile(r"gpuyard\.events(\.[a-z0-9_-]+){3}\.[0-9]+")


def check(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        assert ledger.overcommitted(node) == []
        document = documents.wanted_document(cluster, node)
        data = codec.encode(document)
        assert codec.decode(data) == document
        assert len(data) <= MAX_WANTED_BYTES
    _check_queue(cluster)
    _check_holding(cluster)
    for job in cluster.jobs.values():
        _check_attempts(job)
        data = codec.encode(documents.job_document(job))
        read = documents.job_from_document(cast(JobDocument, codec.decode(data)))
        assert _comparable(read) == _comparable(job)


def check_recovered(before: Cluster, after: Cluster) -> None:
    """A leader that starts from stored documents holds what the last one did.

    What beats repeat anyway is not stored for itself: progress, usage, log chunks, container ids.
    """
    assert {key: _stored(job) for key, job in after.jobs.items()} == {
        key: _stored(job) for key, job in before.jobs.items()
    }
    for key, job in before.jobs.items():
        assert after.queue.position(after.jobs[key]) == before.queue.position(job)
    for name, node in before.nodes.items():
        assert _book(after, name) == _book(before, name)
        stored = codec.decode(codec.encode(documents.node_document(node)))
        again = documents.node_from_document(cast(NodeDocument, stored))
        assert again.facts == node.facts and again.scheduling == node.scheduling
        assert not after.nodes[name].is_proven


def assert_equal(one: Cluster, other: Cluster) -> None:
    """Equal in everything that `apply` changes; what planners take out of it aside."""
    assert one.jobs == other.jobs
    assert one.nodes == other.nodes
    assert one.recently_done == other.recently_done
    assert one.beat_order == other.beat_order
    assert one.queue.by_shape == other.queue.by_shape
    assert one.next_submit_seq == other.next_submit_seq


@dataclass(slots=True)
class Story:
    """Everything that was told of each job, checked as it comes."""

    events: dict[JobKey, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rejected: list[dict[str, Any]] = field(default_factory=list)
    _subjects: set[str] = field(default_factory=set)

    def take(self, effects: Effects) -> None:
        for message in effects.out:
            subject, body = message["subject"], message["body"]
            assert _SUBJECT.fullmatch(subject), subject
            assert subject not in self._subjects, f"{subject} is told twice"
            self._subjects.add(subject)
            assert codec.decode(codec.encode(body)) == body
            parts = body["tenant"], body["job"], body["kind"], body["seq"]
            assert subject == subjects.event(*parts)
            if body["kind"] == "rejected":
                self.rejected.append(body)
            else:
                self._take_event(body)

    def _take_event(self, body: dict[str, Any]) -> None:
        told = self.events[body["tenant"], body["job"]]
        assert body["seq"] == len(told) + 1, "events of a job are numbered without a gap"
        assert not told or told[-1]["state"] not in FINAL_STATES, "nothing follows an end"
        told.append(body)


def _check_queue(cluster: Cluster) -> None:
    queue = cluster.queue
    waiting = {key for key, job in cluster.jobs.items() if job.state is JobState.QUEUED}
    listed = [order for orders in queue.by_shape.values() for order in orders]
    assert {(tenant, id) for _, _, tenant, id in listed} == waiting
    assert len(listed) == len(queue) == len(waiting)
    in_order = sorted(listed)
    for place, (_, _, tenant, id) in enumerate(in_order, 1):
        assert queue.position(cluster.jobs[tenant, id]) == place
    for shape, orders in queue.by_shape.items():
        assert orders == sorted(orders) and orders
        assert all(cluster.jobs[o[2], o[3]].shape == shape for o in orders)


def _check_holding(cluster: Cluster) -> None:
    """Jobs that hold, attempts on nodes and grants on GPUs are three views of one thing."""
    holding = set()
    for key, job in cluster.jobs.items():
        assert not job.state.is_final
        if job.state in HOLDING_STATES:
            assert job.last is not None
            holding.add((*key, job.last.number))
    on_nodes = [ref for node in cluster.nodes.values() for ref in node.attempts]
    assert sorted(on_nodes) == sorted(holding)
    for node in cluster.nodes.values():
        for uuid, gpu in node.gpus.items():
            granted = {
                ref
                for ref, (_, attempt) in node.attempts.items()
                if any(held["uuid"] == uuid for held in attempt.gpus)
            }
            assert set(gpu.grants) == granted
            assert len(granted) <= 1, "a whole GPU is granted to one attempt at a time"


def _check_attempts(job: Job) -> None:
    """Attempts are numbered from 1 and each but the last is over."""
    assert [attempt.number for attempt in job.attempts] == list(range(1, len(job.attempts) + 1))
    over = job.attempts[:-1] if job.state in HOLDING_STATES else job.attempts
    assert all(attempt.reason and attempt.ended_at for attempt in over)
    assert all(attempt.next_allowed_because for attempt in over)
    if job.state in HOLDING_STATES:
        assert job.attempts[-1].reason is None


def _comparable(job: Job) -> Job:
    """Without what is a leader's own: when a document first named an attempt, the last pull, and
    the memory that its grant stands for."""
    own = Attempt(0, "", "", "", 0, [], "")
    return replace(
        job,
        attempts=[
            replace(
                attempt,
                introduced=own.introduced,
                pull_reported=own.pull_reported,
                gpu_memory_mib=own.gpu_memory_mib,
            )
            for attempt in job.attempts
        ],
    )


def _stored(job: Job) -> Job:
    job = _comparable(job)
    attempts = [
        replace(attempt, state=None, usage=None, log_chunks=0, container_id=None)
        for attempt in job.attempts
    ]
    return replace(job, attempts=attempts)


def _book(cluster: Cluster, name: str) -> object:
    node = cluster.nodes[name]
    grants = {uuid: (gpu.free_milli, gpu.grants) for uuid, gpu in node.gpus.items()}
    used = node.cpu_milli_used, node.memory_mib_used, node.document_kib_used
    return node.machine_id, node.boot_id, grants, used, set(node.attempts)
