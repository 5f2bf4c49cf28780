"""How a coordinator is configured: flag > GPUYARD_* environment > coordinator.toml > default."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from gpuyard import telemetry
from gpuyard.errors import GpuyardError

DEFAULT_FILE: Final = Path("/etc/gpuyard/coordinator.toml")
_ENVIRONMENT: Final = {
    "GPUYARD_URL": "url",
    "GPUYARD_CREDENTIALS": "credentials",
    "GPUYARD_CA": "ca",
    "GPUYARD_DIR": "dir",
    "GPUYARD_LOG_LEVEL": "log_level",
    "GPUYARD_LOG_FORMAT": "log_format",
}
_CHOICES: Final = {"log_level": telemetry.LEVELS, "log_format": telemetry.FORMATS}


class SettingsError(GpuyardError):
    """A setting that cannot be used; the text names the file or variable and the key."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Everything that can be set. Times in seconds."""

    url: str = "nats://127.0.0.1:4222"
    credentials: str | None = None
    ca: str | None = None
    dir: str = "/var/lib/gpuyard-coordinator"
    log_level: str = "info"
    log_format: str | None = None
    insecure: bool = False
    """Serve a bus that is not on loopback although no credentials are set."""
    beat_s: float = 2.0
    suspect_s: float = 6.0
    lost_s: float = 30.0
    fence_s: float = 900.0
    """`stop_after` of jobs with retries that say nothing of partitions."""
    foreign_tolerated_mib: int = 256
    starvation_after_s: float = 600.0
    """When a job that waits for room has that of one node collected without time limits."""
    min_runtime_s: float = 60.0
    """No attempt is preempted before it had its node for so long."""
    store_max_gib: float | None = None
    """The most that all streams may take on the bus's disk together; None: the default sizes."""
    record_mib: int = 256
    """The most that the record of decisions may take in `dir`; 0: none is kept."""


def load(
    *, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> CoordinatorSettings:
    """The settings in force. Raises SettingsError, one line, for an unknown key or a wrong type."""
    settings = CoordinatorSettings()
    path = file or DEFAULT_FILE
    if path.exists() or file is not None:
        settings = _with(settings, _read(path), str(path))
    for variable, key in _ENVIRONMENT.items():
        if environment.get(variable):
            settings = _with(settings, {key: environment[variable]}, variable)
    given = {key: value for key, value in flags.items() if value is not None}
    return _with(settings, given, "command line")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _with(
    settings: CoordinatorSettings, values: Mapping[str, Any], origin: str
) -> CoordinatorSettings:
    known = {field.name: field for field in fields(CoordinatorSettings)}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise SettingsError(f"{origin}: unknown key {key}{hint}")
        settings = replace(settings, **{key: _checked(settings, key, value, origin)})
    return settings


def _checked(settings: CoordinatorSettings, key: str, value: Any, origin: str) -> Any:
    if key in _CHOICES and value not in _CHOICES[key]:
        known = ", ".join(_CHOICES[key])
        raise SettingsError(f"{origin}: {key} must be one of {known}, not {value!r}")
    default = getattr(settings, key)
    is_number = key.endswith(("_s", "_mib", "_gib"))
    if is_number and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
        raise SettingsError(f"{origin}: {key} must be a number from 0, not {value!r}")
    if isinstance(default, bool) and not isinstance(value, bool):
        raise SettingsError(f"{origin}: {key} must be true or false, not {value!r}")
    if not is_number and not isinstance(default, bool) and not isinstance(value, str):
        raise SettingsError(f"{origin}: {key} must be a text, not {value!r}")
    return float(value) if key.endswith("_s") else value
