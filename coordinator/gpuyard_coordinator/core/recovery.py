"""A new leader's state from what is stored; reads back equal to what the last one committed."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuyard.messages import JobDocument, NodeDocument, Token
from gpuyard.model.node import NodeFacts
from gpuyard.model.states import HOLDING_STATES
from gpuyard_coordinator.core import documents, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Job, Node, Now, Settings

_MALFORMED = (KeyError, TypeError, ValueError)
_NOTHING_KNOWN: NodeFacts = {
    "labels": {},
    "driver_version": None,
    "cuda_version": None,
    "docker_version": None,
    "agent_version": "",
    "runtime": "docker",
    "gpu_injection": "none",
    "sharing": "none",
    "cpus": None,
    "memory_mib": None,
    "gpus": [],
    "links": [],
    "missing": [],
}


def recover(
    *,
    yard: str,
    token: Token,
    settings: Settings,
    jobs: Iterable[JobDocument],
    nodes: Iterable[NodeDocument],
    tenants: Iterable[Mapping[str, Any]] = (),
    now: Now,
) -> Cluster:
    """Every held attempt holds again; every node counts from `now` and must beat before work.

    A document that cannot be understood stays in the bucket and is named in `unreadable`.
    """
    cluster = Cluster(yard=yard, token=token, settings=settings)
    for tenant in tenants:
        if isinstance(name := tenant.get("tenant"), str):
            cluster.tenants[name] = {key: tenant[key] for key in tenant if key != "v"}
    for stored in nodes:
        try:
            node = documents.node_from_document(stored)
        except _MALFORMED as fault:
            cluster.unreadable.append(f"node {stored.get('name')}: {fault!r}")
        else:
            _add_node(cluster, node, now)
    for document in jobs:
        try:
            job = documents.job_from_document(document, cluster.tenants.get(document["tenant"]))
        except _MALFORMED as fault:
            cluster.unreadable.append(f"job {document.get('id')}: {fault!r}")
        else:
            _add_job(cluster, job, now)
    for node in cluster.nodes.values():
        node.revision = 1
    return cluster


def _add_node(cluster: Cluster, node: Node, now: Now) -> None:
    ledger.rebuild_gpus(node)
    node.last_beat = now.mono
    cluster.nodes[node.name] = node
    cluster.beat_order[node.name] = None
    cluster.nodes_changed.add(node.name)


def _add_job(cluster: Cluster, job: Job, now: Now) -> None:
    cluster.jobs[job.key] = job
    cluster.next_submit_seq = max(cluster.next_submit_seq, job.submit_seq + 1)
    if job.state not in HOLDING_STATES:
        cluster.queue.add(job)
        return
    attempt = job.attempts[-1]
    node = cluster.nodes.get(attempt.node)
    if node is None:
        node = Node(
            name=attempt.node,
            machine_id=attempt.machine_id,
            boot_id=attempt.boot_id,
            facts=_NOTHING_KNOWN,
            generation=-1,
        )
        _add_node(cluster, node, now)
    ledger.hold(cluster, node, job, attempt)
    attempt.introduced = (cluster.token, 1)
