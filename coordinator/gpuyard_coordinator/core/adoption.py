"""After a restore: what nodes run and the backup does not know is taken; nothing starts before.

A backup is older than what its yard went on to do. A node that meets the yard's new generation
tells all that it runs, with what each was started from. Rules of this file:
1. What a node tells is newer than the backup. An attempt with a higher number than any known one is
   taken as it stands, also where its GPUs are then granted twice; one whose job is not known brings
   its job. Everything else is refused by name, so nothing is left in doubt.
2. Until every node of before has told, or was silent for `lost_s`, no job starts and no silence
   about an attempt ends it: what is missing here may be told there, or may be over since its
   successor runs.
3. An attempt that cannot go on as the job's own, since what it was started from is not known or is
   another spec, is taken all the same, to be ended: its successor exists only once it is over.
"""

import sys
from typing import Final

from gpuyard.errors import InvalidJob
from gpuyard.messages import AttemptReport, Beat, WantedEntry
from gpuyard.model import ids
from gpuyard.model.ids import JobKey
from gpuyard.model.intake import parse_spec
from gpuyard.model.quantities import first_named
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import HOLDING_STATES, AttemptState, EventKind, JobState
from gpuyard.model.verdicts import Verdict, VerdictCode
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import (
    arrays,
    documents,
    gang_adoption,
    ledger,
    lifecycle,
    setaside,
    times,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import COORDINATOR, Effects
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Job, Node, Now

_NOT_STARTED: Final = frozenset({AttemptState.ACCEPTED, AttemptState.PREPARING})
_NAMED: Final = 3
"""Nodes that a message names."""


def begin(cluster: Cluster) -> None:
    """A new leader waits for the nodes that no leader of this generation has heard out."""
    generation = cluster.token[0]
    cluster.untold = {
        name
        for name, node in cluster.nodes.items()
        if generation not in (node.told_in, node.given_up_in)
    }


def join(cluster: Cluster, node: Node, beat: Beat) -> None:
    """A node that no document knows: it may be new, or of before a restore as well."""
    if beat["applied"] is not None and (is_behind(cluster, beat) or beat["adopting"]):
        cluster.untold.add(node.name)
    else:
        node.told_in = cluster.token[0]


def is_behind(cluster: Cluster, beat: Beat) -> bool:
    """True while an agent does not know yet that the yard was restored."""
    applied = beat["applied"]
    return applied is not None and applied["token"][:1] < [cluster.token[0]]


def hear_out(cluster: Cluster, node: Node, beat: Beat, effects: Effects) -> None:
    """A node has told all once its agent has a document of this generation that names all of it."""
    if node.told_in == cluster.token[0] or beat["adopting"] or beat["applied"] is None:
        return
    if not is_behind(cluster, beat):
        node.told_in = cluster.token[0]
        effects.nodes.add(node.name)
        cluster.untold.discard(node.name)


def give_up(cluster: Cluster, node: Node) -> None:
    """A silent node is not waited for any more; the caller stores it."""
    if node.name in cluster.untold:
        node.given_up_in = cluster.token[0]
        cluster.untold.discard(node.name)


def verdict(cluster: Cluster, job: Job) -> Verdict | None:
    """Why a queued job does not start while nodes are waited for; None once none is."""
    if not cluster.untold:
        return None
    names = sorted(cluster.untold)
    shown = first_named(names, _NAMED)
    message = (
        f"the yard was restored: jobs wait until each of its nodes has told what it runs, "
        f"a silent one for at most {cluster.settings.lost_s:g} s; still to come: {shown}"
    )
    since = max(job.queued_at, cluster.began_at)
    return {"code": str(VerdictCode.WAITING_TURN), "message": message, "since": since}


def is_in_doubt(cluster: Cluster, report: AttemptReport) -> bool:
    """True for an end that an agent concludes from not having an attempt that a document names,
    while another node may still tell of the one that followed it."""
    is_concluded = report["state"] == "ended" and report["reason"] == EndReason.RUNTIME_LOST
    return is_concluded and bool(cluster.untold)


def take_strangers(
    cluster: Cluster, node: Node, event: NodeBeat, now: Now, effects: Effects
) -> set[AttemptRef]:
    """Takes what the beat of an adopting node tells and no document knows; the rest of it is to be
    refused. Returns those of which a later beat decides."""
    later: set[AttemptRef] = set()
    beat = event.beat
    if node.told_in == cluster.token[0] or not beat["adopting"] or is_behind(cluster, beat):
        return later
    for report in beat["attempts"]:
        ref = (report["tenant"], report["job"], report["attempt"])
        if ref in node.attempts:
            continue
        wanted = _usable(beat, report)
        job = cluster.jobs.get(ref[:2])
        is_kept_back = "wanted" in report and report["wanted"] is None
        is_unsure = job is None and wanted is not None and event.ended is None
        if is_kept_back or is_unsure or not effects.has_room():
            later.add(ref)
        elif job is not None:
            _take(cluster, node, job, report, wanted, now=now, effects=effects)
        elif wanted is not None and not _is_over(cluster, event, ref[:2]):
            job = _job_of(cluster, report, wanted, now)
            if job is not None:
                arrays.adopt(cluster, job, effects)
                told = f"it came after the backup; taken from node {node.name}"
                effects.emit(job, EventKind.ACCEPTED, now, message=told, actor=COORDINATOR)
                _take(cluster, node, job, report, wanted, now=now, effects=effects)
    return later


def unknown_jobs(beat: Beat) -> set[JobKey]:
    """Jobs of a beat that may have to be made of it: whether they have ended is to be looked up."""
    return {(r["tenant"], r["job"]) for r in beat["attempts"] if r.get("wanted") is not None}


def _is_over(cluster: Cluster, event: NodeBeat, key: JobKey) -> bool:
    return key in cluster.recently_done or key in (event.ended or ())


def _usable(beat: Beat, report: AttemptReport) -> WantedEntry | None:
    """What an attempt was started from, if that is told and can be true of this host."""
    wanted = report.get("wanted")
    if wanted is None or not wanted["spec_sha256"] or wanted["machine_id"] != beat["machine_id"]:
        return None
    named = wanted["tenant"], wanted["job"], wanted["attempt"]
    return wanted if named == (report["tenant"], report["job"], report["attempt"]) else None


def _job_of(cluster: Cluster, report: AttemptReport, wanted: WantedEntry, now: Now) -> Job | None:
    """The job of an attempt as its node has it; None for one that no coordinator can have sent."""
    tenant, id = wanted["tenant"], wanted["job"]
    if not (ids.is_name(tenant) and ids.is_any_id(id) and ids.is_user(wanted["user"])):
        return None
    try:
        spec = times.settled(parse_spec(wanted["spec"]).normalised(), now)
    except InvalidJob:
        return None
    job = Job(
        tenant=tenant,
        id=id,
        user=wanted["user"],
        user_verified=False,
        packed_spec=fast_codec.encode(spec),
        name=spec["name"],
        spec_sha256=wanted["spec_sha256"],
        shape=shape_of(spec, tenant, cluster.tenants.get(tenant)),
        priority=spec["priority"],
        submitted_at=report["started_at"] or now.at,
        submit_seq=cluster.next_submit_seq,
        image=sys.intern(spec["image"]),
        fence_s=documents.fence_s(spec),
        is_preemptible=spec["preemptible"],
        deadline=spec["deadline"],
    )
    cluster.next_submit_seq += 1
    cluster.jobs[job.key] = job
    waiting.file_deadline(cluster, job, now)
    return job


def _take(
    cluster: Cluster,
    node: Node,
    job: Job,
    report: AttemptReport,
    wanted: WantedEntry | None,
    *,
    now: Now,
    effects: Effects,
) -> None:
    """An attempt with a higher number than any known one; every other is over or elsewhere."""
    is_late = gang_adoption.is_late(job, node, report, wanted)
    if report["attempt"] < job.next_number and not is_late:
        return
    if job.state in HOLDING_STATES and not is_late:
        _supersede(cluster, job, node, report["attempt"], now, effects)
    is_own = wanted is not None and wanted["spec_sha256"] == job.spec_sha256
    attempt = _attempt_of(node, report, wanted, now, is_own=is_own)
    if wanted is not None and "gang" in wanted:
        whole = gang_adoption.begin(node, wanted, attempt)
        if is_late:
            gang_adoption.join(cluster, node, job, attempt, effects)
        else:
            lifecycle.begin_attempt(cluster, job, whole, now=now, effects=effects)
        _tell(job, node, attempt, now, effects)
        gang_adoption.end(cluster, job, attempt, report, now, effects)
        return
    lifecycle.begin_attempt(cluster, job, attempt, now=now, effects=effects)
    _tell(job, node, attempt, now, effects)
    if attempt.boot_id != node.boot_id and report["state"] in _NOT_STARTED:
        why = f"node {node.name} restarted before the container was started"
        _end(cluster, job, attempt, why, is_over=True, now=now, effects=effects)
    elif not is_own:
        why = f"node {node.name} has an attempt that is not known to be of this spec"
        is_over = AttemptState(report["state"]) is AttemptState.ENDED
        _end(cluster, job, attempt, why, is_over=is_over, now=now, effects=effects)


def _attempt_of(
    node: Node, report: AttemptReport, wanted: WantedEntry | None, now: Now, *, is_own: bool
) -> Attempt:
    """The attempt that a node tells of; an order to end it counts where it is the job's own."""
    stop = wanted["stop"] if wanted and is_own else None
    return Attempt(
        number=report["attempt"],
        node=node.name,
        machine_id=node.machine_id,
        boot_id=wanted["boot_id"] if wanted else node.boot_id,
        generation=wanted["generation"] if wanted else node.generation,
        gpus=wanted["gpus"] if wanted else [],
        assigned_at=report["started_at"] or now.at,
        stop=stop,
        stop_requested_at=now.at if stop else None,
    )


def _tell(job: Job, node: Node, attempt: Attempt, now: Now, effects: Effects) -> None:
    told = f"taken over from node {node.name} after a restore"
    uuids = [granted["uuid"] for granted in attempt.gpus]
    effects.emit(
        job, EventKind.ASSIGNED, now, message=told, actor=COORDINATOR, data={"gpus": uuids}
    )
    after = {"job": job.id, "attempt": attempt.number, "node": node.name}
    effects.audit(COORDINATOR, "taken_over", now, tenant=job.tenant, after=after)
    twice = [uuid for uuid in uuids if uuid in node.gpus and node.gpus[uuid].free_milli < 0]
    if twice:
        message = (
            f"{', '.join(twice)} of node {node.name}: granted twice, until what the backup had "
            "there is known to be over"
        )
        effects.emit(job, EventKind.WARNING, now, message=message, data={"gpus": twice})


def _end(
    cluster: Cluster,
    job: Job,
    attempt: Attempt,
    why: str,
    *,
    is_over: bool,
    now: Now,
    effects: Effects,
) -> None:
    """Another attempt follows at no charge, as after a preemption, once this one is over."""
    reason = EndReason.PREEMPTED
    if is_over:
        lifecycle.end_attempt(
            cluster,
            job,
            attempt,
            reason=reason,
            message=why,
            proof=why,
            now=now,
            effects=effects,
        )
        return
    lifecycle.request_stop(
        cluster, job, reason=reason, actor=COORDINATOR, message=why, now=now, effects=effects
    )


def _supersede(
    cluster: Cluster, job: Job, node: Node, number: int, now: Now, effects: Effects
) -> None:
    """The attempt that the backup knows was over before a later one was started."""
    attempt = job.attempts[-1]
    why = f"node {node.name} has attempt {number}, which exists only since this one was over"
    attempt.state, attempt.reason = AttemptState.ENDED, EndReason.NODE_LOST
    attempt.message = attempt.next_allowed_because = why
    attempt.ended_at = now.at
    for part in attempt.parts:
        if ledger.is_held(cluster, job, part):
            part.state, part.reason, part.ended_at = attempt.state, attempt.reason, now.at
            lifecycle.free(cluster, job, part, now, effects)
            setaside.take_end(cluster, job, part, now, effects)
    job.started_at = None
    lifecycle.move(job, JobState.QUEUED)
    data = {"reason": attempt.reason, "not_before": None}
    effects.emit(job, EventKind.REQUEUED, now, message=why, data=data)
