"""A gang: one attempt of a job over several nodes, with a member on each (docs/decisions/0009).

Rules of this file:
1. A member is an attempt of its own to its node, its ledger and its agent; the whole, which is the
   job's attempt, tells of all of them and holds nothing.
2. No member starts before each is prepared. Once that was decided it stays so.
3. The first member that ends in any way but with code 0 ends the whole: its end is that of all.
   The whole is over once each member is proven over. A node that was lost is known to be so long
   after the others' commands died of it: that goes before an exit of theirs.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from gpuyard.messages import AttemptUsage, GrantedGpu
from gpuyard.model.reasons import REASONS, EndReason
from gpuyard.model.states import AttemptState
from gpuyard_coordinator.core import ledger
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.state import Attempt, Job, Meeting, Node, Now

Place = tuple[str, tuple[str, ...]]
"""A node and the UUIDs of its GPUs, for one member."""
MEMBERS_KEPT: Final = 400
"""Of older attempts of a job, all told, so that its document fits a message however often a gang is
tried again; of those beyond it the member stays that ended the attempt."""


def attempt_of(
    cluster: Cluster, job: Job, places: Sequence[Place], meeting: Meeting, now: Now
) -> Attempt:
    """The next attempt of a job, its members by rank; nothing is booked yet."""
    members = [
        member_of(cluster, job, rank, cluster.nodes[name], uuids, now)
        for rank, (name, uuids) in enumerate(places)
    ]
    return whole_of(members, meeting)


def whole_of(members: list[Attempt], meeting: Meeting | None) -> Attempt:
    """The attempt that these members are."""
    first = members[0]
    return Attempt(
        number=first.number,
        node=first.node,
        machine_id=first.machine_id,
        boot_id=first.boot_id,
        generation=first.generation,
        gpus=gpus_of(members),
        assigned_at=first.assigned_at,
        members=members,
        meeting=meeting,
    )


def member_of(
    cluster: Cluster, job: Job, rank: int, node: Node, uuids: Sequence[str], now: Now
) -> Attempt:
    """One member on its node."""
    sizes = (ledger.grant(node.gpus[uuid], job.shape) for uuid in uuids)
    return Attempt(
        number=job.next_number,
        node=node.name,
        machine_id=node.machine_id,
        boot_id=node.boot_id,
        generation=node.generation,
        gpus=[size for size in sizes if size is not None],
        assigned_at=now.at,
        rank=rank,
    )


def gpus_of(members: Sequence[Attempt]) -> list[GrantedGpu]:
    """What all of them hold."""
    return list(chain.from_iterable(member.gpus for member in members))


def trim(job: Job) -> None:
    """Leaves out members of attempts that are over, the oldest first."""
    kept = 0
    for attempt in reversed(job.attempts[:-1]):
        kept += len(attempt.members)
        if kept > MEMBERS_KEPT:
            attempt.members = [m for m in attempt.members if m.rank == attempt.ended_by]


def take_report(cluster: Cluster, job: Job, member: Attempt, effects: Effects) -> None:
    """After a member's report: what it says of the whole, and whether all may start now."""
    whole = job.last
    if member.rank is None or whole is None:
        return
    _sum_up(whole)
    if whole.may_start or whole.ended_by is not None or not all(map(_is_ready, whole.members)):
        return
    whole.may_start = True
    effects.change(job)
    for part in whole.members:
        if ledger.is_held(cluster, job, part):
            ledger.wanted_changed(cluster.nodes[part.node])
            effects.wanted.add(part.node)


def take_end(job: Job, member: Attempt, effects: Effects) -> bool:
    """A member is proven over; True once all are, and the whole is told of as any attempt that is
    over. A member that failed is then in `ended_by`, and the rest is to be stopped."""
    whole = job.last
    assert whole is not None
    is_well = member.reason == EndReason.EXITED and member.exit_code == 0
    is_cause = member.reason == EndReason.NODE_LOST and whole.reason == EndReason.EXITED
    if is_cause or (not is_well and whole.ended_by is None):
        whole.ended_by = member.rank
        whole.reason, whole.exit_code = member.reason, member.exit_code
        whole.message = _what_ended_it(whole, member)
    _sum_up(whole)
    effects.change(job)
    if any(part.state is not AttemptState.ENDED for part in whole.members):
        return False
    whole.state, whole.ended_at = AttemptState.ENDED, member.ended_at
    if whole.ended_by is None:
        whole.reason, whole.exit_code = EndReason.EXITED, 0
    return True


def decisive(whole: Attempt) -> Attempt:
    """Whose end is that of a gang which is over: a member, or the whole where none has failed; of
    any other attempt itself."""
    return next((part for part in whole.members if part.rank == whole.ended_by), whole)


def _is_ready(member: Attempt) -> bool:
    """True for one that waits for the others, or that has been let go before."""
    return member.is_prepared or member.started_at is not None


def _what_ended_it(whole: Attempt, member: Attempt) -> str | None:
    if whole.stop is not None and whole.stop["reason"] == member.reason:
        return member.message  # all were asked to end: no member is to blame
    name = f"rank {member.rank} on node {member.node}"
    if member.reason == EndReason.EXITED:
        told = f": {member.message}" if member.message else ""
        return f"{name} exited with {member.exit_code}{told}"
    reason = EndReason(member.reason or EndReason.RUNTIME_ERROR)
    return f"{name} ended with {reason}: {member.message or REASONS[reason].text}"


def _sum_up(whole: Attempt) -> None:
    """What the whole says of its members."""
    first = whole.members[0]
    whole.container_id, whole.image_digest = first.container_id, first.image_digest
    started = [member.started_at for member in whole.members if member.started_at is not None]
    whole.started_at = min(started, default=None)
    whole.log_chunks = sum(member.log_chunks for member in whole.members)
    whole.usage = _usage(whole)


def _usage(whole: Attempt) -> AttemptUsage | None:
    """GPU-seconds of all, the mean over those that tell one, and the largest peak."""
    told = [member.usage for member in whole.members if member.usage is not None]
    if not told:
        return None
    means = [u["utilization_mean_percent"] for u in told]
    known = [mean for mean in means if mean is not None]
    peaks = [peak for u in told if (peak := u["memory_peak_mib"]) is not None]
    return {
        "gpu_seconds": sum(u["gpu_seconds"] for u in told),
        "utilization_mean_percent": sum(known) / len(known) if known else None,
        "memory_peak_mib": max(peaks, default=None),
    }
