"""A real card, where there is one."""

from pathlib import Path

import pytest

from gpuyard_agent.gpus.injection import device_nodes, driver_mounts
from gpuyard_agent.gpus.prober import Prober
from tests.agent.gpus.definitions import NOBODY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver here (/dev/nvidiactl)"
    ),
]


async def test_a_real_card_is_read() -> None:
    prober = Prober()
    try:
        result = await prober.sample(NOBODY)
        again = await prober.sample(NOBODY)
    finally:
        await prober.close()
    assert result["error"] is None
    assert result["driver_version"] and result["cuda_version"]
    assert result["gpus"] == again["gpus"] and prober.generation == 1
    for facts, sample in zip(result["gpus"], result["samples"], strict=True):
        assert facts["uuid"].startswith("GPU-") and facts["name"]
        assert (facts["memory_total_mib"] or 0) > 1024
        assert sample["memory_free_mib"] is not None
        assert sample["health"]["state"] == "healthy"
    assert len(result["links"]) == len(result["gpus"]) * (len(result["gpus"]) - 1) // 2


async def test_its_device_nodes_and_libraries_exist() -> None:
    prober = Prober()
    try:
        gpus = (await prober.sample(NOBODY))["gpus"]
    finally:
        await prober.close()
    assert all(Path(node).is_char_device() for node in device_nodes(gpus))
    needed = driver_mounts()
    assert needed.mounts and all(Path(mount.source).exists() for mount in needed.mounts)
    assert needed.env["LD_LIBRARY_PATH"]
