"""Fences: how time alone proves an attempt over, and what a job on a silent node waits for.

An attempt with `on_partition: stop_after` is ended on its own host, by a keeper that needs neither
the agent nor the bus, that long after its node's lease was last renewed. A lease is renewed by the
answer to a beat and counts from the beat's sending, so the last beat that was accepted here is no
earlier than what the keeper counts from. Of an attempt whose fence no keeper holds, and of one that
is to go on, time proves nothing.
"""

from typing import Any, Final

from gpuyard.errors import FieldFault
from gpuyard.model.quantities import counted, format_days, format_duration
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import HOLDING_STATES, JobState, NodeState
from gpuyard.model.verdicts import Verdict, VerdictCode
from gpuyard_coordinator.core import documents, ledger, lifecycle
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.moments import later
from gpuyard_coordinator.core.state import Attempt, Job, Node, Now, Settings

MARGIN_S: Final = 60.0
"""Waited beyond the fence (docs/concepts.md): SIGKILL goes out at the fence, and a loaded host may
need this long to have freed what the container held."""


def with_rule(spec: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A spec that says what a partition does to its attempts.

    It is settled when the job is accepted: what is told to a keeper may not change with a setting.
    """
    if spec.get("on_partition") is not None:
        return spec
    is_movable = bool((spec.get("retries") or {}).get("max"))
    rule = {"stop_after": format_duration(settings.fence_s)} if is_movable else "keep"
    return {**spec, "on_partition": rule}


def fault(spec: dict[str, Any], settings: Settings) -> FieldFault | None:
    """A fence that would end attempts between two beats of a node that is well."""
    fence_s = documents.fence_s(spec)
    if fence_s is None or fence_s >= settings.suspect_s:
        return None
    least = format_days(settings.suspect_s)
    message = f"stop_after must be at least {least}: a node may be silent as long and be well"
    return FieldFault("on_partition.stop_after", "out_of_range", message)


def watch(cluster: Cluster, node: Node) -> None:
    """A node fell silent, or lost its name to another machine: its fences begin to count."""
    for ref, (job, attempt) in node.attempts.items():
        due = _due(node, job, attempt)
        if due is not None:
            cluster.fences.file((node.name, ref), due)


def lose_machine(cluster: Cluster, node: Node, machine_id: str) -> None:
    """Another machine takes the node's name: what the one before was given counts from its last
    beat; what `machine_id` itself had is heard of again."""
    for _, attempt in node.attempts.values():
        if attempt.machine_id == machine_id:
            attempt.silent_since = None
        elif attempt.silent_since is None:
            attempt.silent_since, attempt.silent_at = node.last_beat, node.last_beat_at
    watch(cluster, node)


def judge(cluster: Cluster, now: Now, effects: Effects) -> None:
    """Ends the attempts whose fence is over while their machine stayed silent."""
    while effects.has_room() and (filed := cluster.fences.take(now.mono)) is not None:
        name, ref = filed
        node = cluster.nodes.get(name)
        held = node.attempts.get(ref) if node is not None else None
        if node is None or held is None:
            continue
        job, attempt = held
        due = _due(node, job, attempt)
        if due is None:
            continue
        if due > now.mono:
            cluster.fences.file(filed, due)
            continue
        fence = format_days(job.fence_s or 0.0)
        lifecycle.end_attempt(
            cluster,
            job,
            attempt,
            reason=EndReason.NODE_LOST,
            message=f"node {name} was silent for longer than the fence of {fence}",
            proof=f"its fence of {fence} is over and node {name} stayed silent",
            now=now,
            effects=effects,
        )


def _due(node: Node, job: Job, attempt: Attempt) -> float | None:
    """When the fence proves an attempt over, should nothing be heard; None where it never does."""
    if job.fence_s is None or not attempt.fenced:
        return None
    since = attempt.silent_since
    if since is None:
        if node.state is not NodeState.LOST:
            return None
        since = node.last_beat
    return since + job.fence_s + MARGIN_S


def lost_verdict(cluster: Cluster, job: Job) -> Verdict | None:
    """What a job waits for that holds on a node which is silent; None for any other."""
    if job.last is None or job.state not in HOLDING_STATES:
        return None
    parts = (_lost_verdict(cluster, job, part) for part in job.last.parts)
    lost = [verdict for verdict in parts if verdict is not None]
    if not lost:
        return None
    message = _why_it_ends(job, job.last) + lost[0]["message"]
    if others := lost[1:]:
        message += f"; and so for {counted(len(others), 'more ranks')}"
    return {**lost[0], "message": message}


def _why_it_ends(job: Job, whole: Attempt) -> str:
    """The beginning of what is said of a job that is on its way to an end; else nothing."""
    if job.state is not JobState.STOPPING or whole.stop is None:
        return ""
    cause = whole.message if whole.ended_by is not None else None
    return f"{cause or 'it was told to end: ' + whole.stop['reason']}; "


def _lost_verdict(cluster: Cluster, job: Job, attempt: Attempt) -> Verdict | None:
    node = cluster.nodes.get(attempt.node)
    if node is None or not ledger.is_held(cluster, job, attempt):
        return None
    if node.state is not NodeState.LOST and attempt.silent_since is None:
        return None
    name, heard = node.name, node.last_beat_at or cluster.began_at
    frees = f"the node is back, its host restarts, or 'gpuyard forget {name}'"
    if attempt.silent_since is not None:
        heard = attempt.silent_at or cluster.began_at
        frees = f"machine {attempt.machine_id} has the name again, or 'gpuyard forget {name}'"
    if job.fence_s is not None and attempt.fenced:
        over = later(max(heard, cluster.began_at), job.fence_s + MARGIN_S)
        fence = format_days(job.fence_s)
        frees += f", at the latest when its fence of {fence} is over, about {over}"
    whose = "the attempt" if attempt.rank is None else f"rank {attempt.rank} of it"
    what = f"node {name} is silent and nothing proves {whose} over; it waits until {frees}"
    return {"code": str(VerdictCode.NODE_LOST_WAITING), "message": what, "since": heard}


def resume(cluster: Cluster, node: Node, job: Job, attempt: Attempt, now: Now) -> None:
    """A new leader counts from its own take-over; of a machine that lost its name, at once."""
    attempt.silent_since = None
    if attempt.machine_id != node.machine_id:
        attempt.silent_since, attempt.silent_at = now.mono, now.at
        due = _due(node, job, attempt)
        if due is not None:
            cluster.fences.file((node.name, ledger.ref(job, attempt)), due)
