"""Does what a change of `why` says, in a copy of the yard, and looks whether the job starts."""

import copy
from collections.abc import Callable
from typing import Any

from gpuyard.model.reasons import EndReason
from gpuyard.model.states import JobState
from gpuyard_coordinator.core import ledger, lifecycle
from gpuyard_coordinator.core.effects import Effects
from tests.support.yard import TENANT, Yard

Change = dict[str, Any]
NEW = "again"
"""The id under which a job is submitted whose request is what changes."""


def follow(yard: Yard, change: Change, id: str = "j", *, tenant: str = TENANT) -> Yard:
    """The yard after the change, in which the job has been placed; other waiting jobs are cancelled
    first, since the change is for this job alone, but for those that have a node reserved."""
    assert change["text"] and "\n" not in change["text"]
    kept, yard.outcome = yard.outcome, None  # it may hold an error, and those cannot be copied
    after = copy.deepcopy(yard)
    yard.outcome = kept
    for key, job in list(after.cluster.jobs.items()):
        is_other = key != (tenant, id) and key not in after.cluster.reservations.by_job
        if is_other and job.state is JobState.QUEUED:
            # To cancel an array would end its tasks that run, too.
            (after.cancel if job.array is None else after.hold)(key[1], tenant=key[0])
    after.plan()
    assert after.job(id, tenant=tenant).state is JobState.QUEUED, "it waits without the change"
    _DO[change["kind"]](after, change, id, tenant)
    after.plan()
    placed = after.cluster.jobs.get((tenant, NEW)) or after.cluster.jobs[tenant, id]
    assert placed.state is JobState.ASSIGNED, change
    return after


def _resubmit(yard: Yard, id: str, tenant: str, **changes: Any) -> None:
    spec = {key: value for key, value in yard.job(id, tenant=tenant).spec.items() if value}
    yard.cancel(id, tenant=tenant)
    spec |= changes
    outcome = yard.submit(NEW, tenant=tenant, **{k: v for k, v in spec.items() if v is not None})
    assert outcome.error is None, outcome.error


def _ask_less(yard: Yard, change: Change, id: str, tenant: str) -> None:
    field, to = change["field"], change["to"]
    if field == "gpus":
        _resubmit(yard, id, tenant, gpus=to)
        return
    outer, _, inner = field.partition(".")
    value = to
    if inner:
        held = yard.job(id, tenant=tenant).spec[outer]
        value = {key: held[key] for key in ("memory_mib", "core_percent")} | {inner: to}
    _resubmit(yard, id, tenant, **{outer: value})


def _drop_where(yard: Yard, change: Change, id: str, tenant: str) -> None:
    lines = yard.job(id, tenant=tenant).spec["where"]
    assert change["line"] in lines
    _resubmit(yard, id, tenant, where=[line for line in lines if line != change["line"]])


def _wait_for(yard: Yard, change: Change, id: str, tenant: str) -> None:
    for named in change["jobs"]:
        job = yard.cluster.jobs[named["tenant"], named["id"]]
        if job.last is None:
            yard.cancel(job.id, tenant=job.tenant)
            continue
        effects = Effects()
        for part in [p for p in job.last.parts if ledger.is_held(yard.cluster, job, p)]:
            lifecycle.end_attempt(
                yard.cluster,
                job,
                part,
                reason=EndReason.EXITED,
                exit_code=0,
                message=None,
                now=yard.now,
                effects=effects,
            )
        yard._commit(effects)


def _raise_limit(yard: Yard, change: Change, id: str, tenant: str) -> None:
    document = copy.deepcopy(yard.cluster.tenants[tenant])
    part, _, key = change["limit"].rpartition(".")
    document[part or "limits"][key] += change["by"]
    assert yard.tenant(tenant, **_without_name(document)).error is None


def _allow_model(yard: Yard, change: Change, id: str, tenant: str) -> None:
    document = copy.deepcopy(yard.cluster.tenants[tenant])
    document["models"].append(change["model"])
    yard.tenant(tenant, **_without_name(document))


def _without_name(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "tenant"}


def _end_foreign(yard: Yard, change: Change, id: str, tenant: str) -> None:
    agent = yard.agents[change["node"]]
    (index,) = (n for n, s in enumerate(agent.samples) if s["uuid"] == change["gpu"])
    rest = [p for p in agent.samples[index]["foreign"] if p["pid"] != change["pid"]]
    memory = sum(process["memory_mib"] or 0 for process in rest)
    agent.change_sample(index, foreign=rest, memory_foreign_mib=memory)
    yard.beat(change["node"])


def _other_model(yard: Yard, change: Change, id: str, tenant: str) -> None:
    lines = yard.job(id, tenant=tenant).spec["where"]
    assert change["line"] in lines
    rest = [line for line in lines if line != change["line"]]
    _resubmit(yard, id, tenant, where=[*rest, change["to"]])


def _all_of(yard: Yard, change: Change, id: str, tenant: str) -> None:
    """Each alone is not enough."""
    dropped = {each.get("line") for each in change["changes"]}
    if dropped == {None}:
        for each in change["changes"]:
            yard.plan()
            assert yard.job(id, tenant=tenant).state is JobState.QUEUED
            _DO[each["kind"]](yard, each, id, tenant)
        return
    lines = yard.job(id, tenant=tenant).spec["where"]
    _resubmit(yard, id, tenant, where=[line for line in lines if line not in dropped])


def _ask_more(yard: Yard, change: Change, id: str, tenant: str) -> None:
    """Whoever is stopped for it ends as asked."""
    _resubmit(yard, id, tenant, priority=change["to"])
    yard.plan()
    for job in list(yard.cluster.jobs.values()):
        if job.state is JobState.STOPPING:
            yard.end(job.id, tenant=job.tenant, reason="preempted", exit_code=143)


_DO: dict[str, Callable[[Yard, Change, str, str], None]] = {
    "ask_less": _ask_less,
    "ask_more": _ask_more,
    "other_model": _other_model,
    "all_of": _all_of,
    "any_gpus": lambda yard, change, id, tenant: _resubmit(yard, id, tenant, gpus=change["to"]),
    "drop_where": _drop_where,
    "drop_node": lambda yard, change, id, tenant: _resubmit(yard, id, tenant, node=None),
    "wait_for": _wait_for,
    "raise_limit": _raise_limit,
    "allow_model": _allow_model,
    "uncordon": lambda yard, change, id, tenant: _uncordon(yard, change),
    "end_foreign": _end_foreign,
}


def _uncordon(yard: Yard, change: Change) -> None:
    yard.uncordon(change["node"], change["gpu"])
