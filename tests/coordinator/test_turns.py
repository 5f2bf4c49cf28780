"""The loop's turns: what runs between and beside them, and who is told anything at their end."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from gpuyard.errors import Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.effects import Outcome
from gpuyard_coordinator.core.events import TenantApplied
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import BEATS_PER_TURN, READS_PER_TURN, Arrival, Leader, Query, Turn
from gpuyard_coordinator.store import Fenced, Write
from gpuyard_coordinator.telling import Teller


class Flood:
    """Beats without end; more come whenever the connection is read."""

    def __init__(self, beats: int = 10 * BEATS_PER_TURN) -> None:
        self.arrived = 0
        self.taken = 0
        self.ahead = 0
        """How many can be read ahead."""
        self._beats = beats

    def __len__(self) -> int:
        return self._beats

    def take(self) -> None:
        self.taken += 1

    def read_ahead(self) -> bool:
        self.ahead = max(0, self.ahead - 1)
        return self.ahead > 0

    def close(self) -> None:
        pass


@dataclass
class Reign:
    """Whether the lease is held, and whom the bus takes for the leader."""

    is_held: bool
    still: bool | Exception = True

    def is_valid(self, now: float) -> bool:
        return self.is_held

    async def still_leads(self) -> bool:
        if isinstance(self.still, Exception):
            raise self.still
        return self.still


def leader(beats: Flood, reign: Reign | None = None) -> Leader:
    reign = reign or Reign(is_held=True)
    cluster = Cluster(yard="y", token=(1, 1))
    leadership = cast(Any, SimpleNamespace(lost=asyncio.Event(), is_valid=reign.is_valid))
    unused: Any = None
    return Leader(
        leadership=leadership,
        store=cast(
            Any,
            SimpleNamespace(
                checkpoint_at=float("inf"),
                checkpoint_due=lambda now: False,
                forget=lambda keys: None,
                still_leads=reign.still_leads,
            ),
        ),
        outbox=cast(Any, SimpleNamespace(take_acknowledged=list, push_packed=lambda n, m: None)),
        inbox=Inbox(),
        beats=beats,
        cluster=cluster,
        planner=Planner(cluster, Packer(cluster.settings, mix=cluster.mix)),
        clock=Clock(),
        teller=Teller(unused, leadership, cluster, Clock(), structlog.get_logger(), unused),
        next_out=0,
    )


async def test_others_run_between_any_two_turns_and_read_on_before_more_beats_are() -> None:
    beats = Flood()
    leading = leader(beats)

    async def read_the_connection() -> None:
        for _ in range(5 * READS_PER_TURN):
            beats.arrived += 1
            await asyncio.sleep(0)
        leading.stop()

    reading = asyncio.create_task(read_the_connection())
    await asyncio.wait_for(leading.run(), 20)
    await reading
    assert 0 < beats.taken <= 7 * BEATS_PER_TURN


async def test_keys_that_came_back_are_deleted_but_for_those_of_live_jobs() -> None:
    leading, deleted = leader(Flood(0)), list[str]()

    def forget(keys: list[str]) -> None:
        deleted.extend(keys)
        leading.stop()

    leading.store.forget = forget  # type: ignore[method-assign, assignment]
    leading.cluster.jobs["t", "j2"] = cast(Any, SimpleNamespace())
    leading.clear_away(["job.t.j1", "job.t.j2"])
    await asyncio.wait_for(leading.run(), 20)
    assert deleted == ["job.t.j1"]


@pytest.mark.parametrize(
    "reign",
    [
        Reign(is_held=True, still=False),  # not asked
        Reign(is_held=False, still=True),
        Reign(is_held=False, still=Unavailable("no answer")),
    ],
)
async def test_a_read_is_answered_while_nobody_else_is_known_to_lead(reign: Reign) -> None:
    leading, told = leader(Flood(0), reign), list[Cluster]()
    leading.inbox.put(Query(told.append))
    await leading.turn()
    assert told == [leading.cluster]


class Slow:
    """A store whose commits wait for the bus's answer, which may be that somebody else leads."""

    def __init__(self) -> None:
        self.commits: list[tuple[list[str], asyncio.Future[int]]] = []
        """Keys, and the answer."""

    async def commit(self, writes: list[Write]) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.commits.append(([write.key for write in writes], answer))
        return await answer


class Asked:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def answer(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Scene:
    """A leader in the middle of a turn that changes a tenant, whose commit has no answer yet."""

    def __init__(self, beats: Flood) -> None:
        self.store = Slow()
        self.leading = leader(beats)
        self.leading.store = cast(Any, self.store)
        self.first = self.ask("one")
        self.turning: asyncio.Task[Turn | None]

    def ask(self, tenant: str) -> Asked:
        asked = Asked()
        document = {"tenant": tenant, "limits": {"running_jobs": 1}}
        self.leading.inbox.put(Arrival(TenantApplied(tenant, document, actor="op", ref=asked)))
        return asked

    async def begin(self, decided: Turn | None = None) -> None:
        self.turning = asyncio.create_task(self.leading.turn(decided))
        await self.go_on()

    async def go_on(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_nothing_is_told_before_the_commit_is_stored_and_beats_are_read_meanwhile() -> None:
    beats = Flood(0)
    beats.ahead = 5
    scene = Scene(beats)
    await scene.begin()
    assert scene.store.commits[0][0] == ["tenant.one", "out.0"]
    assert beats.ahead == 0
    assert not scene.turning.done() and scene.first.outcomes == []
    scene.store.commits[0][1].set_result(1)
    assert await scene.turning is None
    assert len(scene.first.outcomes) == 1


async def test_a_turn_that_was_decided_ahead_is_committed_and_told_after_the_one_before() -> None:
    scene = Scene(Flood(BEATS_PER_TURN))
    turning = asyncio.create_task(scene.leading.turn())
    await asyncio.sleep(0)
    second = scene.ask("two")
    await scene.go_on()
    assert list(scene.leading.cluster.tenants) == ["one", "two"]
    assert [keys for keys, _ in scene.store.commits] == [["tenant.one", "out.0"]]
    scene.store.commits[0][1].set_result(1)
    ahead = await turning
    assert (len(scene.first.outcomes), len(second.outcomes)) == (1, 0)

    await scene.begin(ahead)
    assert scene.store.commits[1][0] == ["tenant.two", "out.1"] and second.outcomes == []
    scene.store.commits[1][1].set_result(2)
    await scene.turning
    assert len(second.outcomes) == 1


async def test_who_is_to_stop_decides_nothing_ahead() -> None:
    scene = Scene(Flood(BEATS_PER_TURN))
    scene.leading.stop()
    turning = asyncio.create_task(scene.leading.turn())
    await scene.go_on()
    scene.store.commits[0][1].set_result(1)
    assert await turning is None
    assert len(scene.first.outcomes) == 1


async def test_of_two_turns_nothing_is_told_where_the_first_was_not_stored() -> None:
    scene = Scene(Flood(BEATS_PER_TURN))
    turning = asyncio.create_task(scene.leading.turn())
    await asyncio.sleep(0)
    second = scene.ask("two")
    await scene.go_on()
    scene.store.commits[0][1].set_exception(Fenced())
    with pytest.raises(Fenced):
        await turning
    assert scene.first.outcomes == second.outcomes == []
    assert len(scene.store.commits) == 1


async def test_a_read_sees_the_state_of_its_own_turn() -> None:
    """So nothing is decided ahead before it had its answer."""
    scene, seen = Scene(Flood(BEATS_PER_TURN)), list[list[str]]()
    scene.leading.inbox.put(Query(lambda cluster: seen.append(list(cluster.tenants))))
    turning = asyncio.create_task(scene.leading.turn())
    await asyncio.sleep(0)
    scene.ask("two")
    await scene.go_on()
    assert seen == []
    scene.store.commits[0][1].set_result(1)
    assert await turning is None
    assert seen == [["one"]]


async def test_a_deposed_leader_that_goes_on_answers_no_read() -> None:
    leading, told = leader(Flood(0), Reign(is_held=False, still=False)), list[Cluster]()
    leading.inbox.put(Query(told.append))
    with pytest.raises(Fenced):
        await leading.turn()
    assert told == []
