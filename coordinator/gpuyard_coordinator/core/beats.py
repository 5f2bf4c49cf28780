"""What a node's beat changes: who it is, what it has, how its attempts stand, that it lives.

Order is (boot, agent start, seq); liveness is the coordinator's own receive time. Absence of an
attempt proves its end only in a beat whose `applied` covers the document that introduced it.
"""

from typing import Any, Final

from gpuyard.messages import Applied, AttemptReport, Beat
from gpuyard.model.node import GpuSample
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import AttemptState, EventKind, JobState, NodeState
from gpuyard_coordinator.core import (
    adoption,
    fencing,
    filters,
    gangs,
    images,
    ledger,
    lifecycle,
    setaside,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import BeatOutcome, Effects
from gpuyard_coordinator.core.events import NodeBeat
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Job, Node, Now, Settings

_STATE_OF: Final = {
    AttemptState.PREPARING: JobState.PREPARING,
    AttemptState.RUNNING: JobState.RUNNING,
    AttemptState.STOPPING: JobState.STOPPING,
}
_KIND_OF: Final = {
    JobState.PREPARING: EventKind.PREPARING,
    JobState.RUNNING: EventKind.RUNNING,
    JobState.STOPPING: EventKind.STOPPING,
}
_RANK: Final = {
    JobState.ASSIGNED: 0,
    JobState.PREPARING: 1,
    JobState.RUNNING: 2,
    JobState.STOPPING: 3,
}
PULL_STEP_BYTES: Final = 16 * 1024 * 1024
"""After the first, which tells that a pull began, a `pulling` event is worth a write once this much
more has arrived."""


def apply_beat(cluster: Cluster, event: NodeBeat, now: Now, effects: Effects) -> None:
    """A beat that is late, or of a node that is being forgotten, changes nothing and has no answer;
    one of another machine or agent under a living node's name is answered `duplicate_name`."""
    beat = event.beat
    node = cluster.nodes.get(beat["node"])
    if node is not None and node.forgotten_by is not None:
        return
    if node is not None and (fault := _rival(cluster, node, beat, now)):
        node.rival, node.rival_beat = beat["machine_id"], now.mono
        effects.beats.append(BeatOutcome(event.ref, node.name, "duplicate_name", fault))
        return
    if node is None:
        node = _join(cluster, beat, effects)
    elif not _is_newer(node, beat):
        return
    _take_identity(cluster, node, beat, effects)
    _take_facts(cluster, node, beat, effects)
    take_condition(cluster, node, beat, now)
    _take_reports(cluster, node, event, now, effects)
    adoption.hear_out(cluster, node, beat, effects)
    is_current = _covers(beat["applied"], (cluster.token, node.revision))
    outcome = BeatOutcome(event.ref, node.name, "ok", needs_wanted=not is_current)
    effects.beats.append(outcome)


def judge_lateness(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Nodes that beat too long ago become suspect, then lost: no placement, nothing moved. At
    most as many are lost at a time as one commit stores."""
    for name in list(cluster.beat_order):
        node = cluster.nodes[name]
        late_s = now.mono - node.last_beat
        if late_s <= cluster.settings.suspect_s:
            return
        is_lost = late_s > cluster.settings.lost_s and effects.has_room()
        state = NodeState.LOST if is_lost else NodeState.SUSPECT
        if node.state is NodeState.LOST or node.state is state:
            continue
        node.state = state
        cluster.nodes_changed.add(name)
        if state is NodeState.LOST:
            effects.nodes.add(name)
            cluster.shrank = True
            adoption.give_up(cluster, node)
            fencing.watch(cluster, node)


def _rival(cluster: Cluster, node: Node, beat: Beat, now: Now) -> str | None:
    """Why a beat under this name comes from someone else while the node's own agent lives."""
    is_alive = now.mono - node.last_beat <= cluster.settings.lost_s
    if not is_alive or beat["instance"] == node.instance:
        return None
    if beat["machine_id"] != node.machine_id:
        return f"machine {node.machine_id} beats as {node.name} already; give this one another name"
    if node.instance == "":
        return None  # none of this machine's agents has beaten to this leader yet
    is_older = beat["boot_id"] == node.boot_id and beat["started_ns"] <= node.started_ns
    is_older = is_older or beat["boot_id"] == node.former_boot_id
    return "a newer agent of this machine beats already" if is_older else None


def _is_newer(node: Node, beat: Beat) -> bool:
    return beat["instance"] != node.instance or beat["seq"] > node.seq


def _join(cluster: Cluster, beat: Beat, effects: Effects) -> Node:
    node = Node(
        name=beat["node"],
        machine_id=beat["machine_id"],
        boot_id=beat["boot_id"],
        facts=beat["facts"],
        generation=-1,
        revision=cluster.revision_retired + 1,
    )
    cluster.nodes[node.name] = node
    adoption.join(cluster, node, beat)
    effects.nodes.add(node.name)
    effects.forgotten.discard(node.name)  # it may have been forgotten in this turn
    return node


def _take_identity(cluster: Cluster, node: Node, beat: Beat, effects: Effects) -> None:
    if beat["machine_id"] != node.machine_id:
        fencing.lose_machine(cluster, node, beat["machine_id"])
        node.machine_id, node.boot_id = beat["machine_id"], beat["boot_id"]
        node.former_boot_id = None
        effects.nodes.add(node.name)
    elif beat["boot_id"] != node.boot_id:
        node.former_boot_id, node.boot_id = node.boot_id, beat["boot_id"]
        effects.nodes.add(node.name)
    if beat["instance"] != node.instance:
        node.instance, node.started_ns = beat["instance"], beat["started_ns"]
        node.is_proven = False
        node.rival = None
        # A restarted agent must prove itself: the placer may not think the node as it was.
        cluster.nodes_changed.add(node.name)
    node.seq = beat["seq"]


def _take_facts(cluster: Cluster, node: Node, beat: Beat, effects: Effects) -> None:
    is_same = beat["facts"] is node.facts or beat["facts"] == node.facts
    if beat["generation"] == node.generation and is_same:
        return
    effects.nodes.add(node.name)
    node.facts, node.generation = beat["facts"], beat["generation"]
    ledger.rebuild_gpus(node)
    cluster.nodes_changed.add(node.name)
    cluster.shrank = True


def take_condition(cluster: Cluster, node: Node, beat: Beat, now: Now) -> None:
    """Liveness, readiness and what the GPUs measured; the placer hears of what matters to it."""
    before = _readiness(node)
    node.last_beat, node.last_beat_at = now.mono, now.at
    cluster.beat_order[node.name] = None
    cluster.beat_order.move_to_end(node.name)
    node.reasons = beat["reasons"]
    node.is_adopting, node.is_stopping = beat["adopting"], beat["stopping"]
    node.sample_age_s = beat["sample_age_s"]
    has_changed = _take_samples(node, beat["samples"], cluster.settings)
    node.samples = beat["samples"]
    if now.mono - node.rival_beat > cluster.settings.lost_s:
        node.rival = None
    is_whole = any(reason["gpu"] is None for reason in node.reasons) if node.reasons else False
    node.state = NodeState.UNREADY if is_whole else NodeState.READY
    applied = beat["applied"]
    if not node.is_proven and applied and tuple(applied["token"]) == cluster.token:
        node.is_proven = True
    if has_changed or _readiness(node) != before:
        cluster.nodes_changed.add(node.name)


def _readiness(node: Node) -> tuple[object, ...]:
    """What of a beat decides whether a node takes work at all, but for its GPUs."""
    is_sampled = filters.is_sampled(node)
    return (node.state, node.is_proven, node.is_stopping, node.is_adopting, is_sampled)


def _take_samples(node: Node, samples: list[GpuSample], settings: Settings) -> bool:
    """True if one of its GPUs takes work now that did not before, or the other way round."""
    if samples == node.samples:  # as in most beats that come for news of an attempt
        return False
    has_changed = False
    measured = {sample["uuid"]: sample for sample in samples}
    for uuid, gpu in node.gpus.items():
        sample = measured.get(uuid)  # what was not measured is unknown, not as it was
        if filters.weighs_alike(gpu.sample, sample):
            gpu.sample = sample
            continue
        before, gpu.sample = filters.gpu_block(gpu, settings), sample
        has_changed |= filters.gpu_block(gpu, settings) is not before
    return has_changed


def _covers(applied: Applied | None, revision: tuple[tuple[int, int], int]) -> bool:
    if applied is None:
        return False
    return (tuple(applied["token"]), applied["revision"]) >= revision


def _take_reports(
    cluster: Cluster, node: Node, event: NodeBeat, now: Now, effects: Effects
) -> None:
    """As many as the turn has room for, so that it fits one commit; the agent repeats its whole
    picture, so the rest comes with the next beat."""
    beat = event.beat
    later = adoption.take_strangers(cluster, node, event, now, effects)
    reported: set[AttemptRef] = set()
    for report in beat["attempts"]:
        key = (report["tenant"], report["job"], report["attempt"])
        held = node.attempts.get(key)
        if held is None or not _can_know(beat, held[1], report):
            continue
        reported.add(key)
        if effects.has_room() and not adoption.is_in_doubt(cluster, report):
            _take_report(cluster, beat, held, report, now=now, effects=effects)
    if adoption.is_behind(cluster, beat):
        return
    _refuse_strangers(node, beat, later, effects)
    if beat["adopting"] or cluster.untold:
        return
    for key, (job, attempt) in list(node.attempts.items()):
        proof = None if key in reported else _proof_of_end(node, beat, attempt)
        if proof is not None and effects.has_room():
            _end_unreported(cluster, job, attempt, proof, now=now, effects=effects)


def _refuse_strangers(node: Node, beat: Beat, later: set[AttemptRef], effects: Effects) -> None:
    """What its host runs and nobody wants is refused by name until it is over: attempts that were
    proven over without it, or of a forgotten node that is back. An agent that adopts keeps what is
    over too until it was named."""
    if not beat["attempts"] and not node.refused:
        return
    asked = {
        (report["tenant"], report["job"], report["attempt"])
        for report in beat["attempts"]
        if report["state"] != "ended" or beat["adopting"]
    }
    refused = asked - set(node.attempts) - later
    if refused != node.refused:
        node.refused = refused
        ledger.wanted_changed(node)
        effects.wanted.add(node.name)


def _can_know(beat: Beat, attempt: Attempt, report: AttemptReport) -> bool:
    """False for words about an attempt of another machine, and for one that was still to be
    started when its host restarted: no agent starts it in another boot."""
    if attempt.boot_id == beat["boot_id"]:
        return True
    is_waiting = report["state"] in (AttemptState.ACCEPTED, AttemptState.PREPARING)
    return attempt.machine_id == beat["machine_id"] and not is_waiting


def _proof_of_end(node: Node, beat: Beat, attempt: Attempt) -> tuple[EndReason, str] | None:
    """What proves an attempt over that a beat does not list; None where nothing does."""
    if attempt.machine_id != node.machine_id:
        return None
    if attempt.boot_id != node.boot_id:
        return EndReason.NODE_LOST, "its host restarted"
    if _covers(beat["applied"], attempt.introduced):
        return EndReason.RUNTIME_LOST, "the node does not know it any more"
    return None


def _end_unreported(
    cluster: Cluster,
    job: Job,
    attempt: Attempt,
    proof: tuple[EndReason, str],
    *,
    now: Now,
    effects: Effects,
) -> None:
    reason, message = proof
    lifecycle.end_attempt(
        cluster,
        job,
        attempt,
        reason=reason,
        message=message,
        proof=message,
        now=now,
        effects=effects,
    )


def _take_report(
    cluster: Cluster,
    beat: Beat,
    held: tuple[Job, Attempt],
    report: AttemptReport,
    *,
    now: Now,
    effects: Effects,
) -> None:
    job, attempt = held
    state = AttemptState(report["state"])
    attempt.usage = report["usage"] or attempt.usage
    attempt.log_chunks = report["log_chunks"]
    attempt.container_id = report["container_id"] or attempt.container_id
    if report["pull"] is not None:
        images.take_pull(cluster, job.image, attempt.node)
    before = attempt.image_digest, attempt.started_at
    attempt.image_digest = report["image_digest"] or attempt.image_digest
    attempt.started_at = report["started_at"] or attempt.started_at
    attempt.is_prepared = bool(report.get("prepared"))
    gangs.take_report(cluster, job, attempt, effects)
    if state is AttemptState.ENDED:
        _take_end(cluster, beat, job, attempt, report, now=now, effects=effects)
        return
    is_fenced = bool(beat.get("self_stop") and report.get("fenced"))
    if before != (attempt.image_digest, attempt.started_at) or is_fenced != attempt.fenced:
        effects.change(job)
    attempt.state, attempt.fenced = state, is_fenced
    if state is AttemptState.RUNNING:
        if attempt.running_since is None:
            setaside.take_start(cluster, job, attempt, now)
        setaside.take_running(cluster, job, attempt, now, effects)
    _take_progress(job, attempt, report, now, effects)


def _take_progress(
    job: Job, attempt: Attempt, report: AttemptReport, now: Now, effects: Effects
) -> None:
    target = _STATE_OF.get(attempt.state) if attempt.state else None
    if target is not None and _RANK[target] > _RANK[job.state]:
        lifecycle.move(job, target)
        if target is JobState.RUNNING:
            job.started_at = job.started_at or attempt.started_at
        data = {} if target is not JobState.STOPPING else {"reason": report["reason"]}
        data = data | _whose(attempt)
        effects.emit(job, _KIND_OF[target], now, message=report["message"], data=data)
    _take_note(job, attempt, report["message"], now, effects)
    pull = report["pull"]
    if pull is None or job.state is not JobState.PREPARING:
        return
    told = attempt.pull_reported
    if told is None or pull["done_bytes"] - told >= PULL_STEP_BYTES:
        attempt.pull_reported = pull["done_bytes"]
        effects.emit(job, EventKind.PULLING, now, data=dict(pull) | _whose(attempt))


def _take_note(job: Job, attempt: Attempt, note: str | None, now: Now, effects: Effects) -> None:
    """What a node says of a container while it runs, that it is paused for instance; kept with the
    attempt, so that the next leader tells it no second time."""
    if attempt.state is AttemptState.RUNNING and note != attempt.message:
        attempt.message = note
        message = note or "its container goes on"
        effects.emit(job, EventKind.WARNING, now, message=message, data=_whose(attempt))


def _whose(attempt: Attempt) -> dict[str, Any]:
    """Which member of a gang something is told of; nothing for any other attempt."""
    return {} if attempt.rank is None else {"rank": attempt.rank, "node": attempt.node}


def _take_end(
    cluster: Cluster,
    beat: Beat,
    job: Job,
    attempt: Attempt,
    report: AttemptReport,
    *,
    now: Now,
    effects: Effects,
) -> None:
    try:
        reason = EndReason(report["reason"] or "")
    except ValueError:
        reason = EndReason.RUNTIME_ERROR
    if attempt.started_at is not None and job.started_at is None:
        job.started_at = attempt.started_at
    lifecycle.end_attempt(
        cluster,
        job,
        attempt,
        reason=reason,
        exit_code=report["exit_code"],
        message=report["message"],
        ended_at=report["ended_at"],
        now=now,
        effects=effects,
    )
