"""What a tenant fills in or caps of each job, and what a dry run says of all that."""

from typing import Any

import pytest

from gpuyard.errors import Conflict, InvalidJob
from tests.support.yard import Yard


def yard_of(gpus: int = 8, **document: Any) -> Yard:
    yard = Yard()
    yard.tenant(**document)
    yard.node("a", gpus=gpus)
    return yard


AN_HOUR = "max_runtime is 1h by the tenant's default"
PER_JOB = {
    "default_gpus": 2,
    "default_cpus_per_gpu": 4,
    "default_memory_mib_per_gpu": 1024,
    "default_runtime": "1h",
    "max_runtime": "2h",
    "max_priority": 60,
}


@pytest.mark.parametrize(
    ("spec", "filled", "notes"),
    [
        (
            {},
            {"cpus": 8, "memory_mib": 2048, "max_runtime": "3600s", "priority": 50},
            "gpus is 2 by the tenant's default; cpus is 8 by the tenant's default; memory_mib is "
            + f"2048 by the tenant's default; {AN_HOUR}",
        ),
        (
            {"gpus": 1, "cpus": 1, "max_runtime": "2h", "priority": 90},
            {"cpus": 1, "memory_mib": 1024, "max_runtime": "7200s", "priority": 60},
            "memory_mib is 1024 by the tenant's default; priority is capped to 60",
        ),
        (
            {"gpus": "device=0,1,2", "memory_mib": 64},
            {"cpus": 12, "memory_mib": 64, "max_runtime": "3600s", "priority": 50},
            f"cpus is 12 by the tenant's default; {AN_HOUR}",
        ),
        (
            {"gpus": "50%", "max_runtime": "1m"},
            {"cpus": None, "memory_mib": None, "max_runtime": "60s", "priority": 50},
            None,
        ),
    ],
)
def test_defaults_and_caps_are_filled_in_with_words(
    spec: dict[str, Any], filled: dict[str, Any], notes: str | None
) -> None:
    yard = yard_of(per_job=PER_JOB)
    yard.submit("j", **spec)
    yard.plan()

    job = yard.job()
    assert {key: job.spec[key] for key in filled} == filled
    assert job.priority == filled["priority"]
    assert yard.events()[0]["message"] == notes
    again = yard.submit("j", **spec)
    assert again.error is None and again.key == ("default", "j"), "it is still the same job"


@pytest.mark.parametrize(
    ("gpus", "held"),
    [(0, 0), ("0", 0), ("none", 0), ({"count": 0}, 0), (None, 2), ({}, 2)],
)
def test_no_gpu_that_is_asked_for_is_none(gpus: object, held: int) -> None:
    yard = yard_of(per_job=PER_JOB)
    yard.submit("j", gpus=gpus)
    yard.plan()

    assert len(yard.held("j")) == held
    assert yard.submit("j", gpus=gpus).error is None
    yard.restart()
    assert len(yard.held("j")) == held


def test_a_dry_run_names_what_is_filled_in() -> None:
    notes = yard_of(per_job=PER_JOB).try_submit(gpus=1, priority=90)["notes"]

    assert notes == [
        "cpus is 4 by the tenant's default",
        "memory_mib is 1024 by the tenant's default",
        AN_HOUR,
        "priority is capped to 60",
    ]


def test_a_dry_run_says_that_an_id_is_taken() -> None:
    yard = yard_of()
    yard.submit("live")
    yard.submit("over")
    yard.cancel("over")
    yard.submit("refused", gpus=-1)
    yard.cancel("early")

    cases: list[tuple[str, dict[str, Any], str]] = [
        ("live", {}, "exists already with this spec; it is queued"),
        ("live", {"gpus": 1}, "exists already with another spec; it is queued"),
        ("over", {}, "exists already with this spec; it is cancelled"),
        ("early", {}, "was cancelled before it was submitted"),
    ]
    for id, spec, told in cases:
        with pytest.raises(Conflict, match=told):
            yard.try_submit(id=id, **spec)
    assert yard.try_submit(id="refused")["fits"], "a refusal takes no id"


def test_a_cap_alone_is_the_default_runtime() -> None:
    yard = yard_of(per_job={"max_runtime": "2h"})
    yard.submit("j")

    assert yard.job().spec["max_runtime"] == "7200s"


def test_a_dry_run_says_what_would_become_of_a_job_and_keeps_nothing() -> None:
    yard = yard_of(gpus=2, limits={"gpus": 2, "queued_jobs": 5})
    before = yard.store.jobs, len(yard.out), yard.core_node("a").revision

    tried = yard.try_submit(gpus=2)

    assert (tried["fits"], tried["node"], len(tried["gpus"])) == (True, "a", 2)
    assert tried["verdict"] is None
    with pytest.raises(InvalidJob, match=r"3 asked, limits\.gpus of tenant default is 2"):
        yard.try_submit(gpus=3)
    yard.submit("j", gpus=1)
    yard.plan()
    tried = yard.try_submit(gpus=2)
    assert (tried["fits"], tried["node"], tried["gpus"]) == (False, None, [])
    assert tried["verdict"]["code"] == "quota_exceeded"
    assert tried["why"]["changes"][0]["text"] == "ask for 1 GPU"
    for _ in range(3):
        assert yard.try_submit(gpus=1)["fits"], "a try takes no room from the next"
    yard.submit("k", gpus=1)
    assert yard.plan() == 1, "nor from a job"
    assert before[2] < yard.core_node("a").revision
    assert len(yard.cluster.jobs) == 2 and len(yard.store.jobs) == 2
    yard.check_replay()
