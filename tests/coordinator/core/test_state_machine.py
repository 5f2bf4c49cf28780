"""Random fleets, jobs, failures and changes of leaders: what must hold holds after every step.

Beside the core's own books the machine keeps the world: which containers really run on which host.
Hosts go silent, start again, or are replaced by another machine of the same name while what they
ran goes on; the world never sees two containers of one job at a time.
"""

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuyard.model.reasons import EndReason
from gpuyard_coordinator.core.state import AttemptRef
from tests.support.agents import Agent, change
from tests.support.yard import Yard

NODES = ("a", "b", "c")
IDS = ("j0", "j1", "j2", "j3", "j4", "j5")
names = st.sampled_from(NODES)
ids = st.sampled_from(IDS)
picks = st.integers(0, 1000)
rarely = st.sampled_from([False, False, False, True])
ENDS = (
    EndReason.EXITED,
    EndReason.OUT_OF_MEMORY,
    EndReason.RUNTIME_ERROR,
    EndReason.NO_SPACE,
    EndReason.GPU_LOST,
    EndReason.IMAGE_NOT_FOUND,
    EndReason.TIME_LIMIT,
)
specs = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([0, 1, 1, 1, 2, "all", "device=0", "device=1,0"]),
        "priority": st.sampled_from([10, 50, 50, 90]),
        "retries": st.sampled_from([0, 5, 5, {"max": 1, "when": ["user", "platform"]}]),
    },
    optional={
        "cpus": st.sampled_from([1, 3, 100]),
        "memory_mib": st.sampled_from([1024, 4096]),
        "node": names,
    },
)


class YardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.yard = Yard()
        self.running: dict[AttemptRef, str] = {}
        """Containers of the world, and the machine and boot each runs on."""
        self.in_flight: dict[str, Agent] = {}
        """Beats that were sent and have not arrived: copies of what their agents were then."""
        self.plans_at_once = True
        """As the loop does; else events gather until the next plan."""
        self.starts_at_once = True
        """As agents do; they tell it with their next beat."""
        self.cancelled: set[str] = set()
        self.machines = 0

    @initialize(
        gpus=st.lists(st.integers(1, 4), min_size=3, max_size=3),
        jobs=st.lists(specs, min_size=3, max_size=3),
    )
    def fleet(self, gpus: list[int], jobs: list[dict[str, Any]]) -> None:
        for name, count in zip(NODES, gpus, strict=True):
            self.yard.node(name, gpus=count, cpus=4.0, memory_mib=8192)
        for id, spec in zip(IDS, jobs, strict=False):
            self.submit(id, spec)
        for name in NODES:
            self.start_all(name)

    @rule(id=ids, spec=specs, is_crossed=st.booleans())
    def submit(self, id: str, spec: dict[str, Any], is_crossed: bool = False) -> None:
        """A job comes; beats that were sent before may arrive after what it led to."""
        sent = copy.deepcopy(self.yard.agents)
        self.yard.submit(id, **spec)
        self._plan()
        for name, agent in sent.items() if is_crossed else ():
            self.yard.agents[name].seq += 1
            self.yard.beat(name, agent)
            self._plan()

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
            if agent.reports[key]["state"] == "accepted":
                self._step(agent, key, pick=1)

    def _beat(self, name: str) -> None:
        self.yard.beat(name)
        self._plan()

    @rule(id=ids)
    def cancel(self, id: str) -> None:
        if ("default", id) not in self.yard.store.done:
            self.cancelled.add(id)
        self.yard.cancel(id)

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

    @rule(seconds=st.sampled_from([1.0, 7.0, 31.0]), silent=st.sets(names))
    def time_passes(self, seconds: float, silent: set[str]) -> None:
        self.yard.mono += seconds
        for name in NODES:
            if name not in silent:
                self._beat(name)
        self.yard.tick()

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
        if report["state"] == "ended":
            return
        self._go_on_with(agent, key, pick)
        if agent.reports[key]["state"] == "ended":
            self.running.pop(key, None)

    def _go_on_with(self, agent: Agent, key: AttemptRef, pick: int) -> None:
        report = agent.reports[key]
        at = self.yard.now.at
        if key in agent.stops:
            change(report, state="ended", reason="cancelled", exit_code=143, ended_at=at)
        elif report["state"] == "accepted" and pick % 3:
            change(report, state="running", started_at=at, container_id="c")
            self.running[key] = f"{agent.machine_id}/{agent.boot_id}"
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
        host = f"{agent.machine_id}/{agent.boot_id}"
        kept = copy.deepcopy(agent.reports)
        agent.reboot()
        self.in_flight.pop(name, None)  # a host takes longer to start than a message to arrive
        self.running = {key: at for key, at in self.running.items() if at != host}
        if remembers:
            agent.reports = kept
            for report in kept.values():
                if report["state"] == "running":
                    change(report, state="ended", reason="runtime_lost", ended_at=self.yard.now.at)

    @rule(name=names, is_lost=st.booleans())
    def machine_is_replaced(self, name: str, is_lost: bool) -> None:
        """Another machine takes the name; what runs on the old one goes on, unheard."""
        if is_lost:
            self.time_passes(31.0, {name})
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

    @rule()
    def leader_changes(self) -> None:
        self.yard.check_replay()
        self.yard.restart()

    @precondition(lambda self: len(self.yard.store.done) > 2)
    @rule()
    def everything_comes_again(self) -> None:
        """Submissions are delivered at least once: no ended job runs again."""
        for tenant, id in sorted(self.yard.store.done):
            if not self.yard.done(id)["spec_sha256"]:
                continue
            spec = {key: value for key, value in self.yard.done(id)["spec"].items() if value}
            outcome = self.yard.submit(id, **spec)
            assert outcome.error is None
            assert (tenant, id) not in self.yard.cluster.jobs

    @invariant()
    def no_job_runs_twice_at_a_time(self) -> None:
        jobs = [(tenant, id) for tenant, id, _ in self.running]
        assert len(jobs) == len(set(jobs))

    @invariant()
    def every_accepted_job_lives_or_has_ended_once(self) -> None:
        for key, told in self.yard.story.events.items():
            ends = [e for e in told if e["kind"] in ("succeeded", "failed", "cancelled")]
            is_live = key in self.yard.cluster.jobs
            assert len(ends) == (0 if is_live else 1)
            assert (key in self.yard.store.done) == (not is_live)
            assert (key in self.yard.store.jobs) == is_live

    @invariant()
    def nothing_follows_a_cancel(self) -> None:
        """From its cancel on, a job is on its way to an end."""
        for id in self.cancelled:
            job = self.yard.cluster.jobs.get(("default", id))
            assert job is None or job.state == "stopping"

    def teardown(self) -> None:
        self.yard.check_replay()


YardMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestYard = YardMachine.TestCase
