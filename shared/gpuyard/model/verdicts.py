"""Verdicts: why a queued job waits. A closed list of codes."""

from enum import StrEnum

from gpuyard._typing import TypedDict


class VerdictCode(StrEnum):
    WAITING_TURN = "waiting_turn"
    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INSUFFICIENT_GPUS = "insufficient_gpus"
    INSUFFICIENT_GPU_MEMORY = "insufficient_gpu_memory"
    INSUFFICIENT_CPU = "insufficient_cpu"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    WHERE_MISMATCH = "where_mismatch"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    NODE_CORDONED = "node_cordoned"
    NODE_UNREADY = "node_unready"
    NODE_LOST = "node_lost"
    GPU_UNHEALTHY = "gpu_unhealthy"
    GPU_DIRTY = "gpu_dirty"
    FOREIGN_MEMORY = "foreign_memory"
    CUDA_INCOMPATIBLE = "cuda_incompatible"
    IMAGE_SPACE = "image_space"
    RESERVED_FOR_OTHER = "reserved_for_other"
    GANG_INCOMPLETE = "gang_incomplete"
    DEPENDENCY = "dependency"
    HELD = "held"
    NOT_BEFORE = "not_before"
    NODE_LOST_WAITING = "node_lost_waiting"
    QUOTA_ON_MODEL = "quota_on_model"
    GUARANTEE_FRAGMENTED = "guarantee_fragmented"
    NODE_DOCUMENT_FULL = "node_document_full"
    MPS_UID_CONFLICT = "mps_uid_conflict"


class Verdict(TypedDict):
    """Why a job is where it is; `since` is RFC 3339 UTC."""

    code: str
    message: str
    since: str
