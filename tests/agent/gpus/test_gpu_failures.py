"""Why NVML cannot be used at all."""

from pathlib import Path

import pytest

from gpuyard.model.node import NODE_REASONS
from gpuyard_agent.gpus.failures import explain
from gpuyard_agent.gpus.simulation import NVMLError


def test_a_mismatch_tells_the_version_that_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    )
    message, code = explain(NVMLError(18), proc_root=str(tmp_path))
    assert code == "driver_mismatch"
    assert "loaded 535.183.01" in message


@pytest.mark.parametrize("value", [1, 9, 12, 15, 18, 999])
def test_every_failure_is_one_line_with_a_known_code(value: int) -> None:
    message, code = explain(NVMLError(value), proc_root=None)
    assert code in NODE_REASONS
    assert message and "\n" not in message
