"""How a request reaches the leader's state: reads between two commits, changes through events."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gpuyard_coordinator.calls import Call
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Outcome
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import Arrival, Query

T = TypeVar("T")


class Seat(Protocol):
    """Whose state is read: the leader, or a standby that follows it."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def planner(self) -> Planner: ...
    @property
    def clock(self) -> Clock: ...


@dataclass(slots=True)
class Desk:
    inbox: Inbox
    _walking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, read: Callable[[Cluster], T]) -> T:
        """The answer of `read` from the state between two commits; raises what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run(cluster: Cluster) -> None:
            if future.done():  # whoever asked was cancelled
                return
            try:
                answer = read(cluster)
            except Exception as error:  # noqa: BLE001 — a read's fault must not end the leader's turn
                future.set_exception(error)
            else:
                future.set_result(answer)

        self.inbox.put(Query(run))
        return await future

    async def walk(self, read: Callable[[Cluster], T]) -> T:
        """The same for what looks at a page of jobs or at every node: one of them a turn, so that
        however many ask, a placement waits for one answer at most."""
        async with self._walking:
            return await self.read(read)

    async def change(self, call: Call, arrival: Arrival) -> Outcome:
        """Applies an event and waits for its commit; raises what the core answered."""
        call.outcome = asyncio.get_running_loop().create_future()
        self.inbox.put(arrival)
        outcome = await call.outcome
        if outcome.error is not None:
            raise outcome.error
        return outcome
