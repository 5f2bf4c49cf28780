"""After a restore: members of gangs that nodes run and the backup does not know.

Each node tells of its own member, one after another, and of a silent node's nobody can tell. So
such a gang is taken member by member, to be ended; it begins anew once all that was told of it is
over. One that was started before the backup is known whole and goes on.
"""

from typing import Any, Final

from gpuyard.messages import AttemptReport, WantedEntry
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import AttemptState, JobState
from gpuyard_coordinator.core import gangs, ledger, lifecycle
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import COORDINATOR, Effects
from gpuyard_coordinator.core.state import Attempt, Job, Meeting, Node, Now

WHY: Final = "the gang was started after the backup, which does not know all of its members"


def is_late(job: Job, node: Node, report: AttemptReport, wanted: WantedEntry | None) -> bool:
    """True for one more member of an attempt that another node has told of."""
    whole = job.last
    if wanted is None or "gang" not in wanted or whole is None or not whole.members:
        return False
    is_known = any(member.node == node.name for member in whole.members)
    return whole.number == report["attempt"] and not is_known


def begin(node: Node, wanted: WantedEntry, attempt: Attempt) -> Attempt:
    """The attempt as a whole, of which `attempt` is the first member that is told of."""
    attempt.rank, attempt.stop = wanted["gang"]["rank"], None
    return gangs.whole_of([attempt], Meeting(wanted["gang"]["address"], wanted["gang"]["port"]))


def join(cluster: Cluster, node: Node, job: Job, member: Attempt, effects: Effects) -> None:
    """Adds a member that is told of later; what was over in the meantime is so no more."""
    whole = job.attempts[-1]
    whole.members = sorted([*whole.members, member], key=lambda each: each.rank or 0)
    whole.gpus = gangs.gpus_of(whole.members)
    whole.node = whole.members[0].node
    if job.state is JobState.QUEUED:
        cluster.queue.discard(job)
        cluster.delays.drop(job.key)
        lifecycle.move(job, JobState.ASSIGNED)
        whole.state = whole.reason = whole.exit_code = whole.message = whole.ended_at = None
        whole.next_allowed_because = whole.ended_by = whole.stop = job.not_before = None
    ledger.enter(cluster, node, job, member)
    member.introduced = (cluster.token, node.revision)
    member.stop = whole.stop
    effects.wanted.add(node.name)
    effects.change(job)


def end(
    cluster: Cluster, job: Job, member: Attempt, report: AttemptReport, now: Now, effects: Effects
) -> None:
    """Another attempt follows at no charge, as after a preemption, once all of it is over."""
    how: dict[str, Any] = {"message": WHY, "now": now, "effects": effects}
    why = EndReason.PREEMPTED
    if AttemptState(report["state"]) is AttemptState.ENDED:
        lifecycle.end_attempt(
            cluster, job, member, reason=why, exit_code=report["exit_code"], proof=WHY, **how
        )
    else:
        lifecycle.request_stop(cluster, job, reason=why, actor=COORDINATOR, **how)
