"""Random fleets, jobs, failures and changes of leaders: what must hold holds after every step.

Beside the core's own books the machine keeps the world: which containers really run on which host.
Hosts go silent, start again, or are replaced by another machine of the same name while what they
ran goes on; the world never sees two containers of one job at a time. Tenants' limits come and go,
nodes and GPUs are cordoned, drained and forgotten; what `why` offers is tried.
"""

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuyard.errors import InvalidJob
from gpuyard.model import ids as model_ids
from gpuyard.model.ids import JobKey
from gpuyard.model.reasons import EndReason
from gpuyard.model.states import JobState
from gpuyard_coordinator.core import dependencies
from gpuyard_coordinator.core.state import AttemptRef
from tests.coordinator.core.drawn import IDS, NODES, TENANTS, ids, names, rarely, specs, tenants
from tests.coordinator.core.following import follow
from tests.support import soundness
from tests.support.agents import A100_40, MIG_MIXED, RTX_4090, Agent, Card, change
from tests.support.hosts import Hosts, host_of
from tests.support.yard import Yard

picks = st.integers(0, 1000)
ENDS = (
    EndReason.EXITED,
    EndReason.OUT_OF_MEMORY,
    EndReason.RUNTIME_ERROR,
    EndReason.NO_SPACE,
    EndReason.GPU_LOST,
    EndReason.IMAGE_NOT_FOUND,
    EndReason.TIME_LIMIT,
)
STEP_S = 25.0
"""Shorter than the fence of the jobs drawn: whoever beats at each step keeps what runs there."""


def tenant_of(id: str) -> str:
    return TENANTS[int(id[1:]) % 2]


class YardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.yard = Yard()
        self.hosts = Hosts(self.yard)
        self.in_flight: dict[str, Agent] = {}
        """Beats that were sent and have not arrived: copies of what their agents were then."""
        self.plans_at_once = True
        """As the loop does; else events gather until the next plan."""
        self.starts_at_once = True
        """As agents do; they tell it with their next beat."""
        self.stale: set[AttemptRef] = set()
        """Attempts that their host had accepted and not started when it restarted."""
        self.cancelled: set[JobKey] = set()
        self.machines = 0

    @initialize(
        cards=st.lists(
            st.lists(
                st.sampled_from([RTX_4090, RTX_4090, A100_40, MIG_MIXED]), min_size=1, max_size=4
            ),
            min_size=3,
            max_size=3,
        ),
        jobs=st.lists(specs, min_size=3, max_size=3),
    )
    def fleet(self, cards: list[list[Card]], jobs: list[dict[str, Any]]) -> None:
        for name, held in zip(NODES, cards, strict=True):
            labels = {"zone": "x"} if name == "b" else {}
            self.yard.node(name, cards=held, cpus=4.0, memory_mib=8192, labels=labels)
        for id, spec in zip(IDS, jobs, strict=False):
            self.submit(id, spec)
        for name in NODES:
            self.start_all(name)

    @rule(id=ids, spec=specs, is_crossed=st.booleans())
    def submit(self, id: str, spec: dict[str, Any], is_crossed: bool = False) -> None:
        """A job comes; beats that were sent before may arrive after what it led to."""
        sent = copy.deepcopy(self.yard.agents)
        outcome = self.yard.submit(id, tenant=tenant_of(id), **spec)
        if isinstance(outcome.error, InvalidJob):
            self._check_refusal(id, spec)
        self._plan()
        for name, agent in sent.items() if is_crossed else ():
            self.yard.agents[name].seq += 1
            self.yard.beat(name, agent)
            self._plan()

    def _check_refusal(self, id: str, spec: dict[str, Any]) -> None:
        """A job may wait for those that its tenant has, or had."""
        faults = self.yard.outcome.error.faults  # type: ignore[union-attr]
        for item in spec.get("after", ()) if faults[0].code == "unknown_job" else ():
            key = (tenant_of(id), item["job"])
            is_kept = key in self.yard.store.done and self.yard.done(key[1], tenant=key[0])
            if key not in self.yard.cluster.jobs and not (is_kept and is_kept["spec_sha256"]):
                return
        assert faults[0].code != "unknown_job"

    @rule(off=rarely)
    def plan_at_once(self, off: bool) -> None:
        self.plans_at_once = not off

    @rule(off=rarely)
    def start_at_once(self, off: bool) -> None:
        self.starts_at_once = not off

    def _plan(self) -> None:
        if self.plans_at_once:
            self.yard.plan()
        if self.starts_at_once:
            for agent in self.yard.agents.values():
                self._start_all(agent)

    def _start_all(self, agent: Agent) -> None:
        for key in sorted(agent.reports):
            if agent.reports[key]["state"] in ("accepted", "preparing"):
                self._step(agent, key, pick=1)

    def _beat(self, name: str) -> None:
        self.hosts.beat(name)
        self._plan()

    @rule(id=ids, task=st.sampled_from([None, None, 0, 1, 3]))
    def cancel(self, id: str, task: int | None) -> None:
        """A job, an array or one of its tasks, be it handed out or not."""
        tenant = tenant_of(id)
        if task is not None:
            id = f"{id}_{task}"
            if not dependencies.is_live(self.yard.cluster, (tenant, id)):
                return
        key = (tenant, id)
        is_kept = key in self.yard.store.done
        # A submission that was refused is over, as a job that ended is.
        if not is_kept or self.yard.done(id, tenant=tenant)["state"] == "cancelled":
            self.cancelled.add(key)
        self.yard.cancel(id, tenant=key[0])

    @rule(id=ids, is_hold=st.booleans())
    def hold(self, id: str, is_hold: bool) -> None:
        """Or its release, which the next plan acts on."""
        outcome = self.yard.hold(id, tenant=tenant_of(id), is_hold=is_hold)
        job = self.yard.cluster.jobs.get((tenant_of(id), id))
        is_queued = job is not None and job.state is JobState.QUEUED
        # An array that is stopped ends with its last task, and starts no other.
        is_stopped = job is not None and job.array is not None and job.array.stop is not None
        assert (outcome.error is None) == (is_queued and not is_stopped)
        self._plan()

    @rule(limit=st.sampled_from([1, 2, 100, 100, 100]))
    def plan(self, limit: int) -> None:
        self.yard.plan(limit)

    @rule(name=names, seconds=st.sampled_from([0.5, 2.0]))
    def beat(self, name: str, seconds: float) -> None:
        self.yard.mono += seconds
        self._beat(name)

    @rule(name=names)
    def beat_is_sent(self, name: str) -> None:
        self.in_flight[name] = copy.deepcopy(self.yard.agents[name])
        self.yard.agents[name].seq += 1

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks)
    def beat_arrives_late(self, pick: int) -> None:
        name = sorted(self.in_flight)[pick % len(self.in_flight)]
        self.yard.beat(name, self.in_flight.pop(name))
        self._plan()

    @rule(seconds=st.sampled_from([1.0, 7.0, 35.0, 65.0, 130.0, 310.0]), silent=st.sets(names))
    def time_passes(self, seconds: float, silent: set[str]) -> None:
        self.hosts.spend(seconds, silent=silent, step_s=STEP_S)
        self.yard.tick()
        self._plan()

    @rule(name=names, answers=st.sampled_from([True, True, False]))
    def keeper(self, name: str, answers: bool) -> None:
        self.hosts.change_keeper(self.yard.agents[name], answers=answers)
        self._plan()

    @rule(name=names, deaf=rarely)
    def hear(self, name: str, deaf: bool) -> None:
        self.yard.agents[name].is_deaf = deaf

    @rule(name=names, adopting=rarely)
    def adopt(self, name: str, adopting: bool) -> None:
        self.yard.agents[name].adopting = adopting

    @rule(name=names, pick=picks, beats=st.booleans())
    def go_on(self, name: str, pick: int, beats: bool) -> None:
        """An agent takes a step with one of its attempts, and perhaps tells it at once."""
        agent = self.yard.agents[name]
        if agent.reports:
            key = sorted(agent.reports)[pick % len(agent.reports)]
            self._step(agent, key, pick)
        if beats:
            self._beat(name)

    @rule(name=names)
    def start_all(self, name: str) -> None:
        self._start_all(self.yard.agents[name])
        self._beat(name)

    def _step(self, agent: Agent, key: AttemptRef, pick: int) -> None:
        report = agent.reports[key]
        if report["state"] == "ended" or key in self.stale:
            return  # no agent starts in one boot what it accepted in another
        self._go_on_with(agent, key, pick)
        if agent.reports[key]["state"] == "ended":
            self.hosts.running.pop((key, agent.name), None)

    def _go_on_with(self, agent: Agent, key: AttemptRef, pick: int) -> None:
        report = agent.reports[key]
        at = self.yard.now.at
        if key in agent.stops:
            why = agent.stops[key]
            change(report, state="ended", reason=why, exit_code=143, ended_at=at)
        elif report["state"] in ("accepted", "preparing") and pick % 3:
            self.hosts.start(agent, key)
        else:
            reason = ENDS[pick % len(ENDS)]
            code = pick % 2 if reason is EndReason.EXITED else None
            change(report, state="ended", reason=str(reason), exit_code=code, ended_at=at)

    @rule(name=names)
    def agent_restarts(self, name: str) -> None:
        self.yard.agents[name].restart()

    @rule(name=names, remembers=st.booleans())
    def host_restarts(self, name: str, remembers: bool) -> None:
        """What ran there is dead; its agent may have kept a journal of it."""
        agent = self.yard.agents[name]
        host = host_of(agent)
        kept = copy.deepcopy(agent.reports)
        agent.reboot()
        self.in_flight.pop(name, None)  # a host takes longer to start than a message to arrive
        self.hosts.die(host)
        if remembers:
            agent.reports = kept
            for key, report in kept.items():
                if report["state"] in ("accepted", "preparing"):
                    self.stale.add(key)
                if report["state"] == "running":
                    change(report, state="ended", reason="runtime_lost", ended_at=self.yard.now.at)

    @rule(name=names, is_lost=st.booleans())
    def machine_is_replaced(self, name: str, is_lost: bool) -> None:
        """Another machine takes the name; what runs on the old one goes on, unheard."""
        if is_lost:
            self.time_passes(35.0, {name})
        old = self.yard.agents[name]
        self.machines += 1
        new = Agent(name, old.facts, machine_id=f"{old.machine_id}-{self.machines}")
        new.boot_id = f"boot-{self.machines * 1000}"
        new.samples, new.generation = old.samples, old.generation
        new.restart()
        self.yard.agents[name] = new
        self._beat(name)

    @rule(
        name=names,
        index=st.integers(0, 3),
        health=st.sampled_from(["healthy", "healthy", "lost", "dirty"]),
    )
    def gpu_changes(self, name: str, index: int, health: str) -> None:
        agent = self.yard.agents[name]
        if index < len(agent.samples):
            agent.change_sample(index, health={"state": health, "reason": None, "since": None})

    @rule(name=names)
    def inventory_changes(self, name: str) -> None:
        agent = self.yard.agents[name]
        agent.facts = copy.deepcopy(agent.facts)
        agent.facts["labels"]["n"] = str(agent.generation)
        agent.generation += 1

    @rule(tenant=st.sampled_from(TENANTS), document=tenants)
    def limits_change(self, tenant: str, document: dict[str, Any]) -> None:
        """At once and ending nothing."""
        held = {key for key, job in self.yard.cluster.jobs.items() if job.state != "queued"}
        assert self.yard.tenant(tenant, **document).error is None
        assert all(self.yard.cluster.jobs[key].state != "queued" for key in held)
        self._plan()

    @rule(tenant=st.sampled_from(TENANTS))
    def limits_go(self, tenant: str) -> None:
        outcome = self.yard.delete_tenant(tenant)
        is_used = any(key[0] == tenant for key in self.yard.cluster.jobs)
        assert outcome.error is None or is_used or tenant not in self.yard.cluster.tenants
        self._plan()

    @rule(
        name=names,
        gpu=st.sampled_from([None, "0", "1"]),
        reason=st.sampled_from([None, "repair", "mine"]),
    )
    def cordon(self, name: str, gpu: str | None, reason: str | None) -> None:
        self.yard.cordon(name, gpu, reason=reason)

    @rule(name=names, gpu=st.sampled_from([None, None, "0", "1"]))
    def uncordon(self, name: str, gpu: str | None) -> None:
        self.yard.uncordon(name, gpu)
        self._plan()

    @rule(name=names, after_s=st.sampled_from([None, 0.0, 5.0]))
    def drain(self, name: str, after_s: float | None) -> None:
        self.yard.drain(name, after_s=after_s)

    @rule(name=names)
    def forget(self, name: str) -> None:
        """A host that died, as did all that had its name before, and was silent for long; should
        it start again, it joins anew."""
        if name not in self.yard.cluster.nodes:
            return
        self.host_restarts(name, remembers=False)
        own = f"machine-{name}"
        for host in [host for host in self.hosts.running.values() if host.startswith(own)]:
            self.hosts.die(host)
        self.time_passes(35.0, {name})
        assert self.yard.forget(name).error is None
        assert not any(
            any(ref[:2] == job.key for ref in node.attempts)
            for job in self.yard.cluster.jobs.values()
            for node in self.yard.cluster.nodes.values()
            if node.name == name
        )
        self._plan()

    @rule(pick=picks)
    def an_offered_change_starts_the_job(self, pick: int) -> None:
        """In another yard that is the same but for it, where nobody else waits."""
        self.yard.plan()
        jobs = self.yard.cluster.jobs
        queued = {key for key, job in jobs.items() if job.state is JobState.QUEUED}
        # The tasks of an array wait beside their like, which cannot be left out.
        of_arrays = {key for key in queued if jobs[key].array or model_ids.array_of(key[1])}
        waiting = sorted(queued - of_arrays)
        if waiting:
            tenant, id = waiting[pick % len(waiting)]
            for offered in self.yard.why(id, tenant=tenant)["changes"]:
                follow(self.yard, offered, id, tenant=tenant)

    @rule()
    def leader_changes(self) -> None:
        self.yard.check_replay()
        self.yard.tick()  # a new leader puts in line at once whose time has come
        self.yard.restart()

    @precondition(lambda self: len(self.yard.store.done) > 2)
    @rule()
    def everything_comes_again(self) -> None:
        """Submissions are delivered at least once: no ended job runs again."""
        for tenant, id in sorted(self.yard.store.done):
            done = self.yard.done(id, tenant=tenant)
            if not done["spec_sha256"] or model_ids.array_of(id) is not None:
                continue
            spec = {key: value for key, value in done["spec"].items() if value}
            outcome = self.yard.submit(id, tenant=tenant, **spec)
            assert outcome.error is None
            assert (tenant, id) not in self.yard.cluster.jobs

    @invariant()
    def no_job_runs_twice_at_a_time(self) -> None:
        """Nor two attempts of a gang; the members of one are on nodes of different names."""
        attempts = {(tenant, id, number) for (tenant, id, number), _ in self.hosts.running}
        assert len(attempts) == len({(tenant, id) for tenant, id, _ in attempts})
        for (tenant, id, _), name in self.hosts.running:
            job = self.yard.cluster.jobs.get((tenant, id))
            alone = job is not None and job.shape.nodes == 1
            others = {n for (t, i, _), n in self.hosts.running if (t, i) == (tenant, id)} - {name}
            assert not (alone and others)

    @invariant()
    def every_accepted_job_lives_or_has_ended_once(self) -> None:
        for key, told in self.yard.story.events.items():
            ends = [e for e in told if e["kind"] in ("succeeded", "failed", "cancelled")]
            is_live = key in self.yard.cluster.jobs
            assert len(ends) == (0 if is_live else 1)
            is_done = key in self.yard.store.done and self.yard.done(key[1], tenant=key[0])
            assert bool(is_done and is_done["spec_sha256"]) == (not is_live)
            assert (key in self.yard.store.jobs) == is_live

    @invariant()
    def the_gpus_are_counted_right(self) -> None:
        soundness.check_gpu_counts(self.yard.cluster)

    @invariant()
    def what_is_to_wait_waits(self) -> None:
        for job in self.yard.cluster.jobs.values():
            is_due = job.key in self.yard.cluster.deadlines
            is_stopping = job.array is not None and job.array.stop is not None
            assert job.deadline is None or is_due or job.attempts or is_stopping
            assert job.hold is None or job.state is JobState.QUEUED
            assert not job.after or job.key in self.yard.cluster.queue.parked
            for awaited in job.after:
                is_over = (job.tenant, awaited.job) not in self.yard.cluster.jobs
                assert not is_over, f"{job.key} waits for one that is over"

    @invariant()
    def nothing_follows_a_cancel(self) -> None:
        """From its cancel on, a job is on its way to an end."""
        for key in self.cancelled:
            job = self.yard.cluster.jobs.get(key)
            stop = job.array.stop if job is not None and job.array is not None else None
            assert job is None or job.state == "stopping" or stop is not None

    def teardown(self) -> None:
        self.yard.check_replay()


YardMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestYard = YardMachine.TestCase
