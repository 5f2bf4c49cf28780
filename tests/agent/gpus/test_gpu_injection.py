"""How containers get GPUs: chosen by what the host has, and the way without a toolkit."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard_agent.gpus.injection import detect_injection, device_nodes, driver_mounts
from tests.agent.gpus.definitions import RTX_4090, make_definition, probe_once


def nothing(name: str) -> None:
    return None


def detected(
    *,
    simulated: bool = False,
    info: dict[str, Any] | None = None,
    on_path: tuple[str, ...] = (),
    files: tuple[str, ...] = (),
) -> str:
    return detect_injection(
        simulated=simulated,
        engine_info=info,
        which=lambda name: f"/usr/bin/{name}" if name in on_path else None,
        exists=lambda path: path in files,
    )


def test_the_engines_nvidia_runtime_is_the_toolkit() -> None:
    info: dict[str, Any] = {"Runtimes": {"nvidia": {}, "runc": {}}}
    assert detected(info=info, files=("/dev/nvidiactl",)) == "toolkit"


@pytest.mark.parametrize("name", ["nvidia-container-runtime-hook", "nvidia-container-runtime"])
def test_a_toolkit_on_the_path_is_enough(name: str) -> None:
    assert detected(info={"Runtimes": {"runc": {}}}, on_path=(name,)) == "toolkit"


def test_a_driver_alone_means_device_nodes() -> None:
    assert detected(info={"Runtimes": None}, files=("/dev/nvidiactl",)) == "device-nodes"


def test_nothing_means_none() -> None:
    assert detected() == "none"


def test_a_simulated_node_injects_nothing() -> None:
    assert detected(simulated=True, info={"Runtimes": {"nvidia": {}}}) == "none"


def test_device_nodes_go_by_minor_number() -> None:
    definition = make_definition({**RTX_4090, "minor": 3}, {**RTX_4090, "minor": 1})
    gpus = probe_once(definition)["gpus"]
    assert device_nodes(gpus, exists=lambda path: path != "/dev/nvidia-uvm-tools") == [
        "/dev/nvidia3",
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]


def test_an_unknown_minor_number_is_not_guessed() -> None:
    definition = make_definition(faults=[{"call": "all", "do": "not_supported"}])
    with pytest.raises(RuntimeFailure, match="device number"):
        device_nodes(probe_once(definition)["gpus"])


def test_a_driver_folder_is_mounted_whole(tmp_path: Path) -> None:
    folder = tmp_path / "usr/local/nvidia"
    for name in ("bin/nvidia-smi", "lib64/libcuda.so.1"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    needed = driver_mounts(root=tmp_path, ldconfig=lambda: "", which=nothing)
    assert needed.mounts == [(str(folder), "/usr/local/nvidia", True)]
    assert needed.env == {
        "PATH": "/usr/local/nvidia/bin",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    }


def test_libraries_are_found_through_the_linkers_cache(tmp_path: Path) -> None:
    libs = tmp_path / "libs"
    libs.mkdir()
    for name in ("libcuda.so.550.54.15", "libnvidia-ml.so.550.54.15", "libnvidia-nvvm.so.4"):
        (libs / name).touch()
    (libs / "libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    (libs / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.54.15")
    (libs / "libnvidia-container.so.1").touch()
    (libs / "libc.so.6").touch()
    (libs / "nvidia-smi").touch()
    old = tmp_path / "i386"
    old.mkdir()
    (old / "libcuda.so.1").touch()
    cache = (
        "2 libs found in cache\n"
        f"\tlibcuda.so.1 (libc6) => {old}/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {libs}/libcuda.so.1\n"
        f"\tlibcuda.so.1 (libc6,AArch64) => {libs}/libcuda.so.1\n"
    )
    needed = driver_mounts(
        root=tmp_path,
        ldconfig=lambda: cache,
        which=lambda name: str(libs / name) if name == "nvidia-smi" else None,
    )
    targets = {mount.target: mount.source for mount in needed.mounts}
    lib64 = "/usr/local/nvidia/lib64"
    assert targets == {
        f"{lib64}/libcuda.so.1": f"{libs}/libcuda.so.550.54.15",
        f"{lib64}/libcuda.so.550.54.15": f"{libs}/libcuda.so.550.54.15",
        f"{lib64}/libnvidia-ml.so.1": f"{libs}/libnvidia-ml.so.550.54.15",
        f"{lib64}/libnvidia-ml.so.550.54.15": f"{libs}/libnvidia-ml.so.550.54.15",
        f"{lib64}/libnvidia-nvvm.so.4": f"{libs}/libnvidia-nvvm.so.4",
        "/usr/local/nvidia/bin/nvidia-smi": f"{libs}/nvidia-smi",
    }
    assert all(mount.read_only for mount in needed.mounts)
    assert needed.env["LD_LIBRARY_PATH"] == lib64


def test_a_host_without_a_driver_needs_no_mounts(tmp_path: Path) -> None:
    assert driver_mounts(root=tmp_path, ldconfig=lambda: "", which=nothing) == ([], {})
