"""How a container of this host gets its GPUs, and what the way without a toolkit needs."""

import fnmatch
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gpuyard.errors import RuntimeFailure
from gpuyard.model.node import NODE_REASONS, GpuFacts, GpuInjection, is_mig_instance

CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""What every CUDA program opens beside the nodes of its GPUs."""
DRIVER_ROOT: Final = "/usr/local/nvidia"
"""Where images look for the driver; CUDA images have its folders in their search paths."""
_HOOKS: Final = ("nvidia-container-runtime-hook", "nvidia-container-runtime")
_LIBRARIES: Final = (
    "libcuda.so*",
    "libcudadebugger.so*",
    "libnvcuvid.so*",
    "libnvidia-*.so*",
)
_NOT_FOR_CONTAINERS: Final = ("libnvidia-container*", "libnvidia-gtk*")
_PROGRAMS: Final = ("nvidia-smi", "nvidia-debugdump")


class Mount(NamedTuple):
    """A bind mount from the host."""

    source: str
    target: str
    read_only: bool = True


class DriverMounts(NamedTuple):
    """What a container needs of the driver; `env` is to be put in front of the image's values.

    Each value of `env` is a list of folders, joined by colons.
    """

    mounts: list[Mount]
    env: dict[str, str]


NO_MOUNTS: Final = DriverMounts([], {})


def detect_injection(
    *,
    simulated: bool,
    engine_info: Mapping[str, object] | None,
    which: Callable[[str], str | None] = shutil.which,
    exists: Callable[[str], bool] = os.path.exists,
) -> GpuInjection:
    """The best way that this host offers; an operator's override goes before it.

    `engine_info` is the Engine's own /info, None where it did not answer.
    """
    if simulated:
        return "none"
    runtimes = (engine_info or {}).get("Runtimes")
    if isinstance(runtimes, Mapping) and "nvidia" in runtimes:
        return "toolkit"
    if any(which(hook) for hook in _HOOKS):
        return "toolkit"
    return "device-nodes" if exists(CONTROL_NODES[0]) else "none"


def device_nodes(
    gpus: Sequence[GpuFacts], *, exists: Callable[[str], bool] = os.path.exists
) -> list[str]:
    """The device nodes of exactly these GPUs, then the control nodes that the host has.

    Raises `RuntimeFailure` for a GPU whose minor number is not known: guessing it from the index
    could hand out another tenant's card. And for a MIG instance: its GPU's node alone opens no
    instance, and which of /dev/nvidia-caps do is not looked up.
    """
    nodes: list[str] = []
    for gpu in gpus:
        if is_mig_instance(gpu):
            text = f"{NODE_REASONS['mig_needs_toolkit']}, not by device nodes"
            raise RuntimeFailure(f"{gpu['uuid']}: {text}", temporary=False)
        if gpu["minor"] is None:
            raise RuntimeFailure(
                f"the driver does not tell the device number of {gpu['uuid']}", temporary=True
            )
        nodes.append(f"/dev/nvidia{gpu['minor']}")
    return nodes + [node for node in CONTROL_NODES if exists(node)]


def driver_mounts(
    *,
    root: Path = Path("/"),
    ldconfig: Callable[[], str] | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> DriverMounts:
    """The driver's user libraries and nvidia-smi as read-only mounts under /usr/local/nvidia.

    Reads folders and runs `ldconfig -p`, so call it off the event loop and keep the answer until
    the driver's version changes. No mounts where the host has no libcuda; images need the C
    library that the driver was built for (glibc), which is theirs to bring.
    """
    folder = root / DRIVER_ROOT.lstrip("/")
    if _holds_driver(folder):
        bins, libs = _existing(folder, "bin"), _existing(folder, "lib64", "lib")
        return DriverMounts([Mount(str(folder), DRIVER_ROOT)], _search_paths(bins, libs))
    libraries = _libraries(root, (ldconfig or _ldconfig)())
    if not any(name.startswith("libcuda.so") for name in libraries):
        return DriverMounts([], {})
    mounts = [
        Mount(source, f"{DRIVER_ROOT}/lib64/{name}") for name, source in sorted(libraries.items())
    ]
    programs = [(name, path) for name in _PROGRAMS if (path := which(name))]
    mounts += [
        Mount(os.path.realpath(path), f"{DRIVER_ROOT}/bin/{name}") for name, path in programs
    ]
    return DriverMounts(mounts, _search_paths(["bin"] if programs else [], ["lib64"]))


def _holds_driver(folder: Path) -> bool:
    return any(any(folder.glob(f"{name}/libcuda.so*")) for name in ("lib64", "lib"))


def _existing(folder: Path, *names: str) -> list[str]:
    return [name for name in names if (folder / name).is_dir()]


def _search_paths(bins: Iterable[str], libs: Iterable[str]) -> dict[str, str]:
    paths = {
        "PATH": ":".join(f"{DRIVER_ROOT}/{name}" for name in bins),
        "LD_LIBRARY_PATH": ":".join(f"{DRIVER_ROOT}/{name}" for name in libs),
    }
    return {name: value for name, value in paths.items() if value}


def _libraries(root: Path, cache: str) -> dict[str, str]:
    """File name → real file of the driver's libraries, the linker's own choice first."""
    found: dict[str, str] = {}
    folders: list[Path] = []
    for path in _cached(cache):
        if _is_driver_library(path.name) and path.exists():
            found.setdefault(path.name, os.path.realpath(path))
            folders.append(path.parent)
    # The cache lists one name per library; programs also open others (the full version).
    for folder in dict.fromkeys([*folders, *_well_known(root)]):
        for path in sorted(folder.glob("lib*.so*")):
            if _is_driver_library(path.name) and path.exists():
                found.setdefault(path.name, os.path.realpath(path))
    return found


def _cached(cache: str) -> Iterator[Path]:
    """Paths of `ldconfig -p` for this machine's word size; 32-bit lines have no such mark."""
    mark = "AArch64" if platform.machine() == "aarch64" else "x86-64"
    for line in cache.splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow and mark in name:
            yield Path(path.strip())


def _well_known(root: Path) -> list[Path]:
    triplet = f"{platform.machine()}-linux-gnu"
    names = (
        f"usr/lib/{triplet}",
        f"usr/lib/{triplet}/nvidia/current",
        "usr/lib64",
        "usr/lib/wsl/lib",
    )
    return [root / name for name in names if (root / name).is_dir()]


def _is_driver_library(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _LIBRARIES) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_FOR_CONTAINERS
    )


def _ldconfig() -> str:
    command = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if command is None:
        return ""
    try:
        done = subprocess.run(
            [command, "-p"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
