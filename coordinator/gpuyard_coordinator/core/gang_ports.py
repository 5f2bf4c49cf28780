"""Where a gang meets: which of its members is rank 0, and which port of that node's range is held.

Ports are held per address, not per node: several nodes of one host have the same.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.gangs import Place
from gpuyard_coordinator.core.state import Meeting, Node


def address_of(node: Node) -> str | None:
    """Under which the other nodes reach it; None where its agent does not say."""
    return node.facts.get("address")


def ranked(cluster: Cluster, places: Sequence[Place]) -> tuple[list[Place], Meeting]:
    """The places by rank, and the meeting at the first. Ranks go by name, n2 before n10, so that
    neighbours in name are neighbours in rank; first is one that has a port left.

    To be asked only where `has_port` says that there is one.
    """
    place_of = dict(places)
    in_order = _in_order(place_of)
    first = meeting_node(cluster, in_order)
    if first is None:
        raise ValueError("no port is left")
    node = cluster.nodes[first]
    address = address_of(node) or ""
    held = cluster.gang_ports.get(address, set())
    port = next(port for port in _range(node) if port not in held)
    rest = (name for name in in_order if name != first)
    return [(name, place_of[name]) for name in (first, *rest)], Meeting(address, port)


def meeting_node(
    cluster: Cluster, names: Iterable[str], planned: Mapping[str, int] = MappingProxyType({})
) -> str | None:
    """The node that would be rank 0's, beside what a plan takes: ports by address; None where none
    has a port left."""
    for name in _in_order(names):
        node = cluster.nodes[name]
        if _left(cluster, node) > planned.get(address_of(node) or "", 0):
            return name
    return None


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (_natural(name), name))


def _left(cluster: Cluster, node: Node) -> int:
    held = cluster.gang_ports.get(address_of(node) or "", set())
    ports = _range(node)
    return len(ports) - sum(port in ports for port in held)


def _range(node: Node) -> range:
    first, last = node.facts.get("gang_ports") or (1, 0)
    return range(first, last + 1)


def _natural(name: str) -> list[tuple[int, str]]:
    """n2 before n10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", name)]
