"""The loop's turns: what runs between them, and who may be told anything at their end."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from gpuyard.errors import Unavailable
from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import BEATS_PER_TURN, READS_PER_TURN, Leader, Query
from gpuyard_coordinator.store import Fenced


class Flood:
    """Beats without end; more come whenever the connection is read."""

    def __init__(self, beats: int = 10 * BEATS_PER_TURN) -> None:
        self.arrived = 0
        self.taken = 0
        self._beats = beats

    def __len__(self) -> int:
        return self._beats

    def take(self) -> None:
        self.taken += 1

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
    unused: Any = None
    return Leader(
        bus=unused,
        leadership=cast(Any, SimpleNamespace(lost=asyncio.Event(), is_valid=reign.is_valid)),
        store=cast(
            Any,
            SimpleNamespace(
                checkpoint_at=float("inf"),
                checkpoint_due=lambda now: False,
                forget=lambda keys: None,
                still_leads=reign.still_leads,
            ),
        ),
        outbox=cast(Any, SimpleNamespace(take_acknowledged=list)),
        inbox=Inbox(),
        beats=beats,
        cluster=cluster,
        planner=Planner(cluster, Packer(cluster.settings, mix=cluster.mix)),
        clock=Clock(),
        log=structlog.get_logger(),
        next_out=0,
        logs=unused,
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


async def test_a_deposed_leader_that_goes_on_answers_no_read() -> None:
    leading, told = leader(Flood(0), Reign(is_held=False, still=False)), list[Cluster]()
    leading.inbox.put(Query(told.append))
    with pytest.raises(Fenced):
        await leading.turn()
    assert told == []
