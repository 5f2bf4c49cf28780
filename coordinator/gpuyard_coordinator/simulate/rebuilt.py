"""The yard as it stood before each recorded plan, rebuilt from the documents of a record.

Documents of a turn are those of its commit, so they hold what its plan decided: that is taken off
them again. Nothing else moves but what moved then: a job whose document is written again without a
change of its grant or its place in the queue frees nothing and is not new to the planner. Arrays
are left out, since no planner sees them; their tasks are jobs of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from gpuyard import subjects
from gpuyard.messages import NodeDocument
from gpuyard.model.ids import JobKey
from gpuyard.model.states import HOLDING_STATES, AttemptState, JobState
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator import fast_codec
from gpuyard_coordinator.core import (
    arrays,
    documents,
    fairshare,
    ledger,
    recovery,
    stored_history,
    stored_jobs,
)
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.conditions import NodeCondition, take_condition
from gpuyard_coordinator.core.history import History
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import Attempt, ImageRecord, Job, Now, Settings

_STATE_BEFORE: Final = {
    AttemptState.PREPARING: JobState.PREPARING,
    AttemptState.RUNNING: JobState.RUNNING,
    AttemptState.STOPPING: JobState.STOPPING,
}
Documents = dict[str, bytes]
"""By key of the bucket."""


@dataclass(slots=True)
class Rebuilt:
    """Made by `of`; then `take` for each turn in its order."""

    cluster: Cluster
    planner: Planner
    conditions: dict[str, NodeCondition]
    _now: Now = field(default=Now(0.0, ""))
    _placed: set[JobKey] = field(default_factory=set)
    _stopped: set[JobKey] = field(default_factory=set)
    _parked: dict[JobKey, str | None] = field(default_factory=dict)
    """What keeps each from the line now that was parked of late; None for nothing."""
    _came_after: list[Job] = field(default_factory=list)
    """Jobs that the last turn stored and its plan did not know of."""

    @classmethod
    def of(cls, head: Mapping[str, Any], puts: Documents, whole: Mapping[str, Any]) -> "Rebuilt":
        """The yard as a snapshot has it: its documents, and the frame that completes it."""
        generation, epoch = head["token"]
        cluster = Cluster(head["yard"], (generation, epoch), Settings(**head["settings"]))
        cluster.clock_zero_ms = head["clock_zero_ms"]
        _load(cluster, puts)
        for name, condition in whole["conditions"].items():
            take_condition(cluster.nodes[name], condition)
        cluster.nodes = {name: cluster.nodes[name] for name in whole["nodes"]}
        for tenant, id, code in whole["parked"]:
            if (job := cluster.jobs.get((tenant, id))) is not None:
                cluster.queue.park(job, VerdictCode(code))
        _take_images(cluster, whole["images"])
        for tenant, (spent, until_ms) in whole["history"].items():
            cluster.history[tenant] = History((spent[0], spent[1], spent[2]), until_ms)
        cluster.tenants_eased.clear()
        planner = Planner(cluster, Packer(cluster.settings))
        planner.recall(whole["planner"])
        return cls(cluster, planner, dict(whole["conditions"]))

    def take(self, turn: Mapping[str, Any], now: Now) -> None:
        """Everything of a turn that came before its plan."""
        self._now = now
        self._placed = {(tenant, id) for tenant, id, _ in turn["placed"]}
        self._stopped = {(tenant, id) for tenant, id, _, _ in turn["stopped"]}
        self._parked = {(tenant, id): code for tenant, id, code in turn["parked"]}
        _take_images(self.cluster, turn["images"])
        came_after, self._came_after = self._came_after, []
        for job in came_after:
            self._take_job(job.key, job)
        written = [(*key.partition(".")[::2], data) for key, data in turn["writes"]]
        for kind, name, data in written:
            if kind in ("node", "tenant", subjects.MIX_KEY):
                self._take_document(kind, name, data)
        self._take_conditions(turn["conditions"])
        for kind, name, data in written:
            if kind == "job":
                tenant, _, id = name.partition(".")
                self._read_job((tenant, id), data, turn["next_seq"])
        for kind, _, data in written:
            if kind == "share":  # after the jobs, whose ends it counts
                stored_history.take_history(self.cluster, fast_codec.decode_own(data))
        for job_key, code in self._parked.items():
            self._park(job_key, code)

    def _take_document(self, kind: str, name: str, data: bytes | None) -> None:
        document: Any = None if data is None else fast_codec.decode_own(data)
        if kind == "node":
            if document is None:
                self.conditions.pop(name, None)
                recovery.drop_node(self.cluster, name)
            else:
                self._take_node(document)
        elif kind == "tenant":
            if document is None:
                recovery.drop_tenant(self.cluster, name)
            else:
                recovery.take_tenant(self.cluster, document)
        elif kind == subjects.MIX_KEY:
            recovery.take_mix(self.cluster, document)

    def _take_node(self, document: NodeDocument) -> None:
        fresh, known = (
            documents.node_from_document(document),
            self.cluster.nodes.get(document["name"]),
        )
        if known is None:
            known = self.cluster.nodes[fresh.name] = fresh
            ledger.rebuild_gpus(fresh)
        else:
            is_same = known.generation == fresh.generation and known.facts == fresh.facts
            for name in _STORED_OF_NODE:
                setattr(known, name, getattr(fresh, name))
            if not is_same:
                ledger.rebuild_gpus(known)
            for uuid, gpu in known.gpus.items():
                gpu.cordon = known.cordons.get(uuid)
        if fresh.name in self.conditions:
            take_condition(known, self.conditions[fresh.name])
        self.cluster.nodes_changed.add(fresh.name)

    def _take_conditions(self, conditions: Mapping[str, NodeCondition]) -> None:
        for name, condition in conditions.items():
            self.conditions[name] = condition
            take_condition(self.cluster.nodes[name], condition)
            self.cluster.nodes_changed.add(name)

    def _read_job(self, key: JobKey, data: bytes | None, next_seq: int) -> None:
        job = None if data is None else self._before_the_plan(key, data)
        if job is not None and job.array is not None:
            return
        if job is not None and job.submit_seq >= next_seq:
            self._came_after.append(job)
        else:
            self._take_job(key, job)

    def _take_job(self, key: JobKey, new: Job | None) -> None:
        cluster, old = self.cluster, self.cluster.jobs.get(key)
        self._book(old, new)
        if new is None:
            if old is not None:
                arrays.leave(cluster, old)
            cluster.jobs.pop(key, None)
        else:
            cluster.jobs[key] = new
        was_waiting = old is not None and old.state not in HOLDING_STATES
        is_waiting = new is not None and new.state not in HOLDING_STATES
        if old and new and was_waiting and is_waiting and _is_as_before(old, new):
            return
        if old is not None and was_waiting:
            cluster.queue.discard(old)
        if new is not None and is_waiting:
            if (code := self._parked.get(key)) is not None:
                cluster.queue.park(new, VerdictCode(code))
            else:
                cluster.queue.add(new)

    def _book(self, old: Job | None, new: Job | None) -> None:
        """The grants of a job: entered and taken out where others hold than before."""
        cluster, before, after = self.cluster, _held(old), _held(new)
        if before.keys() != after.keys():
            job = old or new
            fairshare.settle(cluster, job.tenant if job else "", self._now)
        if old is not None:
            for place in [place for place in before if place not in after]:
                ledger.take_out(cluster, cluster.nodes[place[0]], old, before[place])
        if new is not None:
            for place in [place for place in after if place in before]:
                part = after[place]
                part.gpu_memory_mib = before[place].gpu_memory_mib
                cluster.nodes[part.node].attempts[ledger.ref(new, part)] = (new, part)
            for place in [place for place in after if place not in before]:
                ledger.enter(cluster, cluster.nodes[place[0]], new, after[place])

    def _park(self, key: JobKey, code: str | None) -> None:
        """Off the line, or in it as if it had just come."""
        job, queue = self.cluster.jobs.get(key), self.cluster.queue
        if job is None or job.state in HOLDING_STATES:
            return
        if code is not None:
            queue.park(job, VerdictCode(code))
        else:
            queue.discard(job)
            queue.add(job)

    def _before_the_plan(self, key: JobKey, data: bytes) -> Job:
        job = stored_jobs.read_job(data, self.cluster.tenants)
        if key in self._placed:
            job.attempts.pop()
            job.state = JobState.QUEUED
        elif key in self._stopped and job.attempts:
            attempt = job.attempts[-1]
            for part in (attempt, *attempt.members):
                part.stop = part.stop_requested_at = None
            state = attempt.state or AttemptState.ACCEPTED
            job.state = _STATE_BEFORE.get(state, JobState.ASSIGNED)
        return job


def _held(job: Job | None) -> dict[tuple[str, int, int | None], Attempt]:
    """What of a job holds a grant, by its node, attempt and rank."""
    if job is None or job.state not in HOLDING_STATES or job.last is None:
        return {}
    held = (part for part in job.last.parts if part.state is not AttemptState.ENDED)
    return {(part.node, part.number, part.rank): part for part in held}


def _take_images(cluster: Cluster, nodes: Mapping[str, Sequence[str]]) -> None:
    for image, names in nodes.items():
        cluster.images[image] = ImageRecord(present_on=dict.fromkeys(names))


def _is_as_before(old: Job, new: Job) -> bool:
    """True where a waiting job has kept its place in the queue."""
    return (old.order, old.shape) == (new.order, new.shape)


_STORED_OF_NODE: Final = (
    "machine_id",
    "boot_id",
    "facts",
    "generation",
    "scheduling",
    "scheduling_reason",
    "cordons",
    "aside",
    "forgotten_by",
)


def _load(cluster: Cluster, puts: Documents) -> None:
    """Tenants and nodes first, since jobs are entered in the books of nodes."""
    by_kind: dict[str, list[bytes]] = {}
    for key, data in puts.items():
        by_kind.setdefault(key.partition(".")[0], []).append(data)
    for data in by_kind.get(subjects.MIX_KEY, ()):
        recovery.take_mix(cluster, fast_codec.decode_own(data))
    for data in by_kind.get("tenant", ()):
        recovery.take_tenant(cluster, fast_codec.decode_own(data))
    for data in by_kind.get("node", ()):
        recovery.take_node(cluster, cast(NodeDocument, fast_codec.decode_own(data)))
    for data in by_kind.get("job", ()):
        recovery.load_job(cluster, data)
    # No planner sees an array, and no plan of a replay may hand out its tasks.
    for job in [job for job in cluster.jobs.values() if job.array is not None]:
        recovery.drop_job(cluster, job.key)
    recovery.fill_queue(cluster)
    cluster.queue.moved.clear()
