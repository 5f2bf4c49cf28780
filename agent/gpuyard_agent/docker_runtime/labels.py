"""The labels that say whose a container is: the engine's memory of what this yard runs."""

from collections.abc import Mapping
from typing import Final

from gpuyard_agent.core.launch import AttemptKey

YARD: Final = "gpuyard.yard"
NODE: Final = "gpuyard.node"
TENANT: Final = "gpuyard.tenant"
JOB: Final = "gpuyard.job"
ATTEMPT: Final = "gpuyard.attempt"
SPEC: Final = "gpuyard.spec_sha256"

_IDENTITY: Final = (YARD, NODE, TENANT, JOB, ATTEMPT, SPEC)


def key_of(labels: Mapping[str, str]) -> AttemptKey | None:
    """The attempt that these labels name, None where they name none."""
    tenant, job, attempt = (labels.get(name, "") for name in (TENANT, JOB, ATTEMPT))
    if not tenant or not job or not attempt.isdecimal():
        return None
    return AttemptKey(tenant, job, int(attempt))


def of_node(yard: str, node: str) -> list[str]:
    """The label filters for every container of a node."""
    return [f"{YARD}={yard}", f"{NODE}={node}"]


def of_attempt(yard: str, node: str, key: AttemptKey) -> list[str]:
    """The label filters for the container of one attempt."""
    own = [f"{TENANT}={key.tenant}", f"{JOB}={key.job}", f"{ATTEMPT}={key.attempt}"]
    return [*of_node(yard, node), *own]


def same_attempt(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True when both name the same attempt of the same spec; the epoch may differ."""
    return all(found.get(name) == wanted[name] for name in _IDENTITY)
