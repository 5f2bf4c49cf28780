"""How an agent is configured: flag > GPUYARD_* environment > agent.toml > default."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from gpuyard import telemetry
from gpuyard.errors import GpuyardError
from gpuyard_agent.core.policy import PERMISSIVE, NodePolicy, PolicyError, parse_policy

DEFAULT_FILE: Final = Path("/etc/gpuyard/agent.toml")
POLICY_FILE: Final = Path("/etc/gpuyard/node-policy.toml")
_CHOICES: Final = {
    "runtime": ("docker", "process", "simulated"),
    "gpu_injection": ("toolkit", "cdi", "device-nodes", "none"),
    "log_level": telemetry.LEVELS,
    "log_format": telemetry.FORMATS,
}


class SettingsError(GpuyardError):
    """A setting that cannot be used; the text names the file or variable and the key."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything that can be set. None leaves a thing to be found out."""

    url: str = "nats://127.0.0.1:4222"
    credentials: str | None = None
    ca: str | None = None
    name: str | None = None
    """The node's name; the first label of the host's name where None."""
    dir: str = "/var/lib/gpuyard-agent"
    runtime: str | None = None
    """docker, process or simulated; None: docker, but simulated for fleets above 20 nodes."""
    docker_host: str | None = None
    """The engine's address; None: DOCKER_HOST, else /var/run/docker.sock."""
    gpu_injection: str | None = None
    simulate: str | None = None
    """A number of nodes of 8 GPUs, or a fleet file."""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    """Under which other nodes reach this one; None: where it speaks to the bus from."""
    gang_ports: str = "29500-29999"
    beat_s: float = 2.0
    log_limit_mib: float = 64.0
    """Most that a job's output may take on the bus; what is more is cut, with a marker."""
    stop_jobs_on_exit: bool = False
    log_level: str = "info"
    log_format: str | None = None


def load(
    *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> AgentSettings:
    """The settings in force; raises SettingsError with one line for what cannot be meant."""
    settings = AgentSettings()
    if file is not None or DEFAULT_FILE.exists():
        path = file or DEFAULT_FILE
        settings = _with(settings, _read(path), str(path))
    for item in fields(AgentSettings):
        variable = f"GPUYARD_{item.name.upper()}"
        if item.name != "labels" and environment.get(variable):
            value = _from_text(item.name, environment[variable], variable)
            settings = _with(settings, {item.name: value}, variable)
    if settings.docker_host is None and environment.get("DOCKER_HOST"):
        settings = _with(settings, {"docker_host": environment["DOCKER_HOST"]}, "DOCKER_HOST")
    given = {key: value for key, value in flags.items() if value is not None}
    return _with(settings, given, "command line")


def load_policy(path: Path = POLICY_FILE) -> NodePolicy:
    """The node's policy; the permissive one where there is no file."""
    if not path.exists():
        return PERMISSIVE
    try:
        return parse_policy(_read(path))
    except PolicyError as fault:
        raise SettingsError(f"{path}: {fault}") from fault


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, tomllib.TOMLDecodeError) as fault:
        raise SettingsError(f"{path}: {fault}") from fault


def _with(settings: AgentSettings, values: Mapping[str, Any], origin: str) -> AgentSettings:
    known = {item.name for item in fields(AgentSettings)}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SettingsError(f"{origin}: unknown key {key}{hint}")
        settings = replace(settings, **{key: _checked(key, value, origin)})
    return settings


def _checked(key: str, value: Any, origin: str) -> Any:
    if key in _CHOICES and value not in _CHOICES[key]:
        known = ", ".join(_CHOICES[key])
        raise SettingsError(f"{origin}: {key} must be one of {known}, not {value!r}")
    if key == "labels":
        if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
            return dict(value)
        raise SettingsError(f"{origin}: labels must be a table of texts")
    if key in ("beat_s", "log_limit_mib"):
        if type(value) in (int, float) and value > 0:
            return float(value)
        raise SettingsError(f"{origin}: {key} must be a number above 0, not {value!r}")
    if key == "stop_jobs_on_exit":
        if isinstance(value, bool):
            return value
        raise SettingsError(f"{origin}: {key} must be true or false, not {value!r}")
    if key == "simulate" and type(value) is int:
        return str(value)
    return _text(key, value, origin)


def _text(key: str, value: Any, origin: str) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{origin}: {key} must be a text, not {value!r}")
    if key == "gang_ports":
        try:
            port_range(value)
        except ValueError as fault:
            raise SettingsError(f"{origin}: {key}: {fault}") from None
    return value


def port_range(text: str) -> tuple[int, int]:
    """The first and the last port of `29500-29999`; raises ValueError in one line."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) < 65536):
        raise ValueError(f"'{text[:40]}' is no range of ports from 1024 to 65535, as 29500-29999")
    return int(first), int(last)


def _from_text(key: str, text: str, origin: str) -> Any:
    """A variable's text as the type of its key."""
    if key == "stop_jobs_on_exit":
        words = {"1": True, "true": True, "0": False, "false": False}
        return words.get(text.lower(), text)
    if key in ("beat_s", "log_limit_mib"):
        try:
            return float(text)
        except ValueError:
            raise SettingsError(f"{origin}: {key} must be a number, not {text!r}") from None
    return text
