"""A yard with a gang in it, and what agents do with its members."""

from typing import Any

from gpuyard_coordinator.core import documents
from gpuyard_coordinator.core.state import Attempt
from tests.support.yard import Yard

THREE = ("a", "b", "c")


def yard_of(*names: str, gpus: int = 2) -> Yard:
    yard = Yard()
    for name in names or THREE:
        yard.node(name, gpus=gpus)
    return yard


def gang(yard: Yard, id: str = "j", *, nodes: int = 2, **spec: Any) -> Attempt:
    """Submitted and placed."""
    yard.submit(id, nodes=nodes, **{"gpus": 1} | spec)
    yard.plan()
    return yard.attempt(id)


def prepare(yard: Yard, id: str = "j") -> None:
    for rank in range(len(yard.attempt(id).members)):
        yard.report(id, rank=rank, state="preparing", prepared=True)


def start(yard: Yard, id: str = "j") -> None:
    prepare(yard, id)
    for rank in range(len(yard.attempt(id).members)):
        yard.start(id, rank=rank)


def entry(yard: Yard, name: str, id: str = "j") -> dict[str, Any]:
    document = documents.wanted_document(yard.cluster, yard.core_node(name))
    (found,) = [entry for entry in document["entries"] if entry["job"] == id]
    return dict(found)
