"""What must hold of the core's state after every step, whatever happened before."""

from collections import Counter
from dataclasses import replace
from typing import cast

from gpuyard import codec
from gpuyard.messages import MAX_WANTED_BYTES, NodeDocument
from gpuyard.model import ids
from gpuyard.model.states import HOLDING_STATES, AttemptState, JobState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator import yard_counts
from gpuyard_coordinator.core import (
    arrays,
    dependencies,
    documents,
    fairshare,
    ledger,
    stored_jobs,
    waiting,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import (
    DOCUMENT_KIB,
    WHOLE_GPU_MILLI,
    Attempt,
    Job,
    Node,
    Now,
)


def check(cluster: Cluster, *, is_restored: bool = False) -> None:
    """`is_restored`: what nodes tell is taken as it is, also where it contradicts a backup."""
    for node in cluster.nodes.values():
        assert is_restored or _overcommitted(node) == []
        document = documents.wanted_document(cluster, node)
        data = codec.encode(document)
        assert codec.decode(data) == document
        assert documents.encode_wanted(cluster, node) == data
        assert len(data) <= MAX_WANTED_BYTES
    _check_queue(cluster)
    _check_holding(cluster, is_restored=is_restored)
    for job in cluster.jobs.values():
        _check_attempts(job, is_restored=is_restored)
        data = codec.encode(documents.job_document(job))
        read = stored_jobs.read_job(data, cluster.tenants)
        assert _comparable(read) == _comparable(job)
    _check_use(cluster)
    _check_dependants(cluster)
    _check_arrays(cluster, is_restored=is_restored)


def check_gpu_counts(cluster: Cluster) -> None:
    """What was counted when this was last called, and counted again where a node was heard to have
    changed, is what counting everything finds."""
    kept = yard_counts.gpu_totals(cluster)
    for node in cluster.nodes.values():
        node.gpu_counts = None
    assert yard_counts.gpu_totals(cluster) == kept


def _overcommitted(node: Node) -> list[str]:
    """What is granted twice on a node, in words."""
    faults = [
        f"{node.name}/{uuid}: {gpu.free_milli} milli free"
        for uuid, gpu in node.gpus.items()
        if not 0 <= gpu.free_milli <= WHOLE_GPU_MILLI
        or gpu.free_milli + sum(gpu.grants.values()) != WHOLE_GPU_MILLI
    ]
    faults += [
        f"{node.name}/{uuid}: {gpu.shared_mib} MiB held by shares"
        for uuid, gpu in node.gpus.items()
        if gpu.shared_mib and ledger.free_mib(gpu) < 0
    ]
    cpus, memory = node.facts["cpus"], node.facts["memory_mib"]
    if cpus is not None and node.cpu_milli_used > cpus * 1000:
        faults.append(f"{node.name}: {node.cpu_milli_used} milli-CPU used of {cpus}")
    if memory is not None and node.memory_mib_used > memory:
        faults.append(f"{node.name}: {node.memory_mib_used} MiB used of {memory}")
    if node.document_kib_used > DOCUMENT_KIB:
        faults.append(f"{node.name}: {node.document_kib_used} KiB in its wanted document")
    return faults


def check_recovered(before: Cluster, after: Cluster, now: Now) -> None:
    """A leader that starts from stored documents holds what the last one did.

    What beats repeat anyway is not stored for itself: progress, usage, log chunks, container ids.
    """
    assert after.tenants == before.tenants
    assert set(after.nodes) == set(before.nodes)
    assert _use(after) == _use(before)
    check_shares(before, after, now)
    assert {key: _stored(job) for key, job in after.jobs.items()} == {
        key: _stored(job) for key, job in before.jobs.items()
    }
    for key, job in before.jobs.items():
        # Images on hold are a leader's own: the next one puts their jobs in line again.
        if not before.images_held and not after.images_held:
            assert after.queue.position(after.jobs[key]) == before.queue.position(job)
    for name, node in before.nodes.items():
        assert _book(after, name) == _book(before, name)
        stored = codec.decode(codec.encode(documents.node_document(node)))
        again = documents.node_from_document(cast(NodeDocument, stored))
        assert again.facts == node.facts
        assert _orders(again) == _orders(node) == _orders(after.nodes[name])
        assert _told_aside(again) == _told_aside(node) == _told_aside(after.nodes[name])
        assert not after.nodes[name].is_proven


def check_shares(before: Cluster, after: Cluster, now: Now) -> None:
    """What every tenant held of late is equal, but for rounding and a millisecond an attempt."""
    for tenant in before.history:
        one = fairshare.history_of(before, tenant, now).spent
        other = fairshare.history_of(after, tenant, now).spent
        for was, is_now in zip(one, other, strict=True):
            assert abs(is_now - was) <= 10_000_000 + was // 10**5, (tenant, one, other)


def assert_equal(one: Cluster, other: Cluster) -> None:
    """Equal in everything that `apply` changes; what planners take out of it aside."""
    assert one.jobs == other.jobs
    assert one.nodes == other.nodes
    assert one.recently_done == other.recently_done
    assert one.beat_order == other.beat_order
    assert one.queue.by_shape == other.queue.by_shape
    assert one.next_submit_seq == other.next_submit_seq
    assert one.tenants == other.tenants
    assert one.images == other.images
    assert one.queue.parked == other.queue.parked
    assert _use(one) == _use(other)


def _check_queue(cluster: Cluster) -> None:
    queue = cluster.queue
    queued = {key for key, job in cluster.jobs.items() if job.state is JobState.QUEUED}
    listed = [order for orders in queue.by_shape.values() for order in orders]
    parked = queue.parked.keys()
    assert {(tenant, id) for _, _, tenant, id in listed} == queued - parked
    assert parked <= queued
    assert len(listed) == len(queue) == len(queued - parked)
    in_images = {
        (tenant, id)
        for image in cluster.images_held
        for _, _, tenant, id in cluster.images[image].waiting
    }
    for key, (code, _) in queue.parked.items():
        job = cluster.jobs[key]
        closed, is_array = waiting.closed(cluster, job), job.array is not None
        if closed is not None:
            assert code is closed
        elif key not in cluster.delays and is_array:
            assert code is VerdictCode.WAITING_TURN
            continue
        else:
            assert code is VerdictCode.NOT_BEFORE
        if code is VerdictCode.NOT_BEFORE:
            assert key in cluster.delays or key in in_images, "none is lost"
        else:
            assert key not in cluster.delays
    in_order = sorted(listed)
    for place, (_, _, tenant, id) in enumerate(in_order, 1):
        assert queue.position(cluster.jobs[tenant, id]) == place
    for shape, orders in queue.by_shape.items():
        assert orders == sorted(orders) and orders
        assert all(cluster.jobs[o[2], o[3]].shape == shape for o in orders)


def _check_arrays(cluster: Cluster, *, is_restored: bool) -> None:
    """Each task of an array waits in it, lives or is over; no more live than may at once."""
    tasks = {key for key in cluster.jobs if ids.array_of(key[1]) is not None}
    filed = [key for live in cluster.tasks.values() for key in (*live.fresh, *live.begun)]
    assert sorted(filed) == sorted(tasks)
    for key, job in cluster.jobs.items():
        if job.array is None:
            continue
        array, live = job.array, len(cluster.tasks.get(key, ()))
        assert job.state is JobState.QUEUED and not job.attempts
        assert array.left + live + sum(array.ended.values()) == len(array.tasks)
        assert array.left + live or key in cluster.arrays_due, "one that is over ends"
        most = array.tasks.limit
        assert is_restored or most is None or live <= most
        for task in arrays.live(cluster, job):
            assert arrays.pending(cluster, task.key) is None
            assert (task.attempts != []) == (task.key in cluster.tasks[key].begun)


def _check_dependants(cluster: Cluster) -> None:
    """Whoever waits for others is queued, and is found by each of them."""
    filed = {(key, dependant) for key, those in cluster.dependants.items() for dependant in those}
    waits = {
        (awaited, key)
        for key, job in cluster.jobs.items()
        for awaited in dependencies.filed_under(job)
    }
    assert filed == waits
    for key, job in cluster.jobs.items():
        assert not job.after or job.state is JobState.QUEUED, key


def _check_holding(cluster: Cluster, *, is_restored: bool) -> None:
    """Jobs that hold, attempts on nodes and grants on GPUs are three views of one thing."""
    holding = []
    for key, job in cluster.jobs.items():
        assert not job.state.is_final
        if job.state in HOLDING_STATES:
            assert job.last is not None
            parts = [part for part in job.last.parts if part.state is not AttemptState.ENDED]
            holding += [(part.node, *key, job.last.number) for part in parts]
            _check_gang(cluster, job, is_restored=is_restored)
    on_nodes = [(name, *ref) for name, node in cluster.nodes.items() for ref in node.attempts]
    assert sorted(on_nodes) == sorted(holding)
    _check_ports(cluster)
    for node in cluster.nodes.values():
        for uuid, gpu in node.gpus.items():
            granted = {
                ref
                for ref, (_, attempt) in node.attempts.items()
                if any(held["uuid"] == uuid for held in attempt.gpus)
            }
            assert set(gpu.grants) == granted
            if 1000 in gpu.grants.values() and not is_restored:
                assert len(granted) == 1, "a whole GPU is granted to one attempt at a time"


def _check_gang(cluster: Cluster, job: Job, *, is_restored: bool) -> None:
    """All or nothing: members on different nodes, as many as asked for, each holding until it is
    over, and once one has failed on their way to an end."""
    whole = job.last
    assert whole is not None
    if job.shape.nodes == 1:
        assert not whole.members
        return
    assert is_restored or [m.rank for m in whole.members] == list(range(job.shape.nodes))
    assert len({member.node for member in whole.members}) == len(whole.members)
    left = [part for part in whole.members if part.state is not AttemptState.ENDED]
    assert left, "an attempt of which nothing holds is over"
    assert all(ledger.is_held(cluster, job, part) for part in left)
    over = [part for part in whole.members if part.state is AttemptState.ENDED]
    has_failed = any(part.reason != "exited" or part.exit_code != 0 for part in over)
    assert has_failed == (whole.ended_by is not None)
    if has_failed:
        assert job.state is JobState.STOPPING and all(part.stop for part in left)
    if not whole.may_start and not is_restored:
        assert all(part.started_at is None for part in whole.members), "started before the others"


def _check_ports(cluster: Cluster) -> None:
    """A gang has its port for as long as rank 0 holds, and no other has the same."""
    held = [
        job.last.meeting
        for job in cluster.jobs.values()
        if job.state in HOLDING_STATES and job.last and job.last.meeting
        for part in job.last.members
        if part.rank == 0 and ledger.is_held(cluster, job, part)
    ]
    known = {(address, port) for address, ports in cluster.gang_ports.items() for port in ports}
    assert len(held) == len(set(held)) and set(held) == known


def _check_use(cluster: Cluster) -> None:
    """A tenant's use is what its attempts hold; waiting jobs are counted by tenant."""
    milli: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for job in cluster.jobs.values():
        if job.state in HOLDING_STATES and job.last is not None:
            held = [part for part in job.last.parts if ledger.is_held(cluster, job, part)]
            milli[job.tenant] += sum(gpu["milli"] for part in held for gpu in part.gpus)
            running[job.tenant] += 1
    assert {t: use[2] for t, use in _use(cluster).items()} == {t: running[t] for t in _use(cluster)}
    assert {t: use[0] for t, use in _use(cluster).items()} == {t: milli[t] for t in _use(cluster)}
    counted: Counter[str] = Counter()
    for job in cluster.jobs.values():
        if job.state is JobState.QUEUED:
            counted[job.tenant] += 1 if job.array is None else job.array.left
    assert +cluster.queue.waiting == +counted


def _use(cluster: Cluster) -> dict[str, tuple[int, int, int]]:
    held = {t: (u.milli, u.gpu_memory_mib, u.running_jobs) for t, u in cluster.use.items()}
    return {tenant: use for tenant, use in held.items() if any(use)}


def _orders(node: Node) -> object:
    order = node.scheduling, node.scheduling_reason, node.drain_deadline_at
    return order, node.cordons


def _told_aside(node: Node) -> object:
    return None if node.aside is None else replace(node.aside, due=0.0, is_open=False)


def _check_attempts(job: Job, *, is_restored: bool) -> None:
    """Attempts are numbered from 1, with gaps where a restore lost some, and each but the last is
    over."""
    numbers = [attempt.number for attempt in job.attempts]
    assert numbers == (sorted(set(numbers)) if is_restored else list(range(1, len(numbers) + 1)))
    over = job.attempts[:-1] if job.state in HOLDING_STATES else job.attempts
    assert all(attempt.reason and attempt.ended_at for attempt in over)
    assert all(attempt.next_allowed_because for attempt in over)
    if job.state in HOLDING_STATES and job.attempts[-1].ended_by is None:
        assert job.attempts[-1].reason is None


def _comparable(job: Job) -> Job:
    """Without what is a leader's own: when a document first named an attempt, the last pull, the
    memory that its grant stands for, and what its monotonic clock told."""
    return replace(job, attempts=[_without_own(attempt) for attempt in job.attempts])


def _without_own(attempt: Attempt) -> Attempt:
    own = Attempt(0, "", "", "", 0, [], "")
    return replace(
        attempt,
        introduced=own.introduced,
        pull_reported=own.pull_reported,
        gpu_memory_mib=own.gpu_memory_mib,
        running_since=None,
        silent_since=None,
        silent_at=None,
        is_prepared=False,
        members=[_without_own(member) for member in attempt.members],
    )


def _stored(job: Job) -> Job:
    job = _comparable(job)
    return replace(job, attempts=[_without_repeated(attempt) for attempt in job.attempts])


def _without_repeated(attempt: Attempt) -> Attempt:
    return replace(
        attempt,
        state=None,
        usage=None,
        log_chunks=0,
        container_id=None,
        members=[_without_repeated(member) for member in attempt.members],
    )


def _book(cluster: Cluster, name: str) -> object:
    node = cluster.nodes[name]
    grants = {uuid: (gpu.free_milli, gpu.grants) for uuid, gpu in node.gpus.items()}
    used = node.cpu_milli_used, node.memory_mib_used, node.document_kib_used
    return node.machine_id, node.boot_id, grants, used, set(node.attempts)
