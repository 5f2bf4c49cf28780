"""Tenants: shown, applied from files and templates, deleted."""

import json
from pathlib import Path

import pytest

from gpuyard.cli.apply import differences
from gpuyard.cli.render import table
from gpuyard.cli.tenants import number, tenant_columns
from tests.shared.cli.command import OnTerminal, gpuyard
from tests.shared.client.fake_operations import NO_CAPS, NO_LIMITS, tenant_view
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer

TEAM = tenant_view(
    "team-a",
    limits=NO_LIMITS | {"gpus": 4.0, "running_jobs": 40},
    per_job=NO_CAPS | {"max_gpus": 2.0, "max_runtime": "86400s"},
    models=["NVIDIA-A100*"],
    used={"gpus": 5.5, "gpu_memory_gib": 320.0, "running_jobs": 3, "queued_jobs": 12},
    over=["gpus"],
)


WOULD_CREATE = """\
tenant a created (dry run)
  limits.gpus: not set → 4
tenant b created (dry run)
  models: not set → NVIDIA-A100*
"""


async def test_tenants_are_listed_and_shown(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        empty = await gpuyard(nats_server.url, "tenants")
        assert (empty.code, empty.out) == (0, b"")
        assert "gpuyard apply --template dev NAME" in empty.err
        yard.tenants = {"team-a": TEAM, "default": tenant_view("default", exists=False)}
        listed = (await gpuyard(nats_server.url, "tenants")).out.decode().splitlines()
        assert [line.split() for line in listed] == [
            ["TENANT", "GPUS", "GPU", "GIB", "RUNNING", "QUEUED", "MODELS", "OVER"],
            ["default", "0/-", "0/-", "0/-", "0/-", "-", "-"],
            ["team-a", "5.5/4", "320/-", "3/40", "12/-", "NVIDIA-A100*", "gpus"],
        ]
        assert yard.callers[-1] == ("_", "tenants")
        assert (await gpuyard(nats_server.url, "tenants", "-q")).out == b"default\nteam-a\n"
        as_json = json.loads((await gpuyard(nats_server.url, "tenants", "--json")).out)
        assert as_json == [yard.tenants["default"], TEAM]
        shown = (await gpuyard(nats_server.url, "tenant", "team-a")).out.decode()
        assert yard.callers[-1] == ("_", "tenant")
        for words in ("Over    gpus", "gpus             5.5     4", "  max_runtime  1d"):
            assert words in shown
        own = (await gpuyard(nats_server.url, "tenant")).out.decode()
        assert yard.callers[-1] == ("default", "tenant")
        assert "none: nobody has applied any" in own
        unknown = await gpuyard(nats_server.url, "tenant", "nobody")
        assert (unknown.code, unknown.err) == (1, "gpuyard: no tenant nobody\n")


async def test_apply_files(nats_server: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text("tenant: a\nlimits: {gpus: 4}\n---\ntenant: b\nmodels: [NVIDIA-A100*]\n")
    async with FakeYard(nats_server.url) as yard:
        dry = await gpuyard(nats_server.url, "apply", "-f", str(path), "--dry-run")
        assert (dry.code, dry.out.decode()) == (0, WOULD_CREATE)
        assert yard.tenants == {}
        done = await gpuyard(nats_server.url, "apply", "-f", str(path))
        assert done.out == b"tenant a created\ntenant b created\n"
        stdin = b"tenant: a\nlimits: {gpus: 8}\n---\ntenant: b\nmodels: [NVIDIA-A100*]\n"
        dry = await gpuyard(nats_server.url, "apply", "--dry-run", "-f", "-", stdin=stdin)
        assert dry.out.decode() == (
            "tenant a configured (dry run)\n  limits.gpus: 4 → 8\ntenant b unchanged (dry run)\n"
        )
        as_json = await gpuyard(nats_server.url, "apply", "--json", "-f", str(path))
        assert [one["changed"] for one in json.loads(as_json.out)] == [False, False]
        assert set(yard.callers) == {("_", "tenant-apply")}


async def test_a_fault_in_the_last_document_applies_none(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        stdin = b"tenant: a\nlimits: {gpus: 4}\n---\ntenant: b\nlimits: {gpus: -1}\n"
        yard.refuses["tenant-apply"] = {"code": "invalid", "message": "limits.gpus: below 0"}
        done = await gpuyard(nats_server.url, "apply", "-f", "-", stdin=stdin)
        assert (done.code, done.err) == (1, "gpuyard: limits.gpus: below 0\n")
        assert all(body["dry_run"] for _, body in yard.calls)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("99999999999999999999999", "is too large a number"),
        (".nan", "must be a finite number, not nan"),
        (".inf", "must be a finite number, not inf"),
    ],
)
async def test_a_number_that_cannot_be_sent_is_named_by_its_field(
    value: str, told: str, nats_server: NatsServer
) -> None:
    async with FakeYard(nats_server.url) as yard:
        stdin = f"tenant: a\nlimits: {{gpus: {value}}}\n".encode()
        done = await gpuyard(nats_server.url, "apply", "-f", "-", stdin=stdin)
        assert (done.code, done.err) == (1, f"gpuyard: limits.gpus: {told}\n")
        assert yard.calls == []


async def test_a_tenant_that_nobody_knows_is_said_to_be_none(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.tenants = {"team-a": TEAM}
        typo = await gpuyard(nats_server.url, "jobs", "--tenant", "typo")
        assert (typo.code, typo.out) == (0, b"")
        assert typo.err == (
            "no jobs: tenant typo has no document and no unfinished job; see 'gpuyard tenants'\n"
        )
        known = await gpuyard(nats_server.url, "jobs", "--tenant", "team-a")
        assert known.err == "no unfinished jobs; -a shows finished ones\n"


async def test_a_job_of_a_tenant_that_nothing_limits_is_noted(nats_server: NatsServer) -> None:
    async def unlimited(yard: FakeYard, job: FakeJob) -> None:
        await yard.event(job, "accepted", data={"unlimited": True})
        await yard.assign(job)
        await yard.end(job)

    note = "gpuyard: tenant 'typo' has no document: nothing limits it; if the name is right, "
    async with FakeYard(nats_server.url, unlimited):
        for line in (["submit", "busybox"], ["run", "-d", "busybox"]):
            done = await gpuyard(nats_server.url, "--tenant", "typo", *line)
            assert (done.code, done.err) == (0, f"{note}gpuyard apply -f FILE\n")
        run = await gpuyard(nats_server.url, "--tenant", "typo", "run", "-q", "busybox")
        assert run.err.startswith(note)


async def test_apply_a_template(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        done = await gpuyard(nats_server.url, "apply", "--template", "dev", "team-a")
        assert done.out == b"tenant team-a created\n"
        assert yard.tenants["team-a"]["limits"]["gpus"]
        prod = await gpuyard(nats_server.url, "apply", "--template", "prod", "team-b")
        assert (prod.code, sorted(yard.tenants)) == (0, ["team-a", "team-b"])


async def test_delete_a_tenant(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.tenants = {"team-a": TEAM}
        busy = await gpuyard(nats_server.url, "delete-tenant", "-y", "team-a")
        assert (busy.code, "has unfinished jobs" in busy.err) == (1, True)
        yard.tenants = {"team-a": TEAM | {"used": TEAM["used"] | {"running_jobs": 0}}}
        async with OnTerminal(nats_server.url, "delete-tenant", "team-a") as delete:
            await delete.see("Delete tenant team-a?")
            delete.press(b"y\n")
            assert await delete.end() == 0
        assert "tenant team-a deleted" in delete.shown
        assert yard.tenants == {}


def test_the_table_fits_forty_columns() -> None:
    for line in table([TEAM], tenant_columns(), width=40):
        assert len(line) <= 40


def test_numbers_are_short_and_nothing_is_not_zero() -> None:
    told = [number(value) for value in (None, 0, 0.0, 4.0, 0.125, 23.9883, 120.0, 2000)]
    assert told == ["-", "0", "0", "4", "0.125", "24", "120", "2000"]
    zero = TEAM | {"limits": TEAM["limits"] | {"gpus": 0}}
    assert next(differences(TEAM | {"limits": {}}, zero)) == "limits.gpus: not set → 0"


def test_differences_are_by_setting() -> None:
    after = TEAM | {"models": None, "share_across_tenants": True, "used": {}}
    after |= {"per_job": TEAM["per_job"] | {"max_runtime": None}}
    assert list(differences(TEAM, after)) == [
        "models: NVIDIA-A100* → not set",
        "per_job.max_runtime: 1d → not set",
        "share_across_tenants: not set → true",
    ]
