"""Tenants' documents: applied at once, stored, told, and refused where they cannot be meant."""

from typing import Any

import pytest

from gpuyard.errors import Conflict, InvalidJob, UnknownThing
from gpuyard.model.tenant import TenantSpec, parse_tenant, template
from gpuyard_coordinator import reads
from tests.support.yard import Yard


def test_a_document_is_stored_told_and_in_force_for_the_next_leader() -> None:
    yard = Yard()
    yard.node("a", gpus=2)
    outcome = yard.tenant(limits={"gpus": 1}, models=["*4090"], share_across_tenants=True)
    assert (outcome.tenant, outcome.error) == ("default", None)
    kept = yard.cluster.tenants["default"]
    (audit,) = yard.story.audits
    assert (audit["action"], audit["namespace"], audit["user"]) == (
        "tenant_applied",
        "default",
        "olga",
    )
    assert (audit["before"], audit["after"]) == (None, kept)
    for id in ("j", "k"):
        yard.submit(id, gpus=1)
    yard.plan()

    yard.restart()
    yard.beat("a")
    yard.plan()

    assert yard.cluster.tenants == {"default": kept}
    assert yard.states("j", "k") == ["assigned", "queued"]


def test_the_same_document_again_changes_and_tells_nothing() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 1})
    out = len(yard.out)

    assert yard.tenant(limits={"gpus": 1.0}).error is None

    assert len(yard.out) == out


def test_what_a_document_leaves_out_is_not_limited_any_more() -> None:
    yard = Yard()
    yard.tenant(limits={"gpus": 1})
    yard.tenant(limits={"running_jobs": 1})

    assert yard.cluster.tenants["default"]["limits"]["gpus"] is None


def test_a_tenant_is_deleted_only_without_unfinished_jobs() -> None:
    yard = Yard()
    yard.tenant("team-a", limits={"gpus": 1})
    yard.submit("j", tenant="team-a", gpus=1)
    outcome = yard.delete_tenant("team-a")
    assert isinstance(outcome.error, Conflict)
    assert str(outcome.error) == "tenant team-a has 1 unfinished jobs: cancel them first"
    yard.cancel("j", tenant="team-a")

    assert yard.delete_tenant("team-a").error is None

    assert yard.cluster.tenants == {} and yard.store.tenants == {}
    assert yard.story.audits[-1]["action"] == "tenant_deleted"
    assert yard.story.audits[-1]["after"] is None
    again = yard.delete_tenant("team-a").error
    assert isinstance(again, UnknownThing) and again.code == "unknown_tenant"


def test_waiting_jobs_move_to_what_a_new_document_lets_them_use() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.tenant(models=["NVIDIA-H200"])
    yard.submit("j", gpus=1)
    assert yard.plan() == 0
    place = yard.cluster.queue.position(yard.job())

    yard.tenant(models=["NVIDIA-H200", "*4090"])

    assert yard.cluster.queue.position(yard.job()) == place
    assert yard.plan() == 1


def test_nodes_that_failed_a_job_stay_out_under_a_new_document() -> None:
    yard = Yard()
    for name in "ab":
        yard.node(name, gpus=1)
    yard.submit("j", gpus=1)
    yard.plan()
    yard.submit("k", gpus=1)
    yard.plan()
    yard.end("j", reason="no_space")
    yard.plan()
    assert yard.states("j") == ["queued"]

    yard.tenant(models=["*4090"])

    assert yard.plan() == 0


def test_what_is_shown_of_tenants() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.tenant("team-a", limits={"gpus": 4})
    yard.submit("j", tenant="team-a", gpus="8GiB")
    yard.submit("k", tenant="team-b", gpus=1)
    yard.plan()
    yard.submit("l", tenant="team-b", gpus=9)

    shown = {name: view for name, view in reads.tenant_views(yard.cluster, "")}

    assert sorted(shown) == ["default", "team-a", "team-b"]
    assert shown["team-a"]["used"] == {
        "gpus": 0.333,
        "gpu_memory_gib": 8,
        "running_jobs": 1,
        "queued_jobs": 0,
    }
    assert shown["team-a"]["exists"] and not shown["team-b"]["exists"]
    assert shown["team-b"]["limits"]["gpus"] is None
    assert shown["team-b"]["used"]["queued_jobs"] == 1
    assert [name for name, _ in reads.tenant_views(yard.cluster, "team-a")] == ["team-b"]
    reads.show_tenant(yard.cluster, "nobody")
    assert "nobody" not in yard.cluster.use, "a look leaves nothing behind"


def test_what_would_be_over_under_another_document() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("j", gpus=3)
    yard.plan()
    document = parse_tenant({"tenant": "default", "limits": {"gpus": 2}}).normalised()

    assert reads.tenant_as(yard.cluster, document)["over"] == ["gpus"]
    assert reads.show_tenant(yard.cluster, "default")["over"] == []


@pytest.mark.parametrize("name", ["dev", "prod"])
def test_the_shipped_templates_are_whole_documents(name: str) -> None:
    document = template(name, "team-a").normalised()

    assert document["tenant"] == "team-a"
    assert parse_tenant(document).normalised() == document
    yard = Yard()
    yard.node("a", gpus=8)
    yard.tenant("team-a", **{k: v for k, v in document.items() if k != "tenant"})
    yard.submit("j", tenant="team-a", gpus=1)
    assert yard.plan() == 1


def test_there_is_no_other_template() -> None:
    with pytest.raises(ValueError, match="no template test; there are dev and prod"):
        template("test", "team-a")


def test_the_kept_form_reads_back_equal() -> None:
    document = {
        "tenant": "team-a",
        "limits": {"gpus": 8.334, "gpu_memory_gib": 320, "running_jobs": 40, "queued_jobs": 2000},
        "per_job": {
            "max_gpus": 4,
            "max_runtime": "24h",
            "default_runtime": "4h",
            "default_gpus": 0,
            "default_cpus_per_gpu": 8,
            "default_memory_mib_per_gpu": "64GiB",
            "max_priority": 60,
        },
        "models": ["NVIDIA-A100*", "NVIDIA-H100*"],
        "share_across_tenants": False,
    }
    kept = parse_tenant(document | {"v": 1}).normalised()

    assert parse_tenant(kept).normalised() == kept
    assert kept["per_job"]["max_runtime"] == "86400s"
    assert kept["per_job"]["default_memory_mib_per_gpu"] == 65536
    assert TenantSpec(tenant="x").normalised()["limits"] == {
        "gpus": None,
        "gpu_memory_gib": None,
        "running_jobs": None,
        "queued_jobs": None,
    }


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "tenant", "is required"),
        ({"tenant": "Team A"}, "tenant", "is not a tenant's name"),
        ({"tenant": "_"}, "tenant", "is not a tenant's name"),
        ({"tenant": 5}, "tenant", "must be a text"),
        ({"limit": {}}, "limit", "unknown field"),
        ({"limits": {"gpu": 4}}, "limits.gpu", "unknown field"),
        ({"limits": []}, "limits", "must be a map"),
        ({"limits": {"gpus": -1}}, "limits.gpus", "must be at least 0"),
        ({"limits": {"gpus": True}}, "limits.gpus", "not true or false"),
        ({"limits": {"gpus": 0.0005}}, "limits.gpus", "at most three decimals"),
        ({"limits": {"gpus": float("inf")}}, "limits.gpus", "inf"),
        ({"limits": {"gpus": float("nan")}}, "limits.gpus", "nan"),
        ({"limits": {"gpus": "four"}}, "limits.gpus", "must be a number"),
        ({"limits": {"gpu_memory_gib": float("inf")}}, "limits.gpu_memory_gib", "inf"),
        ({"limits": {"running_jobs": 1.5}}, "limits.running_jobs", "must be a whole number"),
        ({"limits": {"running_jobs": True}}, "limits.running_jobs", "not true or false"),
        ({"limits": {"queued_jobs": 10**30}}, "limits.queued_jobs", "must be at most"),
        ({"per_job": {"max_runtime": "soon"}}, "per_job.max_runtime", "is not a duration"),
        ({"per_job": {"max_priority": 101}}, "per_job.max_priority", "must be at most 100"),
        ({"per_job": {"max_priority": False}}, "per_job.max_priority", "not true or false"),
        ({"per_job": {"default_gpus": 1.5}}, "per_job.default_gpus", "must be a whole number"),
        (
            {"per_job": {"default_cpus_per_gpu": float("inf")}},
            "per_job.default_cpus_per_gpu",
            "inf",
        ),
        (
            {"per_job": {"default_gpus": 4, "max_gpus": 2}},
            "per_job",
            "default_gpus is larger than max_gpus",
        ),
        (
            {"per_job": {"default_runtime": "3h", "max_runtime": "2h"}},
            "per_job",
            "default_runtime is larger than max_runtime",
        ),
        ({"models": ["NVIDIA A100"]}, "models", "is not a model"),
        ({"models": ["a|b"]}, "models", "is not a model"),
        ({"models": [""]}, "models", "is not a model"),
        ({"models": "NVIDIA-A100*"}, "models", "must be a list"),
        ({"share_across_tenants": "perhaps"}, "share_across_tenants", "must be true or false"),
        ({"guaranteed_gpus": 4}, "guaranteed_gpus", "guarantees are not supported yet"),
        ({"gpu_hours": {}}, "gpu_hours", "not supported yet"),
        ({"users": {}}, "users", "not supported yet"),
    ],
)
def test_a_wrong_document_is_refused_by_field(body: dict[str, Any], field: str, words: str) -> None:
    body = body if "tenant" in body or not body else {"tenant": "team-a"} | body
    with pytest.raises(InvalidJob) as caught:
        parse_tenant(body)

    (fault,) = caught.value.faults
    assert fault.field == field
    assert words in fault.message


def test_every_fault_is_named_at_once_with_the_nearest_name() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_tenant({"tenant": "a", "limits": {"gpu": 1, "running_jobs": -1}, "modles": []})

    faults = {fault.field: fault.did_you_mean for fault in caught.value.faults}
    assert faults == {"limits.gpu": "gpus", "limits.running_jobs": None, "modles": "models"}


def test_the_first_job_of_a_tenant_without_a_document_says_so() -> None:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("before", tenant="typo")
    yard.tenant("default", limits={"gpus": 1})
    yard.submit("still", tenant="other")
    yard.tenant("team-a", limits={"gpus": 1})
    yard.submit("busy", tenant="typo")
    yard.submit("first", tenant="strange")
    yard.plan()
    yard.submit("second", tenant="strange")
    yard.submit("own", tenant="team-a")
    yard.submit("plain", tenant="default")

    def told(id: str, tenant: str) -> dict[str, Any]:
        data: dict[str, Any] = yard.events(id, tenant=tenant)[0]["data"]
        return data

    assert told("first", "strange") == {"unlimited": True}
    for id, tenant in (
        ("before", "typo"),
        ("still", "other"),
        ("busy", "typo"),
        ("second", "strange"),
        ("own", "team-a"),
        ("plain", "default"),
    ):
        assert told(id, tenant) == {}
