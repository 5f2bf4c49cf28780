"""The hosts behind the agents of a yard: which containers really run, and what keepers end.

A keeper counts the fence of what runs on its host from the last beat that was answered. It is told
by the agent alone, and goes on without it, without the bus and without its name in the yard.
"""

from dataclasses import dataclass, field
from typing import Final

from gpuyard_coordinator.core.state import AttemptRef
from tests.support.agents import Agent, change
from tests.support.yard import Yard

NEVER: Final = -float("inf")
Container = tuple[AttemptRef, str]
"""An attempt and the name of the node that has it, since a gang's is on several."""


@dataclass(slots=True)
class Hosts:
    yard: Yard
    running: dict[Container, str] = field(default_factory=dict)
    """Containers of the world, and the machine and boot each runs on."""
    fences: dict[Container, float] = field(default_factory=dict)
    """When keepers end what runs, unless its node's lease is renewed before."""
    renewed: dict[str, float] = field(default_factory=dict)
    """When each host's lease was renewed last."""

    def beat(self, name: str) -> None:
        """A node beats; the answer renews its lease, and so the fences of what runs there."""
        self.keep()
        agent = self.yard.agents[name]
        outcome = self.yard.beat(name)
        if outcome is not None and outcome.status == "ok" and not agent.is_deaf:
            self.renewed[host_of(agent)] = self.yard.mono
            self.arm(agent)

    def spend(self, seconds: float, *, silent: set[str], step_s: float) -> None:
        """Time passes in which all but the silent nodes beat at each step."""
        left = seconds
        while left > 0:
            self.yard.mono += min(left, step_s)
            left -= step_s
            for name in sorted(set(self.yard.agents) - silent):
                self.beat(name)
            self.keep()

    def start(self, agent: Agent, key: AttemptRef) -> None:
        """Starts what an agent accepted, unless its fence would be over before it begins; a member
        of a gang is made and waits until the document says that all of them start."""
        gang = agent.entries[key].get("gang") if key in agent.entries else None
        if gang is not None and not gang["may_start"]:
            change(agent.reports[key], state="preparing", prepared=True)
            return
        fence_s = agent.fences.get(key, float("inf"))
        if self._lease_of(agent) + fence_s <= self.yard.mono:
            return
        at = self.yard.now.at
        change(agent.reports[key], state="running", started_at=at, container_id="c")
        change(agent.reports[key], prepared=False)
        self.running[key, agent.name] = host_of(agent)
        self.arm(agent)

    def arm(self, agent: Agent) -> None:
        """Hands the keeper of a host the fences of what runs there, counted from its lease."""
        for key, fence_s in agent.fences.items():
            if self.running.get((key, agent.name)) == host_of(agent) and agent.self_stop:
                self.fences[key, agent.name] = self._lease_of(agent) + fence_s

    def keep(self) -> None:
        """Keepers end what is due on any host, heard of or not."""
        for container, due in list(self.fences.items()):
            if self.yard.mono < due:
                continue
            del self.fences[container]
            host = self.running.pop(container, None)
            for agent in self.yard.agents.values():
                report = agent.reports.get(container[0])
                if host_of(agent) == host and report is not None:
                    change(report, state="ended", reason="node_lost", ended_at=self.yard.now.at)

    def change_keeper(self, agent: Agent, *, answers: bool) -> None:
        """A keeper dies or is back. While it is away its host ends nothing by itself, and the agent
        has said so before anything else goes wrong."""
        agent.self_stop = answers
        self.arm(agent)
        self.beat(agent.name)
        is_told = self.yard.beat_outcome is not None and self.yard.beat_outcome.status == "ok"
        if not answers and is_told:
            own = {key for key, host in self.running.items() if host == host_of(agent)}
            self.fences = {key: due for key, due in self.fences.items() if key not in own}

    def die(self, host: str) -> None:
        """A host stops: nothing of it runs any more."""
        self.running = {key: at for key, at in self.running.items() if at != host}

    def _lease_of(self, agent: Agent) -> float:
        return self.renewed.get(host_of(agent), NEVER)


def host_of(agent: Agent) -> str:
    return f"{agent.machine_id}/{agent.boot_id}"
