"""The yard from what is stored: whole at first, then document by document, in order of commits.

A standby takes what the leader commits as it comes; once it leads, `assume` makes the rest as it is
for every new leader. Documents that stand for one commit are taken nodes and tenants first, since
jobs are entered in the nodes' books.
"""

from collections.abc import Mapping
from typing import Any, Final

from gpuyard.messages import Beat, NodeDocument, Token
from gpuyard.model.ids import JobKey
from gpuyard.model.node import NO_FACTS
from gpuyard.model.states import HOLDING_STATES, AttemptState
from gpuyard_coordinator.core import (
    arrays,
    beats,
    dependencies,
    documents,
    ledger,
    plausible,
    stored_jobs,
    takeover,
    tenancy,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.mix import Mix
from gpuyard_coordinator.core.state import Attempt, Job, Node, Now

_MALFORMED = (KeyError, TypeError, ValueError)
_HEARD_OF_A_NODE: Final = (
    "state",
    "last_beat",
    "last_beat_at",
    "reasons",
    "is_adopting",
    "is_stopping",
    "sample_age_s",
    "gpus",
)
"""What a standby knows from beats and no document says."""


def assume(cluster: Cluster, token: Token, now: Now) -> None:
    """From here on this coordinator leads: what only a leader knows of its nodes begins afresh."""
    cluster.token = token
    cluster.beat_order.clear()
    for name, known in list(cluster.nodes.items()):
        node = documents.node_from_document(documents.node_document(known))
        node.attempts = known.attempts
        node.cpu_milli_used, node.memory_mib_used = known.cpu_milli_used, known.memory_mib_used
        node.document_kib_used = known.document_kib_used
        node.last_beat, node.revision = now.mono, 1
        ledger.rebuild_gpus(node)
        cluster.nodes[name] = node
        cluster.beat_order[name] = None
        for _, attempt in node.attempts.values():
            attempt.introduced = (token, 1)
    cluster.nodes_changed |= set(cluster.nodes)
    cluster.queue.fresh |= set(cluster.queue.by_shape)
    takeover.begin(cluster, now)


def take_tenant(cluster: Cluster, document: Mapping[str, Any]) -> None:
    """An operator's document as it was stored."""
    if isinstance(name := document.get("tenant"), str):
        cluster.tenants[name] = {key: document[key] for key in document if key != "v"}
        tenancy.reshape(cluster, name)


def drop_tenant(cluster: Cluster, name: str) -> None:
    if cluster.tenants.pop(name, None) is not None:
        tenancy.reshape(cluster, name)


def take_mix(cluster: Cluster, document: Mapping[str, Any]) -> None:
    """The mix that the placer goes by, as it was stored. What was submitted since then is counted
    with the jobs; whoever has followed them all counts on, as the leader does."""
    try:
        priced = Mix.from_document(document)
    except _MALFORMED as fault:
        cluster.unreadable.append(f"mix: {fault!r}")
        return
    cluster.priced = priced
    cluster.next_submit_seq = max(cluster.next_submit_seq, priced.next_submit_seq)
    if cluster.mix.next_submit_seq < priced.next_submit_seq:
        cluster.mix = priced.copy()


def take_node(cluster: Cluster, document: NodeDocument) -> None:
    """A node as it was stored; what was heard of it stays known, and its attempts hold."""
    try:
        document, fault_of_facts = plausible.mended_node(document)
        if fault_of_facts is not None:
            cluster.unreadable.append(f"node {document['name']}: {fault_of_facts}")
        node = documents.node_from_document(document)
    except _MALFORMED as fault:
        cluster.unreadable.append(f"node {document.get('name')}: {fault!r}")
        return
    known = cluster.nodes.get(node.name)
    held = list(known.attempts.values()) if known is not None else []
    if known is not None:
        for job, attempt in held:
            ledger.take_out(cluster, known, job, attempt)
        for name in _HEARD_OF_A_NODE:
            setattr(node, name, getattr(known, name))
    ledger.rebuild_gpus(node)
    cluster.nodes[node.name] = node
    for job, attempt in held:
        ledger.enter(cluster, node, job, attempt)
    cluster.beat_order.setdefault(node.name, None)
    cluster.nodes_changed.add(node.name)


def drop_node(cluster: Cluster, name: str) -> None:
    """A node that was forgotten; what it held is over with the next documents of its jobs."""
    node = cluster.nodes.get(name)
    if node is None:
        return
    held = list(node.attempts.values())
    for job, attempt in held:
        ledger.take_out(cluster, node, job, attempt)
    _remove_node(cluster, name)
    for job, attempt in held:
        ledger.enter(cluster, _node_of(cluster, attempt), job, attempt)


def _remove_node(cluster: Cluster, name: str) -> None:
    del cluster.nodes[name]
    cluster.beat_order.pop(name, None)
    cluster.nodes_changed.add(name)


def take_job(cluster: Cluster, data: bytes) -> None:
    """A job that is not over, as it was stored; it waits, or its attempt holds its grant.

    Raises as `stored_jobs.read_job` where it cannot be understood.
    """
    job = load_job(cluster, data)
    if job.state not in HOLDING_STATES:
        waiting.enter(cluster, [job])
        for task in arrays.live(cluster, job):
            # The tasks of an array are held with it.
            is_closed = waiting.closed(cluster, task) is not None
            if task.state not in HOLDING_STATES and is_closed != (task.key in cluster.queue.parked):
                cluster.queue.discard(task)
                waiting.enter(cluster, [task])


def load_job(cluster: Cluster, data: bytes) -> Job:
    """As `take_job`, but for the queue: `fill_queue` is to be called once all are loaded."""
    job = stored_jobs.read_job(data, cluster.tenants)
    key = job.key
    if job.attempts and (fault := plausible.mend_grants(job)) is not None:
        cluster.unreadable.append(f"job {job.tenant}.{job.id}: {fault}")
    if key in cluster.jobs:
        _take_out(cluster, key)
    elif job.submit_seq >= cluster.priced.next_submit_seq and job.array is None:
        cluster.mix.observe(job.shape, job.submit_seq)
    cluster.recently_done.discard(key)
    cluster.jobs[key] = job
    if job.after:
        dependencies.enter(cluster, job)
    arrays.enter(cluster, job)
    ages = 0 if job.array is None else len(job.array.tasks)
    cluster.next_submit_seq = max(cluster.next_submit_seq, job.submit_seq + 1 + ages)
    if job.state in HOLDING_STATES:
        for part in job.attempts[-1].parts:
            if part.state is not AttemptState.ENDED:
                ledger.enter(cluster, _node_of(cluster, part), job, part)
    return job


def fill_queue(cluster: Cluster) -> None:
    """All jobs that wait, in one sort: entered one by one they would be moved again and again."""
    queued = [job for job in cluster.jobs.values() if job.state not in HOLDING_STATES]
    waiting.enter(cluster, queued)


def hear(cluster: Cluster, beat: Beat, now: Now) -> None:
    """What a beat tells a standby: that its node lives and what it measured. Nothing is decided."""
    node = cluster.nodes.get(beat["node"])
    if node is not None and node.machine_id == beat["machine_id"]:
        beats.take_condition(cluster, node, beat, now)


def forget_counts(cluster: Cluster) -> None:
    """Has what `status` counted of changed nodes counted anew, once. To be called on a standby,
    where no planner looks at what changed; `assume` lets the first one look at all."""
    for name in cluster.nodes_changed:
        if (node := cluster.nodes.get(name)) is not None:
            node.gpu_counts = None
    cluster.nodes_changed.clear()


def drop_job(cluster: Cluster, key: JobKey) -> None:
    """A job that is over."""
    _take_out(cluster, key)
    cluster.jobs.pop(key, None)


def _take_out(cluster: Cluster, key: JobKey) -> None:
    """The version of a job that was known before, out of the queue and the books."""
    job = cluster.jobs.get(key)
    if job is None:
        return
    cluster.queue.discard(job)
    dependencies.leave(cluster, job)
    arrays.leave(cluster, job)
    for part in job.last.parts if job.last is not None else ():
        node = cluster.nodes.get(part.node)
        if node is not None:
            ledger.take_out(cluster, node, job, part)
            if node.facts is NO_FACTS and not node.attempts:
                _remove_node(cluster, node.name)


def _node_of(cluster: Cluster, attempt: Attempt) -> Node:
    """Where an attempt runs, although nothing may be stored of that node."""
    node = cluster.nodes.get(attempt.node)
    if node is None:
        node = Node(
            name=attempt.node,
            machine_id=attempt.machine_id,
            boot_id=attempt.boot_id,
            facts=NO_FACTS,
            generation=-1,
        )
        cluster.nodes[node.name] = node
        cluster.beat_order[node.name] = None
    return node
