"""Tenants' documents: written by operators, in force at once, never ending what runs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuyard.errors import Conflict, UnknownThing
from gpuyard.model.tenant import DEFAULT_TENANT
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects, Outcome
from gpuyard_coordinator.core.events import TenantApplied, TenantDeleted
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.core.state import Now


def apply_tenant(
    cluster: Cluster, event: TenantApplied | TenantDeleted, now: Now, effects: Effects
) -> None:
    before = cluster.tenants.get(event.tenant)
    if isinstance(event, TenantApplied):
        after = event.document
        if after == before:
            effects.outcomes.append(Outcome(event.ref, tenant=event.tenant))
            return
        cluster.tenants[event.tenant] = after
    else:
        live = sum(1 for tenant, _ in cluster.jobs if tenant == event.tenant)
        if before is None or live:
            error = (
                UnknownThing(f"tenant {event.tenant} has no document", code="unknown_tenant")
                if before is None
                else Conflict(
                    f"tenant {event.tenant} has {live} unfinished jobs: cancel them first"
                )
            )
            effects.outcomes.append(Outcome(event.ref, error=error))
            return
        after = None
        del cluster.tenants[event.tenant]
    effects.tenants.add(event.tenant)
    action = "tenant_deleted" if after is None else "tenant_applied"
    effects.audit(event.actor, action, now, tenant=event.tenant, before=before, after=after)
    effects.outcomes.append(Outcome(event.ref, tenant=event.tenant))
    cluster.tenants_eased.add(event.tenant)
    if _shapes(before) != _shapes(after):
        reshape(cluster, event.tenant)


def is_stranger(cluster: Cluster, tenant: str) -> bool:
    """Whether nothing limits a tenant, in a yard that limits others, and it has no live job: its
    name is likely mistyped."""
    if tenant in cluster.tenants or tenant == DEFAULT_TENANT:
        return False
    use = cluster.use.get(tenant)
    is_new = not cluster.queue.waiting[tenant] and not (use and use.running_jobs)
    return is_new and any(name != DEFAULT_TENANT for name in cluster.tenants)


def _shapes(document: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """What of a document is part of its tenant's jobs' shapes; see `shapes.shape_of`."""
    document = document or {}
    return document.get("models"), bool(document.get("share_across_tenants"))


def reshape(cluster: Cluster, tenant: str) -> None:
    """Waiting and held jobs of a tenant under its new document: what it lets them use."""
    document = cluster.tenants.get(tenant)
    cluster.tenants_eased.add(tenant)
    for job in [job for job in cluster.jobs.values() if job.tenant == tenant]:
        shape = shape_of(job.spec, tenant, document)
        shape = replace(shape, excluded=job.shape.excluded)
        if shape == job.shape:
            continue
        if job.key in cluster.queue.parked:
            job.shape = shape
            continue
        is_waiting = cluster.queue.position(job) is not None
        cluster.queue.discard(job)
        job.shape = shape
        if is_waiting:
            cluster.queue.add(job)
        else:
            # Shares of others may sit beside this one from now on.
            cluster.tenants_eased.update(t for t, n in cluster.queue.waiting.items() if n)
            for part in job.last.parts if job.last is not None else ():
                cluster.nodes_changed.add(part.node)
