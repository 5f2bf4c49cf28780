"""Cut cables, dead keepers, reboots, replaced machines and changes of leaders, and nothing else:
few enough kinds of trouble that every order of them is met."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.agents import Agent
from tests.support.hosts import Hosts, host_of
from tests.support.yard import Yard

NODES = ("a", "b", "c")
IDS = ("j0", "j1")
FENCE_S = 60
STEP_S = 25.0
"""Less than makes a node lost: whoever beats at each step keeps what runs there."""
picks = st.sampled_from([0, 0, 0, 1, 2])
"""Of nodes, those first that run something: trouble elsewhere shows little."""


class PartitionMachine(RuleBasedStateMachine):
    """Two jobs that are tried again at once, on three nodes; agents start what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.yard = Yard()
        self.hosts = Hosts(self.yard)
        self.machines = 0

    @initialize(rules=st.lists(st.sampled_from(["keep", FENCE_S, FENCE_S]), min_size=2, max_size=2))
    def jobs_run(self, rules: list[str | int]) -> None:
        for name in NODES:
            self.yard.node(name, gpus=2)
            self.hosts.beat(name)
        for id, rule_ in zip(IDS, rules, strict=True):
            on_partition = rule_ if isinstance(rule_, str) else {"stop_after": rule_}
            retries = {"max": 100, "backoff": 0}
            self.yard.submit(id, gpus=1, retries=retries, on_partition=on_partition)
        self._go_on()

    def _go_on(self) -> None:
        """The yard places what waits, and whoever can be reached starts it and tells."""
        self.yard.tick()
        self.yard.plan()
        for name, agent in sorted(self.yard.agents.items()):
            for key in [k for k, r in agent.reports.items() if r["state"] == "accepted"]:
                if key not in agent.stops:
                    self.hosts.start(agent, key)
            if self.yard.core_node(name).state == "ready" and not agent.is_deaf:
                self.hosts.beat(name)

    def _pick(self, pick: int) -> str:
        busy = [n for n, a in self.yard.agents.items() if host_of(a) in self.hosts.running.values()]
        return [*sorted(busy), *sorted(set(NODES) - set(busy))][pick]

    @rule(picked=st.sets(picks, min_size=1), seconds=st.sampled_from([35.0, 80.0, 130.0, 130.0]))
    def cables_are_cut(self, picked: set[int], seconds: float) -> None:
        silent = {self._pick(pick) for pick in picked}
        for name in silent:
            self.yard.agents[name].is_deaf = True
        self.hosts.spend(seconds, silent=silent, step_s=STEP_S)
        self._go_on()
        self.hosts.spend(1.0, silent=silent, step_s=STEP_S)
        for name in silent:
            self.yard.agents[name].is_deaf = False

    @rule()
    def all_is_well_again(self) -> None:
        self.hosts.spend(STEP_S, silent=set(), step_s=STEP_S)
        self._go_on()

    @rule(pick=picks, answers=st.booleans())
    def keeper_changes(self, pick: int, answers: bool) -> None:
        self.hosts.change_keeper(self.yard.agents[self._pick(pick)], answers=answers)

    @rule(pick=picks)
    def a_host_without_a_keeper_is_cut_off(self, pick: int) -> None:
        self.keeper_changes(pick, answers=False)
        self.cables_are_cut({pick}, 130.0)

    @rule(pick=picks)
    def a_machine_is_replaced_right_before_its_leader(self, pick: int) -> None:
        self.machine_is_replaced(pick)
        self.leader_changes()

    @rule(pick=picks)
    def agent_restarts(self, pick: int) -> None:
        name = self._pick(pick)
        self.yard.agents[name].restart()
        self.hosts.beat(name)

    @rule(pick=picks)
    def host_restarts(self, pick: int) -> None:
        name = self._pick(pick)
        agent = self.yard.agents[name]
        self.hosts.die(host_of(agent))
        agent.reboot()
        self.hosts.beat(name)
        self._go_on()

    @rule(pick=picks)
    def machine_is_replaced(self, pick: int) -> None:
        """The old one goes on, unheard, with whatever its keeper was told."""
        name = self._pick(pick)
        old = self.yard.agents[name]
        self.hosts.spend(35.0, silent={name}, step_s=STEP_S)
        self.yard.tick()
        self.machines += 1
        new = Agent(name, old.facts, machine_id=f"machine-{name}-{self.machines}")
        new.boot_id, new.samples = f"boot-{self.machines * 1000}", old.samples
        new.generation = old.generation
        new.restart()
        self.yard.agents[name] = new
        self.hosts.beat(name)

    @rule()
    def leader_changes(self) -> None:
        self.yard.check_replay()
        self.yard.restart()
        for name in NODES:
            self.hosts.beat(name)
        self._go_on()

    @invariant()
    def no_job_runs_twice_at_a_time(self) -> None:
        jobs = [(tenant, id) for (tenant, id, _), _ in self.hosts.running]
        assert len(jobs) == len(set(jobs))


PartitionMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestPartitions = PartitionMachine.TestCase
