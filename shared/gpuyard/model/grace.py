"""The grace of a spec, read without the model of jobs, which is slow to import."""

from collections.abc import Mapping
from typing import Any, Final

from gpuyard.model.quantities import parse_duration_s

DEFAULT_STOP_GRACE_S: Final = 30.0


def stop_grace_s(spec: Mapping[str, Any] | None) -> float:
    """Seconds between SIGTERM and SIGKILL of a job; the default where it says nothing or is not
    known. Raises TypeError or ValueError for a grace that no accepted spec has."""
    grace = None if spec is None else spec.get("stop_grace")
    if grace is None:
        return DEFAULT_STOP_GRACE_S
    return parse_duration_s(grace) if isinstance(grace, str) else float(grace)
