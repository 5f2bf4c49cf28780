"""What a job asks of GPUs: one request model and the grammar of `--gpus`."""

import re
from typing import Annotated, Any, Final, NotRequired, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpuyard._typing import TypedDict
from gpuyard.model import mig
from gpuyard.model.quantities import number, parse_size_mib

MAX_GPUS: Final = 1024
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{4,}|MIG-GPU-[0-9a-fA-F-]{4,}(?:/[0-9]+){0,2}")
"""Drivers before 470 name MIG instances by their GPU: `MIG-GPU-…/7/0`."""
_INDEX: Final = re.compile(r"[0-9]{1,4}")
_PERCENT: Final = re.compile(r"(?a)(\d+(?:\.\d+)?)\s*%")
_FORMS: Final = (
    "write a number, all, none, device=0,2, device=GPU-…, a share such as 8GiB or 50%, "
    "or mig=1g.10gb"
)


class GpusRequested(TypedDict):
    """A request in its kept form; every key is present."""

    count: int
    all: bool
    ids: list[str]
    memory_mib: int | None
    core_percent: float | None
    mig: str | None


class GpuFields(TypedDict):
    """What `parse_gpus` found; keys that the text does not speak of are absent."""

    count: NotRequired[int]
    all: NotRequired[bool]
    ids: NotRequired[list[str]]
    memory_mib: NotRequired[int]
    core_percent: NotRequired[float]
    mig: NotRequired[str]


class GpuRequest(BaseModel):
    """GPUs of one node. Exactly one form: `count`, `all`, `ids`, a share, or `mig` with `count`.

    `ids` are NVML indexes (`0`) or UUIDs (`GPU-…`, a unique prefix of at least 8 characters is
    enough), or UUIDs of MIG instances (`MIG-…`). A share is `memory_mib` and/or `core_percent` of
    one GPU. `mig` is the profile of instances that exist; GPUs are never split for a job.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    count: int = Field(default=0, ge=0, le=MAX_GPUS, strict=True)
    all: bool = False
    ids: list[str] = Field(default_factory=list, max_length=MAX_GPUS)
    memory_mib: Annotated[int, Field(gt=0), BeforeValidator(number)] | None = None
    core_percent: Annotated[float, Field(gt=0, le=100), BeforeValidator(number)] | None = None
    mig: str | None = Field(default=None, pattern=mig.PROFILE)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [self.all, bool(self.ids), self.is_share, self.mig is not None]
        if sum(forms) > 1 or (self.count and any(forms[:3])):
            raise ValueError("only one of count, all, ids, a share and mig may be asked for")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("the same GPU is named twice")
        for text in self.ids:
            if not _INDEX.fullmatch(text) and not (_UUID.fullmatch(text) and len(text) >= 8):
                raise ValueError(f"'{text[:40]}' is neither an index nor a GPU UUID")
        if self.mig is not None and self.count == 0:
            self.count = 1
        return self

    @property
    def is_share(self) -> bool:
        return self.memory_mib is not None or self.core_percent is not None

    def requested(self) -> GpusRequested:
        return {
            "count": self.count,
            "all": self.all,
            "ids": list(self.ids),
            "memory_mib": self.memory_mib,
            "core_percent": self.core_percent,
            "mig": self.mig,
        }


def parse_gpus(text: str) -> GpuFields:
    """The request that a `--gpus` text means; raises ValueError with one clear line."""
    cleaned = text.strip().strip("\"'").strip()
    if not cleaned:
        raise ValueError("it is empty; write 0 for none")
    if cleaned in ("0", "none"):
        return {"count": 0}  # said, unlike nothing, so no default of a tenant takes its place
    if cleaned == "all":
        return {"all": True}
    if cleaned.startswith("mig="):
        profile, _, count = cleaned.removeprefix("mig=").partition(":")
        if count and not _INDEX.fullmatch(count):
            raise ValueError(
                f"'{count[:40]}' is not a number of MIG instances; write mig=1g.10gb:2"
            )
        return {"mig": profile, "count": int(count) if count else 1}
    is_device = cleaned.startswith("device=")
    parts = [part.strip() for part in cleaned.removeprefix("device=").split(",")]
    if all(_INDEX.fullmatch(part) or _UUID.fullmatch(part) for part in parts):
        if len(parts) == 1 and not is_device and _INDEX.fullmatch(parts[0]):
            return {"count": int(parts[0])}
        return {"ids": parts}
    if is_device:
        raise ValueError(
            f"'{text[:40]}' names no GPUs: device= takes indexes or UUIDs, as device=0,2"
        )
    return _parse_share(text, parts)


def _parse_share(text: str, parts: list[str]) -> GpuFields:
    share: GpuFields = {}
    for part in parts:
        if match := _PERCENT.fullmatch(part):
            share["core_percent"] = float(match[1])
            if not 0 < share["core_percent"] <= 100:
                raise ValueError(
                    f"'{text[:40]}': a share is more than 0% of one GPU, and at most 100%"
                )
        elif re.search(r"[a-zA-Z]$", part):
            try:
                share["memory_mib"] = parse_size_mib(part)
            except ValueError:
                raise ValueError(f"'{text[:40]}' is not a GPU request; {_FORMS}") from None
        else:
            raise ValueError(f"'{text[:40]}' is not a GPU request; {_FORMS}")
    if len(parts) != len(share):
        raise ValueError(f"'{text[:40]}' is not a GPU request; {_FORMS}")
    return share


def normalise_gpus(value: Any) -> Any:
    """A job's `gpus` in any accepted form as the fields of `GpuRequest`."""
    if value is None:
        return {}
    if isinstance(value, bool):
        raise ValueError(f"a truth value is no GPU request; {_FORMS}")
    if isinstance(value, int):
        return {"count": value}
    if isinstance(value, float):
        raise ValueError(f"a part of a GPU is asked for as a share; {_FORMS}")
    if isinstance(value, str):
        return parse_gpus(value)
    if isinstance(value, dict):
        known = set(GpuRequest.model_fields)
        fields = {k: v for k, v in value.items() if k not in known or v is not None}
        if isinstance(named := fields.get("ids"), list):
            # An index is written as a number as often as it is written as a text.
            fields["ids"] = [str(item) if type(item) is int else item for item in named]
        return fields
    return value
