"""What is stored of a turn: the documents of everything that it changed, each once."""

from typing import Final

from gpuyard import subjects
from gpuyard_coordinator.core import documents, stored_history
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.store import Write, delete, put

DONE_KEPT_S: Final = 30 * 86_400
CANCEL_KEPT_S: Final = 86_400
"""How long a cancel that came before its job is remembered."""


def writes_of(cluster: Cluster, effects: Effects) -> list[Write]:
    """All but its out records. Jobs by their acceptance: a standby lists them in the order in which
    it hears of them."""
    jobs = [job for key in effects.jobs if (job := cluster.jobs.get(key)) is not None]
    writes = [
        put(subjects.job_key(*job.key), documents.encode_job(job))
        for job in sorted(jobs, key=lambda job: job.submit_seq)
    ]
    writes += [delete(subjects.job_key(*key)) for key in sorted(effects.deleted)]
    for key, done in effects.done.items():
        ttl_s = CANCEL_KEPT_S if done.is_early_cancel else DONE_KEPT_S
        writes.append(put(subjects.done_key(*key), done.packed, ttl_s=ttl_s))
    for name in sorted(effects.nodes):
        node = documents.node_document(cluster.nodes[name])
        writes.append(put(subjects.node_key(name), dict(node)))
    writes += [delete(subjects.node_key(name)) for name in sorted(effects.forgotten)]
    for name in sorted(effects.tenants):
        tenant, at = cluster.tenants.get(name), subjects.tenant_key(name)
        writes.append(delete(at) if tenant is None else put(at, {"v": 1, **tenant}))
    for name in sorted(effects.histories):
        history = stored_history.history_document(cluster, name)
        writes.append(put(subjects.share_key(name), history, ttl_s=stored_history.DOCUMENT_KEPT_S))
    if effects.mix:
        writes.append(put(subjects.MIX_KEY, cluster.priced.to_document()))
    return writes
