"""What an operator writes of a tenant: hard limits, caps and defaults per job, allowed models.

Every key that is unset limits nothing. Borrowing, budgets and users below a tenant are refused by
name until they can be kept.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gpuyard.errors import FieldFault, InvalidJob
from gpuyard.model import ids
from gpuyard.model.faults import faults_of
from gpuyard.model.fields import MOST_PRIORITY, HostMib, Part, Seconds
from gpuyard.model.quantities import format_duration, number

DEFAULT_TENANT: Final = "default"
_LATER: Final = {
    "guaranteed_gpus": "guarantees",
    "borrowing": "borrowing",
    "gpu_hours": "GPU-hour budgets",
    "adjust": "monitoring-driven adjustment",
    "users": "limits of users below a tenant",
}
_MODEL: Final = re.compile(r"[A-Za-z0-9._*-]{1,128}")
_MOST: Final = 1_000_000_000


def _thousandths(value: float) -> float:
    if abs(value * 1000 - round(value * 1000)) > 1e-6:
        raise ValueError("must be a number of GPUs with at most three decimals")
    return value


Fraction = Annotated[float, BeforeValidator(number), Field(ge=0, le=_MOST, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(number), Field(ge=0, le=_MOST)]
Gpus = Annotated[Fraction, Field(le=1_000_000), AfterValidator(_thousandths)]


class Limits(Part):
    """Never exceeded by the tenant as a whole."""

    gpus: Gpus | None = None
    gpu_memory_gib: Fraction | None = None
    running_jobs: Whole | None = None
    queued_jobs: Whole | None = None


class PerJob(Part):
    """Caps and defaults of each job."""

    max_gpus: Gpus | None = None
    max_runtime: Seconds | None = None
    default_runtime: Seconds | None = None
    default_gpus: Annotated[Whole, Field(le=1024)] | None = None
    default_cpus_per_gpu: Annotated[Fraction, Field(gt=0, le=100_000)] | None = None
    default_memory_mib_per_gpu: HostMib | None = None
    max_priority: Annotated[Whole, Field(le=MOST_PRIORITY)] | None = None

    @model_validator(mode="after")
    def _defaults_are_allowed(self) -> Self:
        """A default above its cap would refuse every job that says nothing."""
        for default, cap in (("default_gpus", "max_gpus"), ("default_runtime", "max_runtime")):
            given, most = getattr(self, default), getattr(self, cap)
            if given is not None and most is not None and given > most:
                raise ValueError(f"{default} is larger than {cap}")
        return self


class TenantSpec(Part):
    """One tenant's document. Unknown keys are refused."""

    tenant: str
    limits: Limits = Field(default_factory=Limits)
    per_job: PerJob = Field(default_factory=PerJob)
    models: list[str] | None = Field(default=None, max_length=256)
    share_across_tenants: bool = False
    priority: Annotated[Whole, Field(le=MOST_PRIORITY)] | None = None
    weight: Annotated[Whole, Field(ge=1, le=1000)] | None = None

    @field_validator("tenant")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not ids.is_name(value):
            raise ValueError(f"'{value}' is not a tenant's name: a-z, 0-9 and -, at most 63")
        return value

    @field_validator("models")
    @classmethod
    def _are_models(cls, value: list[str] | None) -> list[str] | None:
        for pattern in value or []:
            if not _MODEL.fullmatch(pattern):
                raise ValueError(
                    f"{pattern[:60]!r} is not a model; write NVIDIA-A100* as labels do"
                )
        return value

    def normalised(self) -> dict[str, Any]:
        """The kept form; reads back equal. Durations are texts such as `3600s`."""
        kept = self.model_dump(mode="json")
        for key in ("max_runtime", "default_runtime"):
            seconds = getattr(self.per_job, key)
            kept["per_job"][key] = None if seconds is None else format_duration(seconds)
        return kept


def parse_tenant(body: Mapping[str, Any]) -> TenantSpec:
    """The document of a body that somebody sent; raises InvalidJob with every fault."""
    fields = {key: value for key, value in body.items() if key != "v"}
    if later := list(_not_yet(fields)):
        raise InvalidJob(later)
    try:
        return TenantSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidJob(list(faults_of(error, TenantSpec, fields))) from None


def _not_yet(fields: Mapping[str, Any]) -> Iterable[FieldFault]:
    for key, what in _LATER.items():
        if key in fields:
            yield FieldFault(key, "not_supported_yet", f"{what} are not supported yet")


def template(name: str, tenant: str) -> TenantSpec:
    """The shipped templates: `dev` for people at their desks, `prod` for what must keep running.

    Raises ValueError for another name.
    """
    if name == "dev":
        per_job = PerJob(
            max_gpus=2, max_runtime=8 * 3600.0, default_runtime=2 * 3600.0, max_priority=50
        )
        return TenantSpec(
            tenant=tenant,
            limits=Limits(gpus=4, running_jobs=16, queued_jobs=200),
            per_job=per_job,
        )
    if name == "prod":
        return TenantSpec(
            tenant=tenant,
            limits=Limits(queued_jobs=10_000),
            per_job=PerJob(max_priority=100),
        )
    raise ValueError(f"no template {name}; there are dev and prod")
