"""What a gang, a job over several nodes, may ask for."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuyard.model.job import JobSpec

MOST_NODES: Final = 200
"""So that all of a gang fits one commit, whatever its state."""
GANG_ENV: Final = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What every member is told of the others."""
_OWN_NETWORKS: Final = ("bridge", "none")


def gang_fault(spec: "JobSpec") -> str | None:
    """What a job over several nodes cannot ask for, with what to write instead; None if it may."""
    if spec.network in _OWN_NETWORKS:
        return (
            f"network: {spec.network} does not reach other nodes; with nodes: {spec.nodes} write "
            "network: host, or name a network that all of them have"
        )
    if spec.node is not None:
        return f"node: {spec.node} is one node, and nodes: {spec.nodes} are asked; leave one out"
    if spec.gpus.ids:
        return "gpus: ids name GPUs of one node; with nodes write how many each member gets"
    for name in GANG_ENV:
        if name in spec.env:
            return f"env: {name} is set by the yard where nodes is above 1"
    return None
