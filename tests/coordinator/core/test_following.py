"""A standby that took every document as it came leads from where a fresh start would."""

from typing import cast

from gpuyard import codec
from gpuyard.messages import NodeDocument
from gpuyard_coordinator.core import documents, recovery
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Now, Settings
from tests.support.stored import Stored
from tests.support.yard import Yard

NOW = Now(5000.0, "2026-01-01T00:10:00.000Z")
TOKEN = (1, 9)


class Standby:
    """Takes what changed between two looks at the store: nodes first, and gone ones last."""

    def __init__(self) -> None:
        self.cluster = Cluster("yard01", (0, 0), Settings())
        self._seen = Stored()

    def look(self, stored: Stored) -> None:
        for name, data in stored.nodes.items():
            if self._seen.nodes.get(name) != data:
                recovery.take_node(self.cluster, cast(NodeDocument, codec.decode(data)))
        for key, data in stored.jobs.items():
            if self._seen.jobs.get(key) != data:
                recovery.take_job(self.cluster, data)
        for key in self._seen.jobs.keys() - stored.jobs.keys():
            recovery.drop_job(self.cluster, key)
        for name in self._seen.nodes.keys() - stored.nodes.keys():
            recovery.drop_node(self.cluster, name)
        self._seen = Stored(dict(stored.jobs), {}, dict(stored.nodes))


def picture(cluster: Cluster) -> object:
    """What leading depends on."""
    nodes = {
        name: (
            documents.node_document(node),
            str(node.state),
            sorted(node.attempts),
            {uuid: gpu.free_milli for uuid, gpu in node.gpus.items()},
            (node.cpu_milli_used, node.memory_mib_used, node.document_kib_used, node.revision),
        )
        for name, node in cluster.nodes.items()
    }
    jobs = {key: documents.job_document(job) for key, job in cluster.jobs.items()}
    waiting = {key: cluster.queue.position(job) for key, job in cluster.jobs.items()}
    use = {tenant: use for tenant, use in cluster.use.items() if use.running_jobs}
    return nodes, jobs, waiting, use


def test_a_standby_that_followed_equals_a_fresh_start() -> None:
    yard, standby = Yard(), Standby()

    def turn() -> None:
        standby.look(yard.store)

    yard.node("a", gpus=2)
    turn()
    for number in range(5):
        yard.submit(f"j{number}", gpus=1)
        turn()
    yard.plan()
    turn()
    yard.node("b", gpus=1)
    turn()
    yard.plan()
    turn()
    yard.cancel("j4")
    turn()
    yard.beat("a")
    yard.beat("b")
    turn()

    recovery.assume(standby.cluster, TOKEN, NOW)
    assert len(standby.cluster.jobs) == 4
    fresh = yard.store.recovered(TOKEN, NOW)
    assert picture(standby.cluster) == picture(fresh)
    # It has seen a job that is over, which a fresh start has not.
    assert standby.cluster.next_submit_seq == fresh.next_submit_seq + 1
