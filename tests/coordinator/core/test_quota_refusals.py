"""What a tenant's limits refuse at once, and what they just allow."""

from typing import Any

import pytest

from gpuyard.errors import InvalidJob
from gpuyard.model.where_flags import from_gpu_model
from tests.support.yard import Yard


def yard_of(gpus: int = 8, **document: Any) -> Yard:
    yard = Yard()
    yard.tenant(**document)
    yard.node("a", gpus=gpus)
    return yard


def refused(yard: Yard, **spec: Any) -> tuple[str, str, str]:
    """(reason, field, message) of a refusal, as record, event and answer have it."""
    outcome = yard.submit("j", **spec)
    assert isinstance(outcome.error, InvalidJob)
    (fault,) = outcome.error.faults
    record, event = yard.done("j"), yard.story.rejected[-1]
    assert (record["state"], record["reason"]) == ("failed", event["reason"])
    assert event["data"]["errors"] == [fault.as_dict()]
    assert fault.code == record["reason"]
    assert record["message"] == str(fault)
    assert ("default", "j") not in yard.cluster.jobs
    return str(record["reason"]), fault.field, fault.message


@pytest.mark.parametrize(
    ("document", "spec", "field", "message"),
    [
        (
            {"limits": {"gpus": 4}},
            {"gpus": 5},
            "gpus",
            "5 asked, limits.gpus of tenant default is 4",
        ),
        (
            {"per_job": {"max_gpus": 2}},
            {"gpus": "device=0,1,2"},
            "gpus",
            "3 asked, per_job.max_gpus of tenant default is 2",
        ),
        (
            {"limits": {"gpus": 0.3}},
            {"gpus": "30.1%"},
            "gpus",
            "0.301 asked, limits.gpus of tenant default is 0.3",
        ),
        (
            {"limits": {"gpus": 0}},
            {"gpus": "8GiB"},
            "gpus",
            "0 asked, limits.gpus of tenant default is 0",
        ),
        (
            {"limits": {"gpus": 0.5}},
            {"gpus": "all"},
            "gpus",
            "1 asked, limits.gpus of tenant default is 0.5",
        ),
        (
            {"limits": {"gpu_memory_gib": 8}},
            {"gpus": "9GiB"},
            "gpus",
            "9216 MiB asked, limits.gpu_memory_gib of tenant default is 8",
        ),
        (
            {"limits": {"gpu_memory_gib": 0}},
            {"gpus": 1},
            "gpus",
            "0 MiB asked, limits.gpu_memory_gib of tenant default is 0",
        ),
        (
            {"models": []},
            {"gpus": 1},
            "gpus",
            "models of tenant default is empty: it may use no GPU",
        ),
        ({"limits": {"running_jobs": 0}}, {}, "", "limits.running_jobs of tenant default is 0"),
        (
            {"per_job": {"max_runtime": "2h"}},
            {"max_runtime": "3h"},
            "max_runtime",
            "3h asked, per_job.max_runtime of tenant default is 2h",
        ),
    ],
)
def test_what_only_an_edit_could_cure_is_refused_at_once(
    document: dict[str, Any], spec: dict[str, Any], field: str, message: str
) -> None:
    yard = yard_of(**document)

    assert refused(yard, **spec) == ("quota_impossible", field, message)


@pytest.mark.parametrize(
    ("models", "where"),
    [
        (["NVIDIA-A100-SXM4-80GB"], ["gpu-name=NVIDIA-H200"]),
        (["NVIDIA-A100-SXM4-80GB"], [from_gpu_model("H200|RTX 4090")]),
        (["nvidia-a100*", "NVIDIA-A40"], ["gpu-name=NVIDIA-H200|NVIDIA-L4"]),
        (["NVIDIA-A100*"], ["gpu-name=NVIDIA-H*"]),
        (["*-80GB"], ["gpu-name=*-40GB"]),
        (["NVIDIA-A100-*", "NVIDIA-A40"], ["gpu-name!=NVIDIA-A*"]),
        (["NVIDIA-A100*", "NVIDIA-H200"], ["gpu-name=NVIDIA-H*", "gpu-name!=NVIDIA-H200"]),
    ],
)
def test_lines_that_rule_out_every_allowed_model_are_refused_at_once(
    models: list[str], where: list[str]
) -> None:
    yard = yard_of(models=models)
    reason, field, message = refused(yard, gpus=1, where=where)
    assert (reason, field) == ("quota_impossible", "where")
    assert message == (
        f"{' and '.join(where)} asked, models of tenant default allows only {', '.join(models)}"
    )
    assert yard.submit("cpu", where=where).error is None, "it asks for no GPU"


@pytest.mark.parametrize(
    ("models", "where"),
    [
        (["NVIDIA-A100*"], [from_gpu_model("H200")]),
        (["NVIDIA-A100*"], ["gpu-name=*80GB"]),
        (["*"], ["gpu-name=NVIDIA-H200"]),
        (["*"], ["gpu-name!=*"]),
        (["NVIDIA-A100*"], ["gpu-name!=NVIDIA-A100-SXM4-80GB"]),
        (["NVIDIA-A100*"], ["gpu-memory>=200", "gpu-name"]),
        (["NVIDIA-A100*", "NVIDIA-H200"], ["gpu-name=NVIDIA-H*"]),
        (None, ["gpu-name=NVIDIA-H200"]),
    ],
)
def test_where_other_gpus_could_cure_it_a_job_waits(
    models: list[str] | None, where: list[str]
) -> None:
    yard = yard_of(models=models)
    assert yard.submit("j", gpus=1, where=where).error is None
    assert yard.plan() == 0


def test_a_refusal_names_a_few_of_many_models() -> None:
    yard = yard_of(models=[f"NVIDIA-A{number}" for number in range(9)])
    _, _, message = refused(yard, gpus=1, where=["gpu-name=NVIDIA-H200"])
    assert message.endswith(
        "allows only NVIDIA-A0, NVIDIA-A1, NVIDIA-A2, NVIDIA-A3, NVIDIA-A4 and 4 more"
    )


def test_a_refused_job_may_come_again_once_the_tenant_was_edited() -> None:
    yard = yard_of(limits={"gpus": 1})
    refused(yard, gpus=2)

    yard.tenant(limits={"gpus": 2})
    assert yard.submit("j", gpus=2).error is None

    assert yard.plan() == 1


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        ({"limits": {"gpus": 4}}, {"gpus": 4}),
        ({"limits": {"gpus": 0.3}}, {"gpus": "30%"}),
        ({"limits": {"gpus": 0}}, {}),
        ({"models": []}, {}),
        ({"limits": {"gpu_memory_gib": 8}}, {"gpus": "8GiB"}),
        ({"limits": {"running_jobs": 1}}, {"gpus": 8}),
        ({"per_job": {"max_runtime": "2h"}}, {"max_runtime": "2h"}),
        ({"limits": {"queued_jobs": 1}}, {}),
    ],
)
def test_what_is_just_within_the_limits_starts(
    document: dict[str, Any], spec: dict[str, Any]
) -> None:
    yard = yard_of(**document)
    yard.submit("j", **spec)

    assert yard.plan() == 1


def test_a_full_queue_refuses_until_it_has_room() -> None:
    yard = Yard()
    yard.tenant(limits={"queued_jobs": 2})
    for id in ("one", "two"):
        yard.submit(id, gpus=1)
    assert refused(yard, gpus=1) == (
        "queue_full",
        "",
        "tenant default has 2 queued jobs, its limit is 2",
    )
    assert yard.submit("theirs", tenant="other").error is None

    yard.cancel("one")

    assert yard.submit("j", gpus=1).error is None
