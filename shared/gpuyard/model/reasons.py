"""End reasons: why a job is over, whose matter it is, whether to try again, which exit code.

The list is closed: a reason that is not here does not exist. One row per reason.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Owner(StrEnum):
    """Whose matter an end is."""

    USER = "user"
    PLATFORM = "platform"
    HARDWARE = "hardware"
    POLICY = "policy"


class Retry(StrEnum):
    """What may follow an attempt that ended so."""

    NEVER = "never"
    """The same would happen again, or somebody wanted the end."""
    IF_ASKED = "if_asked"
    """Only where the job's `retries` say so."""
    ELSEWHERE = "elsewhere"
    """Not the job's fault: free where its container never started, else as `retries` say."""


class EndReason(StrEnum):
    EXITED = "exited"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_MEMORY_EXCEEDED = "gpu_memory_exceeded"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    NODE_DRAINED = "node_drained"
    GPU_LOST = "gpu_lost"
    DEVICE_ACCESS_LOST = "device_access_lost"
    IMAGE_NOT_FOUND = "image_not_found"
    IMAGE_AUTH = "image_auth"
    IMAGE_PULL_FAILED = "image_pull_failed"
    NO_SPACE = "no_space"
    CUDA_INCOMPATIBLE = "cuda_incompatible"
    RUNTIME_ERROR = "runtime_error"
    RUNTIME_RESTARTED = "runtime_restarted"
    RUNTIME_LOST = "runtime_lost"
    SHARE_BYPASSED = "share_bypassed"
    YARD_STOPPED = "yard_stopped"
    INVALID = "invalid"
    QUOTA_IMPOSSIBLE = "quota_impossible"
    QUEUE_FULL = "queue_full"
    DEPENDENCY_FAILED = "dependency_failed"
    DEADLINE_EXCEEDED = "deadline_exceeded"


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """`exit_code` is what `gpuyard run` exits with; None means the container's own code."""

    owner: Owner
    retry: Retry
    exit_code: int | None
    text: str


YARD_FAILED: Final = 125
_USER, _PLATFORM, _HARDWARE, _POLICY = Owner.USER, Owner.PLATFORM, Owner.HARDWARE, Owner.POLICY
_NEVER, _IF_ASKED, _ELSEWHERE = Retry.NEVER, Retry.IF_ASKED, Retry.ELSEWHERE

REASONS: Final[dict[EndReason, ReasonRow]] = {
    EndReason.EXITED: ReasonRow(_USER, _IF_ASKED, None, "the command ended by itself"),
    EndReason.OUT_OF_MEMORY: ReasonRow(
        _USER, _IF_ASKED, 137, "the container went over its host memory limit"
    ),
    EndReason.GPU_MEMORY_EXCEEDED: ReasonRow(
        _USER, _IF_ASKED, 137, "the container went over its share of GPU memory"
    ),
    EndReason.TIME_LIMIT: ReasonRow(_POLICY, _NEVER, 124, "max_runtime was over"),
    EndReason.CANCELLED: ReasonRow(_USER, _NEVER, 143, "somebody cancelled it"),
    EndReason.PREEMPTED: ReasonRow(
        _POLICY, _ELSEWHERE, YARD_FAILED, "a job that comes first took its place"
    ),
    EndReason.NODE_LOST: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "its node went away and was proven over"
    ),
    EndReason.NODE_DRAINED: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "its node was drained by an operator"
    ),
    EndReason.GPU_LOST: ReasonRow(
        _HARDWARE, _ELSEWHERE, YARD_FAILED, "one of its GPUs fell off the bus"
    ),
    EndReason.DEVICE_ACCESS_LOST: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "the container lost access to its devices"
    ),
    EndReason.IMAGE_NOT_FOUND: ReasonRow(
        _USER, _NEVER, YARD_FAILED, "no such image, or it is private"
    ),
    EndReason.IMAGE_AUTH: ReasonRow(
        _USER, _NEVER, YARD_FAILED, "the registry refused the node's credentials"
    ),
    EndReason.IMAGE_PULL_FAILED: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "the image could not be pulled"
    ),
    EndReason.NO_SPACE: ReasonRow(_PLATFORM, _ELSEWHERE, YARD_FAILED, "the node's disk is full"),
    EndReason.CUDA_INCOMPATIBLE: ReasonRow(
        _USER, _NEVER, YARD_FAILED, "the image needs a newer CUDA than the driver supports"
    ),
    EndReason.RUNTIME_ERROR: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "the node could not start the container"
    ),
    EndReason.RUNTIME_RESTARTED: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "the container engine restarted under it"
    ),
    EndReason.RUNTIME_LOST: ReasonRow(
        _PLATFORM, _ELSEWHERE, YARD_FAILED, "its container vanished without a result"
    ),
    EndReason.SHARE_BYPASSED: ReasonRow(
        _POLICY, _NEVER, YARD_FAILED, "the container left the limits of its share"
    ),
    EndReason.YARD_STOPPED: ReasonRow(_POLICY, _NEVER, 143, "the yard was stopped"),
    EndReason.INVALID: ReasonRow(_USER, _NEVER, YARD_FAILED, "the spec cannot be accepted"),
    EndReason.QUOTA_IMPOSSIBLE: ReasonRow(
        _POLICY, _NEVER, YARD_FAILED, "the tenant's limits can never allow it"
    ),
    EndReason.QUEUE_FULL: ReasonRow(
        _POLICY, _NEVER, YARD_FAILED, "the tenant has too many queued jobs"
    ),
    EndReason.DEPENDENCY_FAILED: ReasonRow(
        _USER, _NEVER, YARD_FAILED, "a job it depends on did not end as asked"
    ),
    EndReason.DEADLINE_EXCEEDED: ReasonRow(
        _POLICY, _NEVER, 124, "it had not ended by its deadline"
    ),
}


def exit_code_of(reason: str | None, container_code: int | None) -> int:
    """The exit code of `gpuyard run`, `wait` and `submit --wait` for an ended job."""
    try:
        row = REASONS[EndReason(reason or "")]
    except ValueError:
        return YARD_FAILED
    if row.exit_code is not None:
        return row.exit_code
    return YARD_FAILED if container_code is None else container_code
