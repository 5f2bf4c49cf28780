"""Who asks the leader may give up before it comes to the question."""

import asyncio

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Settings
from gpuyard_coordinator.desk import Desk
from gpuyard_coordinator.inbox import Inbox
from gpuyard_coordinator.loop import Query


async def test_a_read_whose_asker_is_gone_is_no_fault_of_the_turn() -> None:
    inbox, asked = Inbox(), list[Cluster]()
    asking = asyncio.create_task(Desk(inbox).read(asked.append))
    await asyncio.sleep(0)
    query = inbox.take()
    assert isinstance(query, Query)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    query.run(Cluster(yard="", token=(0, 0), settings=Settings()))
    assert asked == []
