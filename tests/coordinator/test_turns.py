"""The loop between its turns: a flood of beats keeps nothing else from running."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import structlog

from gpuyard_coordinator.clock import Clock
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.packing import Packer
from gpuyard_coordinator.core.plan import Planner
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import BEATS_PER_TURN, READS_PER_TURN, Leader


class Flood:
    """Beats without end; more come whenever the connection is read."""

    def __init__(self) -> None:
        self.arrived = 0
        self.taken = 0

    def __len__(self) -> int:
        return 10 * BEATS_PER_TURN

    def take(self) -> None:
        self.taken += 1

    def close(self) -> None:
        pass


def leader(beats: Flood) -> Leader:
    cluster = Cluster(yard="y", token=(1, 1))
    unused: Any = None
    return Leader(
        bus=unused,
        leadership=cast(Any, SimpleNamespace(lost=asyncio.Event())),
        store=cast(
            Any,
            SimpleNamespace(
                checkpoint_at=float("inf"),
                checkpoint_due=lambda now: False,
                forget=lambda keys: None,
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
