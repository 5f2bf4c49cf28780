"""Places for all members of a gang, each on another node, or none at all."""

from collections import Counter
from collections.abc import Collection

from gpuyard_coordinator.core import gang_ports, quota
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.packing import Placement, Placer
from gpuyard_coordinator.core.shapes import Shape, without_nodes


def place(
    cluster: Cluster,
    placer: Placer,
    shape: Shape,
    left: quota.Left | None,
    planned: Counter[str],
    having: Collection[str],
) -> list[Placement]:
    """Reserved places for every member, one after another where the placer likes it best; empty,
    with nothing left reserved, where one finds none or no port is left to meet at.

    `left` is what the gang's tenant may still be granted. `planned` counts the ports that the plan
    takes, by address: this gang's too, once it has its places. `having` are nodes that have the
    image.
    """
    if not placer.has_places(shape):
        return []
    each = None if left is None else left.part(shape.nodes)
    found: list[Placement] = []
    names: frozenset[str] = frozenset()
    while len(found) < shape.nodes:
        placement = placer.place(without_nodes(shape, shape.excluded | names), each, having)
        if placement is None:
            break
        found.append(placement)
        names |= {placement.node}
    if len(found) == shape.nodes:
        first = gang_ports.meeting_node(cluster, names, planned)
        if first is not None:
            planned[gang_ports.address_of(cluster.nodes[first]) or ""] += 1
            return found
    for placement in reversed(found):
        placer.release(shape, placement)
    return []
