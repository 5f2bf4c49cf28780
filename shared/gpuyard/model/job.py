"""`JobSpec`: what a person writes, whichever way it reaches the yard, and its kept form."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from gpuyard.model import arrays, ids, where
from gpuyard.model.container import Mount, Ulimit
from gpuyard.model.contradictions import contradiction
from gpuyard.model.fields import (
    MOST_PRIORITY,
    Count,
    Cpus,
    EnvName,
    HostMib,
    Mib,
    Moment,
    Part,
    Seconds,
    Words,
    read_seconds,
)
from gpuyard.model.gangs import MOST_NODES, gang_fault
from gpuyard.model.gpus import GpuRequest, normalise_gpus
from gpuyard.model.grace import DEFAULT_STOP_GRACE_S
from gpuyard.model.image import REFERENCE
from gpuyard.model.quantities import format_duration, number
from gpuyard.model.reasons import EndReason, Owner

RESERVED_ENV: Final = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_IMEX_CHANNELS",
)
RESERVED_ENV_PATTERN: Final = re.compile(r"NVIDIA_MIG_.*_DEVICES|CUDA_MPS_.*|GPUYARD_.*")
DEFAULT_PRIORITY: Final = 50
DEFAULT_BACKOFF_S: Final = 10.0
LONGEST_BACKOFF_S: Final = 300.0
"""What the wait before a retry grows to, unless the job asks for a longer one."""
_LARGEST_ID: Final = 2**31 - 1
"""Of a user or a group, to Docker Engine."""


class Retries(Part):
    """How often an attempt that ran may be tried again, and after which ends.

    `when` holds owners (`platform`), end reasons (`out_of_memory`) and exit codes (`exit:75`).
    Before the first new attempt the job waits `backoff`, before each further one twice as long, at
    most five minutes or `backoff` where that is longer.
    """

    max: Annotated[int, BeforeValidator(number)] = Field(
        default=0, ge=0, le=100, description="New attempts at most."
    )
    when: list[str] = Field(
        default_factory=lambda: ["platform", "hardware"],
        description="After which ends: owners, end reasons, `exit:CODE`.",
    )
    backoff: Annotated[float, Field(ge=0, le=86_400), BeforeValidator(read_seconds)] = Field(
        default=DEFAULT_BACKOFF_S,
        description="Wait before the first new attempt; doubled each time, up to 5 minutes.",
    )

    @field_validator("when")
    @classmethod
    def _is_known(cls, value: list[str]) -> list[str]:
        known = {*Owner, *EndReason}
        for item in value:
            if item not in known and not re.fullmatch(r"exit:[0-9]{1,3}", item):
                raise ValueError(f"'{item}' is neither an owner, an end reason nor exit:CODE")
        return value


class StopAfter(Part):
    """The attempt is ended on its node once the bus was away this long, and may move then."""

    stop_after: Annotated[float, Field(ge=1, le=30 * 86_400), BeforeValidator(read_seconds)] = (
        Field(description="At least `suspect_s` of the yard: 6s unless it was set otherwise.")
    )


OnPartition = Annotated[
    Annotated[Literal["keep"], Tag("[text]")] | Annotated[StopAfter, Tag("[map]")],
    # The tags keep a fault of one form from being told of the other too.
    Discriminator(lambda value: "[map]" if isinstance(value, dict | StopAfter) else "[text]"),
]


class After(Part):
    """A job that must end first, or has ended already; one that the tenant never had is refused.

    One that ends otherwise ends this job as well, as `dependency_failed`.
    """

    job: str = Field(description="The other job's whole id.")
    when: Literal["succeeded", "failed", "ended"] = Field(
        default="succeeded", description="How that job must have ended."
    )

    @field_validator("job")
    @classmethod
    def _job_is_id(cls, value: str) -> str:
        if not ids.is_any_id(value):
            raise ValueError(f"'{value[:64]}' is not a job's id")
        return value


class JobSpec(Part):
    """One request to run a container to its end. Unknown fields are refused."""

    id: str | None = Field(
        default=None,
        description="One job of the tenant for 30 days; without one the yard gives one.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Shown beside the id; need not be unique.",
    )
    image: str = Field(
        min_length=1,
        max_length=512,
        pattern=REFERENCE,
        description="The container image, as docker names it.",
    )
    command: Words | None = Field(
        default=None, description="The command and its words, instead of the image's."
    )
    entrypoint: Words | None = Field(
        default=None, description="Instead of the image's; an empty list takes it away."
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict,
        description="Environment variables; names that choose GPUs are the yard's.",
    )
    workdir: str | None = Field(
        default=None, pattern=r"^/", description="Working directory in the container."
    )
    run_as: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_.-]*(:[A-Za-z0-9_.][A-Za-z0-9_.-]*)?$",
        description="User in the container, as UID[:GID] or names of the image.",
    )
    stdin: bool = Field(default=False, description="Standard input stays open.")
    tty: bool = Field(default=False, description="A terminal in the container.")
    labels: dict[str, str] = Field(
        default_factory=dict, description="Your own marks; names under `gpuyard.` are reserved."
    )
    user: str | None = Field(
        default=None, description="Whose job it is, where the subject does not say; a claim."
    )
    array: str | None = Field(
        default=None,
        description="Many tasks from one job: 0-99, 1,3,7, 0-99:2 (every second), and %8 behind "
        "it for at most 8 at once.",
    )
    after: list[After] = Field(
        default_factory=list,
        max_length=100,
        description="Jobs that must have ended before, and how.",
    )
    hold: bool = Field(default=False, description="Wait until it is released.")
    not_before: Moment | None = Field(
        default=None,
        description="It starts then or later: a duration from now, or RFC 3339 with its zone.",
    )
    deadline: Moment | None = Field(
        default=None, description="It has ended by then, or is ended; written as `not_before`."
    )
    gpus: Annotated[GpuRequest, BeforeValidator(normalise_gpus)] = Field(
        default_factory=GpuRequest, description="GPUs of one node; see the forms below."
    )
    node: str | None = Field(default=None, description="Only this node.")
    where: list[str] = Field(
        default_factory=list,
        description="Conditions that must all hold; `gpu-*` lines hold for each GPU.",
    )
    prefer: list[str] = Field(
        default_factory=list, description="Conditions that should hold, among nodes that fit."
    )
    cpus: Cpus | None = Field(
        default=None, description="Processors; unset is not limited and counts 0."
    )
    memory_mib: HostMib | None = Field(
        default=None, description="Host memory; above it the job is killed. Unset is not limited."
    )
    shm_mib: Mib | None = Field(
        default=None, description="/dev/shm; unset: half of memory_mib, else 8192 with GPUs."
    )
    tmpfs: dict[str, str] = Field(
        default_factory=dict,
        description="Folders in memory: the path, and docker's options or an empty text.",
    )
    ulimits: list[Ulimit] = Field(
        default_factory=list,
        description="Limits of the kernel; memlock and stack are raised with GPUs.",
    )
    mounts: list[Mount] = Field(
        default_factory=list, description="Folders of the node; its policy says which."
    )
    network: str = Field(
        default="bridge",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="bridge, none, host or a network of the node. Unset: bridge; host with nodes.",
    )
    ports: list[str] = Field(
        default_factory=list, description="Ports to publish, as 8888, 8080:80 or 53/udp."
    )
    pull: Literal["missing", "always", "never"] = Field(
        default="missing", description="When the image is pulled."
    )
    priority: Count = Field(
        default=DEFAULT_PRIORITY, ge=0, le=MOST_PRIORITY, description="Larger goes first."
    )
    preemptible: bool = Field(
        default=False, description="May be stopped for a job that comes first."
    )
    tolerate: list[str] = Field(
        default_factory=list, description="Cordons it does not mind: cordon, or cordon:REASON."
    )
    max_runtime: Seconds | None = Field(
        default=None, description="Then it is asked to stop; counts from its start."
    )
    stop_grace: Seconds = Field(
        default=DEFAULT_STOP_GRACE_S, description="Time between SIGTERM and SIGKILL."
    )
    retries: Retries = Field(
        default_factory=Retries,
        description="New attempts of a job that ran; a number means max alone.",
    )
    on_partition: OnPartition | None = Field(
        default=None,
        description="What the node does when the bus is gone: `keep`, or end it after a time. "
        "Unset: keep without retries, else stop_after: 15m.",
    )
    enforcement: Literal["hard", "mps", "audited"] | None = Field(
        default=None, description="The least enforcement of a share that will do."
    )
    nodes: Count = Field(
        default=1,
        ge=1,
        le=MOST_NODES,
        description="Over how many nodes, all or nothing; all else is for each of them.",
    )

    @field_validator("id")
    @classmethod
    def _id_is_free(cls, value: str | None) -> str | None:
        if value is not None and ids.is_assigned_id(value):
            raise ValueError("ids of the form j<…>-<number> are given by the yard alone")
        if value is not None and not ids.is_job_id(value):
            raise ValueError("must be 1 to 48 lower-case letters, digits and hyphens")
        return value

    @field_validator("array")
    @classmethod
    def _array_is_tasks(cls, value: str | None) -> str | None:
        return None if value is None else arrays.kept_form(value)

    @field_validator("node")
    @classmethod
    def _node_is_name(cls, value: str | None) -> str | None:
        if value is not None and not ids.is_name(value):
            raise ValueError(f"'{value}' is not a node's name")
        return value

    @field_validator("run_as")
    @classmethod
    def _ids_are_in_range(cls, value: str | None) -> str | None:
        for part in (value or "").split(":"):
            if part.isdecimal() and int(part[:20]) > _LARGEST_ID:
                raise ValueError(f"ids of users and groups are at most {_LARGEST_ID}")
        return value

    @field_validator("tmpfs")
    @classmethod
    def _tmpfs_are_absolute(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value:
            if not path.startswith("/"):
                raise ValueError(f"'{path[:40]}' must be an absolute path, as /scratch")
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

    @field_validator("on_partition", mode="before")
    @classmethod
    def _on_partition_is_known(cls, value: Any) -> Any:
        if value in (None, "keep") or isinstance(value, dict | StopAfter):
            return value
        raise ValueError("write 'keep', or a map as {stop_after: 15m}")

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

    @field_validator("where", "prefer")
    @classmethod
    def _lines_are_conditions(cls, value: list[str]) -> list[str]:
        """Each in its kept form."""
        conditions = [where.parse(line) for line in value]
        return [str(condition) for condition in conditions]

    @field_validator("tolerate")
    @classmethod
    def _tolerations_are_known(cls, value: list[str]) -> list[str]:
        for text in value:
            if text != "cordon" and not re.fullmatch(r"cordon:.+", text):
                raise ValueError(f"'{text}' is not a toleration; write cordon or cordon:REASON")
        return value

    @field_validator("ports")
    @classmethod
    def _ports_are_ports(cls, value: list[str]) -> list[str]:
        for port in value:
            numbers = re.fullmatch(r"(?a)(?:(\d{1,5}):)?(\d{1,5})(?:/(?:tcp|udp))?", port)
            if numbers is None or not all(0 < int(n) < 65536 for n in numbers.groups() if n):
                raise ValueError(f"'{port}' is not a port; write 8888, 8080:80 or 53/udp")
        return value

    @model_validator(mode="after")
    def _gang_is_on_the_host(self) -> Self:
        """Members on several nodes cannot meet through a bridge."""
        if self.nodes > 1 and "network" not in self.model_fields_set:
            self.network = "host"
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if fault := contradiction(map(where.parse, self.where)):
            raise ValueError(f"where: {fault}")
        if self.shm_mib and self.memory_mib and self.shm_mib > self.memory_mib:
            raise ValueError("shm_mib is larger than memory_mib")
        if self.nodes > 1 and (fault := gang_fault(self)):
            raise ValueError(fault)
        if self.array is not None and self.nodes > 1:
            raise ValueError("array and nodes cannot be used together")
        if self.network == "host" and self.ports:
            raise ValueError("ports cannot be published with network: host")
        return self

    def normalised(self) -> dict[str, Any]:
        """The kept form: every key but `id` and `user`, durations as `14400s`; reads back equal.

        `gpus` is None where the job said nothing of them, so that a tenant's default may apply.
        """
        kept = self.model_dump(mode="json", exclude={"id", "user"})
        kept["gpus"] = self.gpus.requested() if self.gpus.model_fields_set else None
        kept["max_runtime"] = (
            None if self.max_runtime is None else format_duration(self.max_runtime)
        )
        kept["stop_grace"] = format_duration(self.stop_grace)
        kept["retries"]["backoff"] = format_duration(self.retries.backoff)
        if isinstance(self.on_partition, StopAfter):
            kept["on_partition"] = {"stop_after": format_duration(self.on_partition.stop_after)}
        return kept


def spec_digest(normalised: Mapping[str, Any]) -> str:
    """SHA-256 of a kept form; the same for any order of keys and any way it was written."""
    text = json.dumps(normalised, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
