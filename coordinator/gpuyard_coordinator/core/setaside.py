"""Nodes on which job after job fails take no more work, and are tried again with one at a time.

A row of failures counts where each is another job's, none was the job's own fault, and it is not
just one image that starts nowhere: then the image is to blame (`images`). A node that is put aside
waits a back-off, then takes one job. If that runs for `TRIAL_S` or ends by itself the node is well;
if it fails like the others the back-off doubles. An operator's uncordon ends it at once.
"""

from typing import Any, Final

from gpuyard.model.node import NodeReason
from gpuyard.model.reasons import REASONS, EndReason
from gpuyard_coordinator.core import images, ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import COORDINATOR, Effects
from gpuyard_coordinator.core.moments import later, seconds_until
from gpuyard_coordinator.core.retries import NOT_THE_JOBS, is_stale
from gpuyard_coordinator.core.state import Aside, Attempt, Failure, Job, Node, Now

ROW: Final = 3
"""Failures of different jobs in a row that put a node aside."""
WINDOW_S: Final = 600.0
"""The whole row lies within this."""
FIRST_BACKOFF_S: Final = 300.0
LONGEST_BACKOFF_S: Final = 3600.0
TRIAL_S: Final = 60.0
LONGEST_TEXT: Final = 200
_NOT_THE_NODES: Final = frozenset({EndReason.NODE_LOST, EndReason.NODE_DRAINED})
"""The host went away, or was emptied: nothing failed on it."""


def take_end(cluster: Cluster, job: Job, attempt: Attempt, now: Now, effects: Effects) -> None:
    """An attempt is over: one more failure in the node's row, the end of the row, or a trial's."""
    node = cluster.nodes[attempt.node]
    is_failure = _is_failure(attempt)
    if is_failure and images.is_about_image(attempt):
        images.take_failure(cluster, job, attempt, now)
    if node.aside is not None:
        if node.aside.trial == ledger.ref(job, attempt):
            _end_trial(cluster, node, node.aside, attempt, is_failure, now, effects)
    elif is_failure:
        _count(cluster, node, job, attempt, now, effects)
    elif attempt.started_at is not None:
        node.failures.clear()


def take_start(cluster: Cluster, job: Job, attempt: Attempt, now: Now) -> None:
    """An attempt is heard of as running for the first time."""
    attempt.running_since = now.mono
    images.take_start(cluster, job, attempt.node)
    node = cluster.nodes[attempt.node]
    node.failures = [failure for failure in node.failures if failure.has_run]


def take_running(cluster: Cluster, job: Job, attempt: Attempt, now: Now, effects: Effects) -> None:
    """An attempt goes on running; a trial has then been long enough at some time."""
    node = cluster.nodes[attempt.node]
    is_trial = node.aside is not None and node.aside.trial == ledger.ref(job, attempt)
    since = attempt.running_since
    if is_trial and since is not None and now.mono - since >= TRIAL_S:
        clear(cluster, node, f"job {job.id} runs on it", COORDINATOR, now, effects)


def take_assignment(node: Node, job: Job, attempt: Attempt, effects: Effects) -> None:
    """A job was placed on a node; where that is put aside, it is the node's trial."""
    if node.aside is not None:
        node.aside.trial = ledger.ref(job, attempt)
        effects.nodes.add(node.name)


def judge(cluster: Cluster, now: Now) -> None:
    """Opens the nodes to a trial whose back-off is over."""
    for name in sorted(cluster.aside):
        aside = cluster.nodes[name].aside
        if aside is not None and not aside.is_open and now.mono >= aside.due:
            aside.is_open = True
            cluster.nodes_changed.add(name)


def clear(cluster: Cluster, node: Node, why: str, actor: str, now: Now, effects: Effects) -> None:
    """The node takes work again; one that is not put aside is no error."""
    node.failures.clear()
    if node.aside is None:
        return
    before = _told(node, node.aside)
    node.aside = None
    cluster.aside.discard(node.name)
    cluster.nodes_changed.add(node.name)
    effects.nodes.add(node.name)
    after = {"node": node.name, "message": why}
    effects.audit(actor, "node_taken_back", now, before=before, after=after)


def resume(cluster: Cluster, node: Node, now: Now) -> None:
    """A new leader goes on with what is left of a node's back-off."""
    if node.aside is not None:
        left_s = seconds_until(now.at, node.aside.until, most=LONGEST_BACKOFF_S)
        node.aside.due = now.mono + left_s
        cluster.aside.add(node.name)


def reason(node: Node) -> NodeReason | None:
    """What readers are shown of a node that is put aside."""
    aside = node.aside
    if aside is None:
        return None
    state = f"a trial from {aside.until}"
    if aside.trial is not None:
        state = f"job {aside.trial[1]} tries it"
    elif aside.is_open:
        state = "the next job tries it"
    message = f"{aside.message}; {state}"
    return {"code": "failing", "message": message, "gpu": None, "since": aside.since}


def _is_failure(attempt: Attempt) -> bool:
    """An end that is the node's fault as far as can be told; what was asked to stop is not."""
    why = EndReason(attempt.reason or EndReason.RUNTIME_ERROR)
    is_theirs = REASONS[why].owner in NOT_THE_JOBS and why not in _NOT_THE_NODES
    return is_theirs and attempt.stop is None and not is_stale(attempt)


def _is_own_end(attempt: Attempt) -> bool:
    return attempt.stop is None and attempt.reason not in _NOT_THE_NODES


def _count(
    cluster: Cluster, node: Node, job: Job, attempt: Attempt, now: Now, effects: Effects
) -> None:
    row = [f for f in node.failures if f.job != job.key and now.mono - f.mono <= WINDOW_S]
    has_run = attempt.started_at is not None
    if has_run and row and attempt.assigned_at <= row[-1].at:
        return  # it ran beside one that failed: the same fault may have ended both
    is_about_image = images.is_about_image(attempt)
    row.append(Failure(now.mono, now.at, job.key, job.image, is_about_image, has_run))
    node.failures = row[-ROW * ROW :]
    if len(_witnesses(cluster, node)) >= ROW:
        _put_aside(cluster, node, attempt, FIRST_BACKOFF_S, now, effects)


def _witnesses(cluster: Cluster, node: Node) -> set[Any]:
    """A job each, but an image that is not known to start elsewhere is one for all its jobs."""
    return {
        failure.image
        if failure.is_about_image and not images.is_known_good(cluster, failure.image, node.name)
        else failure.job
        for failure in node.failures
    }


def _put_aside(
    cluster: Cluster, node: Node, attempt: Attempt, backoff_s: float, now: Now, effects: Effects
) -> None:
    before = None if node.aside is None else _told(node, node.aside)
    since = now.at if node.aside is None else node.aside.since
    why = str(attempt.reason)
    text = (attempt.message or REASONS[EndReason(why)].text)[:LONGEST_TEXT]
    node.aside = Aside(
        reason=why,
        message=f"job after job failed, the last with {why}: {text}",
        since=since,
        until=later(now.at, backoff_s),
        backoff_s=backoff_s,
        due=now.mono + backoff_s,
    )
    node.failures.clear()
    cluster.aside.add(node.name)
    cluster.nodes_changed.add(node.name)
    effects.nodes.add(node.name)
    effects.audit(COORDINATOR, "node_put_aside", now, before=before, after=_told(node, node.aside))


def _end_trial(
    cluster: Cluster,
    node: Node,
    aside: Aside,
    attempt: Attempt,
    is_failure: bool,
    now: Now,
    effects: Effects,
) -> None:
    if is_failure:
        backoff_s = min(2 * aside.backoff_s, LONGEST_BACKOFF_S)
        _put_aside(cluster, node, attempt, backoff_s, now, effects)
    elif attempt.started_at is not None and _is_own_end(attempt):
        clear(cluster, node, f"a trial ended with {attempt.reason}", COORDINATOR, now, effects)
    else:
        aside.trial = None  # it says nothing of the node: another job may try
        cluster.nodes_changed.add(node.name)
        effects.nodes.add(node.name)


def _told(node: Node, aside: Aside) -> dict[str, Any]:
    return {
        "node": node.name,
        "reason": aside.reason,
        "message": aside.message,
        "until": aside.until,
    }
