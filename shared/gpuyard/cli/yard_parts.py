"""What a yard on this machine is made of: which programs, with which arguments, for which host."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard import extras
from gpuyard.cli.ending import UsageFault
from gpuyard.cli.yard_folder import MIB, YardFolder
from gpuyard.errors import GpuyardError

LEAST_SERVER: Final = (2, 12)
LARGE_FLEET: Final = 20
DOCKER_SOCKET: Final = "/var/run/docker.sock"
_PING_S: Final = 2.0
_GPU_SIGNS: Final = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `gpuyard up` was told."""

    runtime: str | None
    simulate: str | None
    gpu_injection: str | None
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be started, decided before anything is."""

    server: Path
    runtime: str
    simulate: str | None
    """A number of nodes, or a fleet file; None for what this machine has."""
    gpu_injection: str | None
    nodes: int
    hints: tuple[str, ...]


def make_plan(options: UpOptions) -> Plan:
    """Decides from the options and this machine; raises with one line where it cannot be."""
    if extras.missing("structlog", "msgspec", "numpy", "docker", "pynvml"):
        raise GpuyardError("the parts of a yard are not installed; pip install 'gpuyard[all]'")
    hints: list[str] = []
    simulate, nodes = _fleet(options.simulate)
    if options.simulate is None and not has_gpus():
        simulate = "1"
        hints.append(
            "this machine shows no NVIDIA GPU: 8 simulated ones stand in (--simulate 0: none)"
        )
    runtime = _runtime(options.runtime, nodes, hints)
    return Plan(find_server(), runtime, simulate, options.gpu_injection, nodes, tuple(hints))


def has_gpus() -> bool:
    """Whether an NVIDIA driver is loaded here, WSL's included."""
    return any(Path(sign).exists() for sign in _GPU_SIGNS)


def _fleet(text: str | None) -> tuple[str | None, int]:
    """(what the agent is told, how many nodes that makes)."""
    if text is None or text == "0":
        return None, 1
    if text.isdecimal():
        return text, int(text)
    if text.startswith("-"):
        raise UsageFault(f"--simulate {text}: write a number of nodes, or a fleet file")
    path = Path(text)
    if not path.is_file():
        raise UsageFault(f"--simulate {text}: it is neither a number of nodes nor a file")
    return str(path.absolute()), _count_nodes(path)


def _count_nodes(path: Path) -> int:
    """How many nodes a fleet file makes; whether the rest of it is right, the agent says."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        fleet: Any = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        entries = fleet["nodes"]
        return sum(int(entry.get("count", 1)) for entry in entries)
    except (YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        text = " ".join(str(fault).split()) or type(fault).__name__
        raise UsageFault(f"--simulate {path}: it is no fleet file: {text}") from fault


def _runtime(asked: str | None, nodes: int, hints: list[str]) -> str:
    if asked in ("process", "simulated"):
        return asked
    if asked is None and nodes > LARGE_FLEET:
        return "simulated"
    fault = docker_fault()
    if fault is None:
        return "docker"
    if asked == "docker":
        raise GpuyardError(f"{fault}; start the engine, or use --runtime process")
    hints.append(f"{fault}: jobs run as plain processes")
    return "process"


def docker_fault() -> str | None:
    """Why the Docker engine cannot be used, in one line; None where it answers."""
    host = os.environ.get("DOCKER_HOST") or f"unix://{DOCKER_SOCKET}"
    if not host.startswith("unix://"):
        # A remote engine: the agent finds out.
        return None
    path = host.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PING_S)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            answer = connection.recv(64)
    except PermissionError:
        return f"this user may not use {path} (sudo usermod -aG docker $USER, then log in again)"
    except OSError as fault:
        return f"no Docker engine answers on {path} ({(fault.strerror or str(fault)).lower()})"
    if not re.match(rb"HTTP/1\.[01] 200", answer):
        return f"what answers on {path} is no Docker engine"
    return None


def find_server() -> Path:
    """A nats-server that is new enough: from the PATH, else the one beside this Python."""
    beside = Path(sys.executable).with_name("nats-server")
    on_path = shutil.which("nats-server")
    candidates = dict.fromkeys([*([Path(on_path)] if on_path else []), beside])
    too_old = []
    for path in candidates:
        version = _server_version(path)
        if version is None:
            continue
        if version >= LEAST_SERVER:
            return path
        too_old.append(f"{path} is {'.'.join(map(str, version))}")
    found = f" ({', '.join(too_old)})" if too_old else ""
    least = ".".join(map(str, LEAST_SERVER))
    raise GpuyardError(
        f"no nats-server {least} or newer was found{found}; pip install 'gpuyard[all]' brings one"
    )


def _server_version(path: Path) -> tuple[int, ...] | None:
    try:
        told = subprocess.run(
            [path, "-v"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", told)
    return tuple(int(part) for part in match.groups()) if match else None


def write_server_config(folder: YardFolder, *, port: int, token: str) -> Path:
    """The bus on loopback, every acknowledged write on disk, with a token for whoever is local."""
    store = json.dumps(str(folder.path / "nats"))
    return folder.write(
        "nats-server.conf",
        "\n".join(
            [
                f'server_name: "gpuyard-{port}"',
                f'listen: "127.0.0.1:{port}"',
                f"authorization {{ token: {json.dumps(token)} }}",
                "jetstream {",
                f"  store_dir: {store}",
                "  sync_interval: always",
                "  max_memory_store: 64MB",
                f"  max_file_store: {folder.store_mib() * MIB}",
                "}",
                "",
            ]
        ),
    )


def write_coordinator_config(folder: YardFolder) -> Path:
    """Streams that fit what the server may store, with a reserve for its own files."""
    gib = folder.store_mib() * 0.95 / 1024
    return folder.write("coordinator.toml", f"store_max_gib = {gib:.3f}\n")


def commands(plan: Plan, folder: YardFolder, config: Path) -> dict[str, list[str]]:
    """Each part's command line, in the order of their start."""
    python = [sys.executable, "-m"]
    agent = [*python, "gpuyard_agent", "--dir", str(folder.path / "agent")]
    agent += ["--runtime", plan.runtime, "--stop-jobs-on-exit"]
    if plan.simulate is not None:
        agent += ["--simulate", plan.simulate]
        if plan.simulate == "1":
            agent += ["--name", "node-0"]  # as the first of several, whatever the host is called
    if plan.gpu_injection is not None:
        agent += ["--gpu-injection", plan.gpu_injection]
    coordinator = [*python, "gpuyard_coordinator", "--dir", str(folder.path / "coordinator")]
    coordinator += ["--config", str(write_coordinator_config(folder))]
    return {
        "nats-server": [str(plan.server), "-c", str(config)],
        "coordinator": coordinator,
        "agent": agent,
    }


def child_environment(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the parts are told by their environment: the address holds the token, and the arguments
    of a process can be read by everybody on the machine."""
    other_yards = ("CREDENTIALS", "CA", "CONTEXT", "CONFIG", "TENANT", "USER", "DIR", "SIMULATE")
    dropped = {f"GPUYARD_{name}" for name in other_yards}
    kept = {key: value for key, value in environ.items() if key not in dropped}
    return kept | {"GPUYARD_URL": url}
