"""`JobSpec`: what a person writes, whichever way it reaches the yard, and its kept form."""

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gpuyard.model import ids
from gpuyard.model.gpus import GpuRequest, normalise_gpus
from gpuyard.model.quantities import format_duration, parse_duration_s, parse_size_mib
from gpuyard.model.reasons import EndReason, Owner

RESERVED_ENV: Final = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_IMEX_CHANNELS",
)
RESERVED_ENV_PATTERN: Final = re.compile(r"NVIDIA_MIG_.*_DEVICES|CUDA_MPS_.*|GPUYARD_.*")
RESERVED_TARGETS: Final = ("/var/run/nvidia-container-devices", "/run", "/proc", "/sys", "/dev")
DEFAULT_PRIORITY: Final = 50
DEFAULT_STOP_GRACE_S: Final = 30.0
DEFAULT_GPU_SHM_MIB: Final = 8192


def _number(value: Any) -> Any:
    """A truth value is no number, although it would pass for one."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _seconds(value: Any) -> Any:
    return parse_duration_s(value) if isinstance(value, str) else _number(value)


def _mib(value: Any) -> Any:
    return parse_size_mib(value) if isinstance(value, str) else _number(value)


def _words(value: Any) -> Any:
    """A command written as one text is refused with the list that it likely means."""
    if isinstance(value, str):
        raise ValueError(f"write it as a list, one item per word: {json.dumps(value.split())}")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0.001, le=10 * 365 * 86400)]
Mib = Annotated[int, BeforeValidator(_mib), Field(gt=0, le=2**31)]
Count = Annotated[int, BeforeValidator(_number)]
Words = Annotated[list[str], BeforeValidator(_words)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Mount(_Part):
    """A folder or file of the node inside the container; the node's policy says which."""

    source: str = Field(min_length=1)
    target: str = Field(pattern=r"^/")
    read_only: bool = False

    @field_validator("source")
    @classmethod
    def _is_absolute_or_volume(cls, value: str) -> str:
        if value.startswith("/") or re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", value):
            return value
        raise ValueError(f"'{value}' is neither an absolute path nor a volume's name")

    @field_validator("target")
    @classmethod
    def _is_free(cls, value: str) -> str:
        if ".." in value.split("/"):
            raise ValueError("a mount target may not hold '..'")
        path = posixpath.normpath(re.sub(r"/+", "/", value))
        for reserved in RESERVED_TARGETS:
            if path == reserved or path.startswith(reserved + "/"):
                raise ValueError(f"mounts under {reserved} are not allowed")
        return path


class Ulimit(_Part):
    name: str = Field(pattern=r"^[a-z]+$")
    soft: int = Field(ge=-1)
    hard: int = Field(ge=-1)


class Retries(_Part):
    """How often an attempt that ran may be tried again, and after which ends.

    `when` holds owners (`platform`), end reasons (`out_of_memory`) and exit codes (`exit:75`).
    """

    max: Annotated[int, BeforeValidator(_number)] = Field(default=0, ge=0, le=100)
    when: list[str] = Field(default_factory=lambda: ["platform", "hardware"])

    @field_validator("when")
    @classmethod
    def _is_known(cls, value: list[str]) -> list[str]:
        known = {*Owner, *EndReason}
        for item in value:
            if item not in known and not re.fullmatch(r"exit:\d{1,3}", item):
                raise ValueError(f"'{item}' is neither an owner, an end reason nor exit:CODE")
        return value


class After(_Part):
    job: str
    when: Literal["succeeded", "failed", "ended"] = "succeeded"


class JobSpec(_Part):
    """One request to run a container to its end. Unknown fields are refused."""

    id: str | None = None
    name: str | None = Field(default=None, min_length=1, max_length=128)
    image: str = Field(min_length=1, max_length=512, pattern=r"^[^\s]+$")
    command: Words | None = None
    entrypoint: Words | None = None
    env: dict[EnvName, str] = Field(default_factory=dict)
    workdir: str | None = Field(default=None, pattern=r"^/")
    run_as: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$")
    stdin: bool = False
    tty: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    gpus: Annotated[GpuRequest, BeforeValidator(normalise_gpus)] = Field(default_factory=GpuRequest)
    node: str | None = None
    where: list[str] = Field(default_factory=list)
    prefer: list[str] = Field(default_factory=list)
    cpus: Annotated[float, BeforeValidator(_number)] | None = Field(default=None, gt=0, le=100_000)
    memory_mib: Mib | None = None
    shm_mib: Mib | None = None
    tmpfs: dict[str, str] = Field(default_factory=dict)
    ulimits: list[Ulimit] = Field(default_factory=list)
    mounts: list[Mount] = Field(default_factory=list)
    network: str = Field(default="bridge", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    ports: list[str] = Field(default_factory=list)
    pull: Literal["missing", "always", "never"] = "missing"
    priority: Count = Field(default=DEFAULT_PRIORITY, ge=0, le=100)
    preemptible: bool = False
    tolerate: list[str] = Field(default_factory=list)
    max_runtime: Seconds | None = None
    stop_grace: Seconds = DEFAULT_STOP_GRACE_S
    retries: Retries = Field(default_factory=Retries)
    on_partition: Literal["keep"] | dict[Literal["stop_after"], Seconds] | None = None
    enforcement: Literal["hard", "mps", "audited"] | None = None
    nodes: Count = Field(default=1, ge=1, le=200)
    array: str | None = None
    after: list[After] = Field(default_factory=list)
    hold: bool = False

    @field_validator("id")
    @classmethod
    def _id_is_free(cls, value: str | None) -> str | None:
        if value is not None and ids.is_assigned_id(value):
            raise ValueError("ids of the form j<…>-<number> are given by the yard alone")
        if value is not None and not ids.is_job_id(value):
            raise ValueError("must be 1 to 48 lower-case letters, digits and hyphens")
        return value

    @field_validator("node")
    @classmethod
    def _node_is_name(cls, value: str | None) -> str | None:
        if value is not None and not ids.is_name(value):
            raise ValueError(f"'{value}' is not a node's name")
        return value

    @field_validator("user")
    @classmethod
    def _user_is_user(cls, value: str | None) -> str | None:
        if value is not None and not ids.is_user(value):
            raise ValueError("must be 1 to 64 lower-case letters, digits, _ and -")
        return value

    @field_validator("retries", mode="before")
    @classmethod
    def _retries_number(cls, value: Any) -> Any:
        return {"max": value} if type(value) is int else value

    @field_validator("env")
    @classmethod
    def _env_is_free(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name == "NVIDIA_VISIBLE_DEVICES":
                raise ValueError(f"{name} is set by the yard; ask for GPUs with gpus (--gpus)")
            if name in RESERVED_ENV or RESERVED_ENV_PATTERN.fullmatch(name):
                raise ValueError(f"{name} is reserved for the yard")
        return value

    @field_validator("labels")
    @classmethod
    def _labels_are_free(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("gpuyard."):
                raise ValueError(f"label {name}: names that start with gpuyard. are reserved")
        return value

    @field_validator("ports")
    @classmethod
    def _ports_are_ports(cls, value: list[str]) -> list[str]:
        for port in value:
            numbers = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})(?:/(?:tcp|udp))?", port)
            if numbers is None or not all(0 < int(n) < 65536 for n in numbers.groups() if n):
                raise ValueError(f"'{port}' is not a port; write 8888, 8080:80 or 53/udp")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.shm_mib and self.memory_mib and self.shm_mib > self.memory_mib:
            raise ValueError("shm_mib is larger than memory_mib")
        if self.network == "host" and self.ports:
            raise ValueError("ports cannot be published with network: host")
        return self

    def normalised(self) -> dict[str, Any]:
        """The kept form: every key but `id` and `user`, durations as `14400s`; reads back equal."""
        kept = self.model_dump(mode="json", exclude={"id", "user"})
        kept["gpus"] = self.gpus.requested()
        kept["max_runtime"] = (
            None if self.max_runtime is None else format_duration(self.max_runtime)
        )
        kept["stop_grace"] = format_duration(self.stop_grace)
        if isinstance(self.on_partition, dict):
            kept["on_partition"] = {"stop_after": format_duration(self.on_partition["stop_after"])}
        return kept


def spec_digest(normalised: Mapping[str, Any]) -> str:
    """SHA-256 of a kept form; the same for any order of keys and any way it was written."""
    text = json.dumps(normalised, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
