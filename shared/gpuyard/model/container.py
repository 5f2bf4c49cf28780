"""What of a job's container comes from its node: mounts, and limits of the kernel."""

import posixpath
import re
from typing import Final, Self

from pydantic import Field, field_validator, model_validator

from gpuyard.model.fields import Part

RESERVED_TARGETS: Final = ("/var/run/nvidia-container-devices", "/run", "/proc", "/sys", "/dev")
ULIMITS: Final = (
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
)
"""Those of setrlimit(2) that Docker Engine sets."""


class Mount(Part):
    """A folder or file of the node inside the container; the node's policy says which."""

    source: str = Field(min_length=1, description="A path on the node, or a volume's name.")
    target: str = Field(pattern=r"^/", description="Where it stands in the container.")
    read_only: bool = Field(default=False, description="The job may not write to it.")

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


class Ulimit(Part):
    name: str = Field(description="As `nofile` or `memlock`.")
    soft: int = Field(ge=-1, description="-1 is no limit.")
    hard: int = Field(ge=-1, description="How far the job may raise the soft one.")

    @field_validator("name")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in ULIMITS:
            raise ValueError(f"'{value[:40]}' is no limit; there are {', '.join(ULIMITS)}")
        return value

    @model_validator(mode="after")
    def _soft_is_within_hard(self) -> Self:
        if self.hard != -1 and not 0 <= self.soft <= self.hard:
            soft = "unlimited" if self.soft == -1 else self.soft
            raise ValueError(f"soft must be at most hard, which is {self.hard}, not {soft}")
        return self
