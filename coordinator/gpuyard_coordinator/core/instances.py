"""MIG instances among a node's GPUs: which devices are of the sort that a job asks for.

An instance is a GPU of its own, with a profile; the GPU that is split into it takes no work. Jobs
that ask for whole GPUs, for `all` or for a share never get an instance, and jobs that ask for a
profile get nothing else. Only ids may name either.
"""

from collections import Counter

from gpuyard.model import mig
from gpuyard.model.node import is_mig_instance
from gpuyard_coordinator.core.cluster import Cluster
from gpuyard_coordinator.core.shapes import Shape
from gpuyard_coordinator.core.state import WHOLE_GPU_MILLI, Gpu, Node

Sort = str | bool | None
"""What `is_asked_for` goes by: a profile; True for any device by its id, False for a GPU; None: the
job asks for none."""


def sort_of(shape: Shape) -> Sort:
    if shape.mig is not None:
        return shape.mig
    return bool(shape.gpu_ids) if shape.wants_gpus else None


def is_split(gpu: Gpu) -> bool:
    """True for a GPU in MIG mode, with or without instances."""
    split = gpu.facts["mig"]
    return split is not None and split["parent"] is None


def is_instance(gpu: Gpu) -> bool:
    return is_mig_instance(gpu.facts)


def profile_of(gpu: Gpu) -> str | None:
    """None for a GPU, and for an instance of which the driver does not tell it."""
    return None if (split := gpu.facts["mig"]) is None else split["profile"]


def is_asked_for(gpu: Gpu, shape: Shape) -> bool:
    """True if a device is of the sort that a shape asks for, however it is."""
    if gpu.facts["mig"] is None:
        return shape.mig is None
    if is_split(gpu):
        return False
    return profile_of(gpu) == shape.mig if shape.mig is not None else bool(shape.gpu_ids)


def milli_of(gpu: Gpu) -> int:
    """What all of a device counts for in limits and usage, in milli-GPU; an instance of an unknown
    profile counts as a GPU."""
    profile = profile_of(gpu)
    return WHOLE_GPU_MILLI if profile is None else mig.milli_of(profile)


def cards(node: Node) -> list[str]:
    """UUIDs of the node's GPUs, split ones too, without instances."""
    return [uuid for uuid, gpu in node.gpus.items() if not is_instance(gpu)]


def note(cluster: Cluster, shape: Shape) -> str:
    """What is said after the reasons of a job that asks for a profile: which ones there are."""
    if shape.mig is None:
        return ""
    counts = Counter(
        profile
        for node in cluster.nodes.values()
        for gpu in node.gpus.values()
        if (profile := profile_of(gpu)) is not None
    )
    if counts[shape.mig]:
        return f"; the yard has {counts[shape.mig]} of {shape.mig}"
    others = ", ".join(f"{counts[profile]} of {profile}" for profile in sorted(counts))
    return f"; the yard has no {shape.mig}, only {others}" if others else "; it has no instances"
