"""A whole yard in a variable, with verbs: the coordinator's core, agents and a store of bytes.

Every verb is one turn of the loop without its I/O: events are applied, what they changed goes
through the codec into `store`, and all invariants are checked. `plan` places what waits.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from gpuyard import codec
from gpuyard.errors import InvalidJob
from gpuyard.messages import JobDocument
from gpuyard.model.ids import JobKey
from gpuyard.model.node import GpuLink
from gpuyard.model.tenant import parse_tenant
from gpuyard.views.why import WhyView
from gpuyard_coordinator import reads, yard_counts
from gpuyard_coordinator.core import (
    adoption,
    dependencies,
    documents,
    explain,
    stored_jobs,
)
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import BeatOutcome, Effects, Outcome
from gpuyard_coordinator.core.events import (
    AwaitedLookedUp,
    CancelRequested,
    Event,
    HoldRequested,
    NodeBeat,
    NodeOrder,
    Refused,
    Submitted,
    TenantApplied,
    TenantDeleted,
    Tick,
)
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.core.state import Attempt, AttemptRef, Job, Node, Now, Settings
from gpuyard_coordinator.core.why import why
from gpuyard_coordinator.submissions import read_submission
from tests.support import placements, soundness
from tests.support.agents import (
    RTX_4090,
    Agent,
    Card,
    change,
    devices,
    gpu_sample,
    node_facts,
)
from tests.support.recording import Recording
from tests.support.stored import Stored
from tests.support.story import Story

TENANT = "default"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Yard:
    def __init__(self) -> None:
        self.mono = 1000.0
        self.clock_ahead_s = 0.0
        """How far the leader's wall clock is set ahead of the true time."""
        self.store = Stored()
        self.agents: dict[str, Agent] = {}
        self.cluster = Cluster("yard01", (1, 1), Settings())
        self.story = Story()
        self.outcome: Outcome | None = None
        self.beat_outcome: BeatOutcome | None = None
        self.is_restored = False
        self.recording = Recording()
        self._sequence = 0
        self._lead((1, 1))

    # What happens, each one turn.

    def node(
        self,
        name: str,
        *,
        gpus: int = 0,
        cpus: float | None = 64.0,
        memory_mib: int | None = 262144,
        links: list[GpuLink] | None = None,
        is_proven: bool = True,
        cards: Sequence[Card] = (),
        **facts_of: Any,
    ) -> Agent:
        """A host joins with `gpus` of one model or these `cards`; unless told otherwise it has
        beaten until it takes work. `facts_of` are its `cuda`, `driver`, `labels`, `address` and
        `gang_ports`."""
        cards = cards or [RTX_4090] * gpus
        gpus_of = devices(name, cards)
        facts = node_facts(
            gpus_of,
            cpus=cpus,
            memory_mib=memory_mib,
            links=links or [],
            **{"address": f"{name}.test"} | facts_of,
        )
        agent = Agent(name, facts, machine_id=f"machine-{name}")
        agent.samples = [gpu_sample(gpu["uuid"]) for gpu in gpus_of]
        self.agents[name] = agent
        self.beat(name)
        if is_proven:
            self.beat(name)
        return agent

    def submit(self, id: str = "j", *, tenant: str = TENANT, **spec: Any) -> Outcome:
        """A job arrives as a message; `spec` is written over an image alone."""
        body = {"id": id, "image": "busybox"} | spec
        return self.publish(codec.encode_json(body), tenant=tenant)

    def submit_all(self, ids: Iterable[str], **spec: Any) -> None:
        """Jobs that differ in their ids alone arrive in one turn."""
        effects = Effects()
        for id in ids:
            self.submit_into(effects, id, **spec)
        self._commit(effects)

    def submit_into(self, effects: Effects, id: str, **spec: Any) -> None:
        """A job arrives in a turn that is not committed yet."""
        self._sequence += 1
        body = codec.encode_json({"id": id, "image": "busybox"} | spec)
        self._apply(self._submission(body, TENANT, None), effects)

    def publish(
        self, data: bytes, *, tenant: str = TENANT, headers: dict[str, str] | None = None
    ) -> Outcome:
        self._sequence += 1
        return self._request(self._submission(data, tenant, headers))

    def cancel(self, id: str = "j", *, tenant: str = TENANT, message: str | None = None) -> Outcome:
        return self._request(CancelRequested(tenant, id, "mia", message=message))

    def hold(self, id: str = "j", *, tenant: str = TENANT, is_hold: bool = True) -> Outcome:
        is_over = (tenant, id) in self.store.done
        return self._request(HoldRequested(tenant, id, "mia", is_hold, is_over))

    def release(self, id: str = "j", *, tenant: str = TENANT) -> Outcome:
        return self.hold(id, tenant=tenant, is_hold=False)

    # What operators do, each one turn.

    def tenant(self, name: str = TENANT, **document: Any) -> Outcome:
        """A tenant's document is applied; what it leaves out is not limited."""
        kept = parse_tenant({"tenant": name} | document).normalised()
        return self._request(TenantApplied(name, kept, "olga"))

    def delete_tenant(self, name: str = TENANT) -> Outcome:
        return self._request(TenantDeleted(name, "olga"))

    def cordon(self, node: str, gpu: str | None = None, *, reason: str | None = None) -> Outcome:
        return self._request(NodeOrder("cordon", node, "olga", gpu, reason))

    def uncordon(self, node: str, gpu: str | None = None) -> Outcome:
        return self._request(NodeOrder("uncordon", node, "olga", gpu))

    def drain(self, node: str, *, after_s: float | None = None) -> Outcome:
        """With `after_s`, what still runs then is asked to end."""
        at = None if after_s is None else self._at(after_s)
        return self._request(NodeOrder("drain", node, "olga", reason="moving", deadline_at=at))

    def forget(self, node: str) -> Outcome:
        return self._request(NodeOrder("forget", node, "olga"))

    # What is asked of the yard; nothing of it changes.

    def why(self, id: str = "j", *, tenant: str = TENANT) -> WhyView:
        return why(self.cluster, self.job(id, tenant=tenant), self.now)

    def try_submit(self, *, tenant: str = TENANT, **spec: Any) -> dict[str, Any]:
        """A dry run; raises as the API does."""
        event = self._submission(codec.encode_json({"image": "busybox"} | spec), tenant, None)
        if isinstance(event, Refused):
            raise InvalidJob(event.faults)
        assert isinstance(event, Submitted)
        return reads.trial(self.cluster, self.planner, event, self.now)

    def plan(self, limit: int = 1000, *, is_last: bool = True) -> int:
        """Places what waits, explains what came and still waits; the number of placements.

        Every placement is one that the explanations allow, and within its tenant's limits. Where
        nothing was left for want of `limit`, a second plan right after it is empty, and no job is
        told that it fits. Not so without `is_last`: shares that a plan itself moves may let a job
        past another tenant's reservation in the next one.
        """
        effects = Effects()
        self.recording.before_plan(limit)
        plan = self.planner.plan(limit, self.now)
        for stopped in plan.preemptions:
            self._apply(stopped, effects)
        for placement in plan.placements:
            placements.check_planned(self.cluster, placement)
            self._apply(placement, effects)
            job = self.cluster.jobs[placement.tenant, placement.job]
            placements.check_limits(self.cluster, job)
            placements.check_neighbours(self.cluster, job)
        if not plan.is_partial:
            for waiting in self.planner.explain_new(sorted(self._fresh), self.now):
                self._apply(waiting, effects)
        self._commit(effects)
        self.recording.after_plan(self.now, plan)
        if not plan.is_partial and not self.cluster.untold and not self.cluster.queue.fresh:
            self._fresh.clear()
            if not is_last:
                return len(plan.placements)
            self.recording.before_plan(limit)
            again = self.planner.plan(limit, self.now)
            self.recording.after_plan(self.now, again)
            assert again.events == [], "a second plan right after a commit is empty"
            for shape in self.cluster.queue.by_shape:
                assert explain.explain(self.cluster, shape)[0] != "waiting_turn", shape
        if self.cluster.queue.fresh and not plan.is_partial and not self.cluster.untold:
            # What started left room for further tasks of an array.
            return len(plan.placements) + self.plan(limit)
        return len(plan.placements)

    def beat(self, name: str, agent: Agent | None = None) -> BeatOutcome | None:
        """A node beats, as `agent` where that is given; None where the beat was passed over."""
        agent = agent or self.agents[name]
        beat = cast(Any, codec.decode(codec.encode(agent.beat(self.now.at))))
        effects = Effects()
        ended = frozenset(key for key in adoption.unknown_jobs(beat) if key in self.store.done)
        self._apply(NodeBeat(beat, ended=ended), effects)
        self._commit(effects)
        self.beat_outcome = effects.beats[0] if effects.beats else None
        if self.beat_outcome is not None and self.beat_outcome.needs_wanted:
            self._tell(agent)
        return self.beat_outcome

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes, then lateness is judged."""
        self.mono += seconds
        effects = Effects()
        self._apply(Tick(), effects)
        self._commit(effects)

    def spend(self, seconds: float) -> None:
        """Time passes in which every node goes on beating."""
        self.mono += seconds
        for name in self.agents:
            self.beat(name)
        self.tick()

    def restart(self) -> None:
        """Another leader takes over from what is stored."""
        generation, sequence = self.cluster.token
        before = self.cluster
        self._lead((generation, sequence + 1))
        soundness.check_recovered(before, self.cluster, self.now)
        self._check()
        for key in dependencies.unknown(self.cluster):
            effects = Effects()
            self._apply(AwaitedLookedUp(*key, self.store.final_state(key)), effects)
            self._commit(effects)

    def back_up(self) -> Stored:
        return copy.deepcopy(self.store)

    def restore(self, backup: Stored) -> None:
        """The bus is lost, and a leader of the next generation starts from `backup`; its agents
        hear of it with their next beats."""
        generation, _ = self.cluster.token
        self.store, self.story, self.is_restored = backup, Story(), True
        for key, data in backup.jobs.items():
            told = cast(JobDocument, codec.decode(data))["events"]
            self.story.events[key] = [{"state": "queued", "kind": "lost"}] * told
        self._lead((generation + 1, 1))

    # What agents do with an attempt of theirs.

    def report(self, id: str = "j", *, tenant: str = TENANT, rank: int = 0, **changes: Any) -> None:
        """The node that holds the job, or this member of a gang, says `changes` of its attempt with
        its next beat."""
        attempt = self.attempt(id, tenant=tenant).parts[rank]
        report = self.agents[attempt.node].reports[tenant, id, attempt.number]
        change(report, **changes)
        self.beat(attempt.node)

    def start(self, id: str = "j", *, tenant: str = TENANT, rank: int = 0) -> None:
        how = {"state": "running", "started_at": self.now.at, "container_id": "c1"}
        self.report(id, tenant=tenant, rank=rank, **how)

    def end(
        self,
        id: str = "j",
        *,
        tenant: str = TENANT,
        reason: str = "exited",
        exit_code: int | None = None,
        message: str | None = None,
        rank: int = 0,
    ) -> None:
        """The attempt is over, as its agent tells it."""
        self.report(
            id,
            tenant=tenant,
            rank=rank,
            state="ended",
            reason=reason,
            exit_code=exit_code,
            message=message,
            ended_at=self.now.at,
        )

    # What a test looks at.

    @property
    def now(self) -> Now:
        return Now(self.mono, self._at(0))

    def _at(self, later_s: float) -> str:
        at = _EPOCH + timedelta(seconds=self.mono + self.clock_ahead_s + later_s)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def job(self, id: str = "j", *, tenant: str = TENANT) -> Job:
        """The job, live or as its kept record has it."""
        live = self.cluster.jobs.get((tenant, id))
        return live or stored_jobs.read_job(self.store.done[tenant, id], {})

    def done(self, id: str = "j", *, tenant: str = TENANT) -> JobDocument:
        record = self.store.kept((tenant, id))
        assert record is not None
        return record

    def attempt(self, id: str = "j", *, tenant: str = TENANT) -> Attempt:
        attempt = self.job(id, tenant=tenant).last
        assert attempt is not None
        return attempt

    def held(self, id: str = "j", *, tenant: str = TENANT) -> list[int]:
        """Indexes of the GPUs that a job's attempt holds."""
        attempt = self.attempt(id, tenant=tenant)
        gpus = self.cluster.nodes[attempt.node].gpus
        return [gpus[granted["uuid"]].facts["index"] for granted in attempt.gpus]

    def kinds(self, id: str = "j", *, tenant: str = TENANT) -> list[str]:
        """The kinds of a job's events, oldest first."""
        return [event["kind"] for event in self.events(id, tenant=tenant)]

    def events(self, id: str = "j", *, tenant: str = TENANT) -> list[dict[str, Any]]:
        return self.story.events.get((tenant, id), [])

    def core_node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    def states(self, *ids: str) -> list[str]:
        return [str(self.job(id).state) for id in ids]

    # The loop's part.

    def _lead(self, token: tuple[int, int]) -> None:
        self.log: list[tuple[Event, Now]] = []
        self.out: list[Any] = []
        self.start_of_log = copy.deepcopy(self.store)
        self.took_over = self.now
        self.cluster = self.store.recovered(token, self.now)
        self.planner = Planner(self.cluster, Packer(self.cluster.settings))
        self.recording.lead(self.cluster, self.planner)
        self._fresh: set[JobKey] = set()

    def _submission(
        self, data: bytes, tenant: str, headers: dict[str, str] | None
    ) -> Submitted | Refused | CancelRequested:
        return read_submission(
            tenant=tenant,
            user="mia",
            data=data,
            headers=headers,
            assigned_id=f"jyard0000-{self._sequence}",
            sequence=self._sequence,
        )

    def _request(self, event: Event) -> Outcome:
        if isinstance(event, Submitted | Refused | CancelRequested):
            event = replace(event, known=self.store.kept((event.tenant, event.id)))
        if isinstance(event, Submitted):
            named = [item["job"] for item in event.spec["after"]]
            states = {id: self.store.final_state((event.tenant, id)) for id in named}
            ended = {id: state for id, state in states.items() if state is not None}
            event = replace(event, ended=ended)
        effects = Effects()
        self._apply(event, effects)
        self._commit(effects)
        (self.outcome,) = effects.outcomes
        return self.outcome

    def _apply(self, event: Event, effects: Effects) -> None:
        self.log.append((event, self.now))
        apply(self.cluster, event, self.now, effects)

    def _commit(self, effects: Effects) -> None:
        self._fresh |= effects.jobs
        self.store.take(self.cluster, effects)
        self.recording.commit(self.cluster, effects)
        self.out += effects.out
        self.story.take(effects)
        self._check()
        for name in sorted(effects.wanted):
            if name in self.agents:
                self._tell(self.agents[name])

    def _tell(self, agent: Agent) -> None:
        node = self.cluster.nodes[agent.name]
        document = documents.wanted_document(self.cluster, node)
        if not agent.is_deaf:
            agent.take(cast(Any, codec.decode(codec.encode(document))))

    def _check(self) -> None:
        soundness.check(self.cluster, is_restored=self.is_restored)

    def check_replay(self) -> None:
        """The same events from the same start give the same state and effects, and the record of
        all plans the same decisions."""
        cluster = self.start_of_log.recovered(self.cluster.token, self.took_over)
        effects = Effects()
        for event, now in self.log:
            apply(cluster, event, now, effects)
        assert effects.out == self.out
        assert self.recording.replayed().difference is None
        soundness.assert_equal(cluster, self.cluster)


def ref(id: str = "j", number: int = 1, *, tenant: str = TENANT) -> AttemptRef:
    return (tenant, id, number)


def queue_by_reason(cluster: Cluster) -> dict[str, int]:
    """What `status` counts of a yard that stands still."""
    reasons = yard_counts.Reasons()
    while reasons.look_some(cluster):
        pass
    return reasons.count(cluster)
