"""The page of a tenant's document, from the model; the example is parsed before it is shown."""

import json
from typing import Final

from pydantic import BaseModel
from ruamel.yaml import YAML

from gpuyard.errors import InvalidJob
from gpuyard.model.tenant import Limits, PerJob, TenantSpec, parse_tenant, template
from reference.job import field_default, field_type, plain_number
from reference.markdown import block, code, described, page, table

_EXAMPLE: Final = """
tenant: team-a
limits: {gpus: 4, running_jobs: 40, queued_jobs: 2000}
per_job: {max_gpus: 2, default_runtime: 4h, max_priority: 60}
models: [NVIDIA-A100*, NVIDIA-H100*]
"""
_TENANT: Final = {
    "tenant": "its name: lower-case letters, digits and hyphens",
    "limits": "for the tenant as a whole: [limits](#limits)",
    "per_job": "for each job: [per_job](#per_job)",
    "models": "GPU models its jobs may use, as the label `gpu-name` spells them; `*` is any text",
    "share_across_tenants": "its shares may sit beside another such tenant's on one GPU",
    "priority": "0 to 100, unset 50; before the priority of the jobs: any job of a tenant with "
    "more goes before, and may preempt, all of one with less",
    "weight": "1 to 1000, unset 1; its part of the yard among tenants of equal priority, while "
    "jobs of all of them wait",
}
_LIMITS: Final = {
    "gpus": "GPUs held at one time; shares count by their size",
    "gpu_memory_gib": "memory of the GPUs, or shares of GPUs, held at one time",
    "running_jobs": "jobs that hold a node at one time",
    "queued_jobs": "jobs that wait at one time, not those that start at once; with so many, any "
    "job more is refused (`queue_full`)",
}
_PER_JOB: Final = {
    "max_gpus": "GPUs of one job",
    "max_runtime": "the longest `max_runtime`",
    "default_runtime": "`max_runtime` of a job that has none",
    "default_gpus": "`gpus` of a job that says nothing of them; `gpus: 0` stays none",
    "default_cpus_per_gpu": "`cpus` of a job that has none, for each of its GPUs",
    "default_memory_mib_per_gpu": "`memory_mib` of a job that has none, for each of its GPUs",
    "max_priority": "the largest `priority`",
}


def tenant_page() -> str:
    try:
        parse_tenant(YAML(typ="safe", pure=True).load(_EXAMPLE))
    except InvalidJob as fault:
        raise SystemExit(f"scripts/reference: the example of a tenant is wrong: {fault}") from fault
    return page(
        "A tenant",
        "What an operator may say of a tenant, in a file for `gpuyard apply -f`. A key that is "
        "left out limits nothing. A tenant without a document is not limited.",
        block("yaml", _EXAMPLE),
        "A job that could never fit the limits is refused at once (`quota_impossible`); one that "
        "others' ends will make room for waits with the verdict `quota_exceeded`, and `gpuyard "
        "why` names the limit. A document takes effect at once and ends nothing that runs: above a "
        "lowered limit running jobs run out and new ones wait.",
        _table(TenantSpec, _TENANT),
        "## limits",
        _table(Limits, _LIMITS),
        "## per_job",
        _table(PerJob, _PER_JOB),
        "## Templates",
        "`gpuyard apply --template NAME TENANT` takes one of these:",
        table(["name", "says"], ((code(name), code(_shown(name))) for name in ("dev", "prod"))),
    )


def _table(model: type[BaseModel], words: dict[str, str]) -> str:
    schema = model.model_json_schema()["properties"]
    return table(
        ["key", "type", "default", "means"],
        (
            (
                code(name),
                "map" if "$ref" in schema[name] else field_type(field, schema[name]),
                "-" if "$ref" in schema[name] else field_default(field),
                text,
            )
            for name, text in described(model.model_fields, words, f"keys of {model.__name__}")
            for field in [model.model_fields[name]]
        ),
    )


def _shown(name: str) -> str:
    kept = template(name, "team-a").normalised()
    parts = {"limits": kept["limits"], "per_job": kept["per_job"]}
    return json.dumps({key: _given(part) for key, part in parts.items()})


def _given(part: dict[str, object]) -> dict[str, object]:
    return {key: plain_number(item) for key, item in part.items() if item is not None}
