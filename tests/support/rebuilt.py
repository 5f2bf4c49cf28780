"""The state of a leader that starts from stored documents, without a bus."""

from collections.abc import Iterable
from typing import cast

from gpuyard import codec
from gpuyard.messages import NodeDocument, Token
from gpuyard_coordinator.core import recovery, stored_history
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.state import Now, Settings


def rebuilt(
    *,
    yard: str,
    token: Token,
    jobs: Iterable[bytes],
    nodes: Iterable[bytes],
    tenants: Iterable[bytes] = (),
    mix: bytes | None = None,
    histories: Iterable[bytes] = (),
    now: Now,
) -> Cluster:
    """As a standby reads them, and then takes the lead."""
    cluster = Cluster(yard=yard, token=token, settings=Settings())
    if mix is not None:
        recovery.take_mix(cluster, codec.decode(mix))
    for data in histories:
        stored_history.take_history(cluster, codec.decode(data))
    for data in tenants:
        recovery.take_tenant(cluster, codec.decode(data))
    for data in nodes:
        recovery.take_node(cluster, cast(NodeDocument, codec.decode(data)))
    for data in jobs:
        recovery.load_job(cluster, data)
    recovery.fill_queue(cluster)
    recovery.assume(cluster, token, now)
    return cluster
