"""What tenants held of late, kept with the state: nobody gains by a new leader.

A tenant's document is written with every commit that ends an attempt of its jobs, and says what it
had spent by then. Since then it has only been given more, and of what it holds each attempt knows
since when: a new leader adds that up, so no document is needed while jobs merely run.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.history import KEPT_S, Amounts, History, settled
from gpuyard_coordinator.core.moments import unix_ms, zero_ms
from gpuyard_coordinator.core.state import Attempt, Job, Now

DOCUMENT_KEPT_S: Final = KEPT_S
"""What is older weighs nothing."""
_NOTHING: Final[Amounts] = (0, 0, 0)
_MOST: Final = 1 << 61
"""What is added to it until it is next stored must fit into 63 bits too."""


def history_document(cluster: Cluster, tenant: str) -> dict[str, Any]:
    """Of a tenant whose history was settled; `take_history` reads it."""
    spent, until_ms = cluster.history[tenant]
    return {"v": 1, "tenant": tenant, "until_ms": until_ms, "spent": list(spent)}


def take_history(cluster: Cluster, document: Mapping[str, Any]) -> None:
    """A history as it was stored. Raises KeyError, TypeError or ValueError where it is none."""
    gpus, cpus, memory = map(int, document["spent"])
    if max(gpus, cpus, memory) > _MOST:
        raise ValueError(f"{max(gpus, cpus, memory)} spent is more than any yard has")
    cluster.history[document["tenant"]] = History((gpus, cpus, memory), int(document["until_ms"]))


def drop_history(cluster: Cluster, tenant: str) -> None:
    """A history that is so old that it was deleted."""
    cluster.history.pop(tenant, None)


def resume(cluster: Cluster, now: Now) -> None:
    """Settles every tenant's history up to `now`, from its document and its live attempts."""
    cluster.clock_zero_ms = cluster.wall_zero_ms = zero_ms(now.at, now.mono)
    now_ms = cluster.clock_ms(now)
    given: defaultdict[str, list[tuple[int, Amounts]]] = defaultdict(list)
    for node in cluster.nodes.values():
        for job, attempt in node.attempts.values():
            given[job.tenant].append((unix_ms(attempt.assigned_at), _amounts(job, attempt)))
    for tenant in {*cluster.history, *given}:
        spent, until_ms = cluster.history.get(tenant, History())
        # A document from the future is one of a clock that was ahead: nobody waits for it.
        history, held = History(spent, min(until_ms, now_ms)), _NOTHING
        for since_ms, amounts in sorted(given[tenant]):
            history = settled(history, held, min(since_ms, now_ms))
            held = (held[0] + amounts[0], held[1] + amounts[1], held[2] + amounts[2])
        cluster.history[tenant] = settled(history, held, now_ms)


def _amounts(job: Job, attempt: Attempt) -> Amounts:
    milli = sum(granted["milli"] for granted in attempt.gpus)
    return (milli, job.shape.cpu_milli, job.shape.memory_mib)
