"""`why`: golden texts, what fits a screen, and jobs that do not wait."""

import json
from typing import Any

import pytest

from gpuyard.cli.why import limit_text, not_waiting, reason_text, text
from gpuyard.model.where_flags import from_gpu_model
from tests.shared.cli.command import OnTerminal, gpuyard
from tests.shared.client.fake_operations import WHY
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer

GOLDEN = """\
0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus (asked 4, most free 2)
  a100-1  insufficient_gpus (asked 4, has 2)
  rtx-0   insufficient_gpus (asked 4, has 0)
  a100-0  node_cordoned
to start it:
  ask for 2 GPUs or fewer
  gpuyard uncordon a100-0
"""


def verdict(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = WHY["verdict"]
    return found | more


def of(why: dict[str, Any], rows: int | None = None, width: int | None = None) -> list[str]:
    return list(text(why, rows=rows, width=width))


async def test_the_text_and_the_json(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        plain = await gpuyard(nats_server.url, "why", "waits")
        assert (plain.code, plain.out.decode(), plain.err) == (0, GOLDEN, "")
        as_json = await gpuyard(nats_server.url, "why", "--json", "waits")
        assert json.loads(as_json.out) == WHY
        assert yard.calls[0] == ("why", {"v": 1, "id": "waits"})


async def test_a_job_that_runs_or_is_over_says_so(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        job = FakeJob({"id": "runs", "image": "busybox"}, "default", "alice")
        job.state = "running"
        job.attempts.append({"attempt": 1, "node": "n1"})
        yard.jobs["runs"] = job
        fields: dict[str, Any] = {"verdict": None, "nodes": [], "changes": []}
        yard.why = WHY | {"job": "runs", "state": "running", **fields}
        runs = await gpuyard(nats_server.url, "why", "runs", TZ="UTC")
        assert runs.out.decode() == (
            "job runs does not wait: it is running on n1 since 2026-01-01 00:00:00 UTC\n"
        )
        job.state, job.reason, job.exit_code = "failed", "exited", 7
        yard.why |= {"state": "failed"}
        over = await gpuyard(nats_server.url, "why", "runs", TZ="UTC")
        assert over.out.decode() == (
            "job runs does not wait: it failed on n1 at 2026-01-01 00:00:00 UTC: exited 7\n"
        )


async def test_on_a_terminal_it_fits_the_screen(nats_server: NatsServer) -> None:
    nodes = [
        {"name": f"n{n:03d}", "fits": False, "reasons": WHY["nodes"][1]["reasons"]}
        for n in range(100)
    ]
    async with FakeYard(nats_server.url) as yard:
        yard.why = WHY | {"nodes": nodes}
        async with OnTerminal(nats_server.url, "why", "waits", rows=20, columns=80) as why:
            assert await why.end() == 0
        lines = why.shown.splitlines()
        assert len(lines) <= 20
        assert "more nodes; --all shows them" in why.shown
        assert lines[-1] == "  gpuyard uncordon a100-0"
        async with OnTerminal(nats_server.url, "why", "--all", "waits", rows=20) as why:
            assert await why.end() == 0
        assert sum(line.startswith("  n") for line in why.shown.splitlines()) == 100


def test_the_limit_that_binds() -> None:
    limit = {"scope": "tenant team-a", "name": "gpus", "used": 4.0, "asked": 1.0, "max": 4.0}
    told = "quota: gpus of tenant team-a: 4 of 4 used, 1 asked"
    found = WHY | {
        "verdict": verdict(code="quota_exceeded", message=told, counts={}, limit=limit),
        "nodes": [{"name": "n1", "fits": True, "reasons": []}],
        "changes": [{"kind": "raise_limit", "text": "raise limits.gpus of tenant team-a by 1"}],
    }
    assert of(found) == [
        "1/1 nodes fit",
        told,
        "  n1  fits",
        "to start it:",
        "  raise limits.gpus of tenant team-a by 1",
    ]
    per_job = limit | {"name": "per_job.max_gpus", "used": None}
    assert limit_text(per_job) == "quota: per_job.max_gpus of tenant team-a: at most 4, 1 asked"


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("2/3 nodes fit: its turn is next", ["2/3 nodes fit: its turn is next"]),
        ("held", ["0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus", "held"]),
        (None, ["0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus", "insufficient_gpus"]),
    ],
)
def test_the_first_line_counts_nodes(message: str | None, first: list[str]) -> None:
    found = WHY | {"verdict": verdict(message=message)}
    assert of(found)[: len(first)] == first


def test_what_no_node_could_ever_hold_is_said_once() -> None:
    found = WHY | {"verdict": verdict(impossible_now=True)}
    assert of(found)[1] == "no known node could ever hold it"
    said = verdict(
        impossible_now=True, message="0/3 nodes fit: x; no known node could ever hold it"
    )
    assert of(WHY | {"verdict": said})[1].startswith("  a100-1")


def test_a_limit_that_no_end_of_a_job_helps_is_no_fault_of_the_nodes() -> None:
    said = (
        "quota: per_job.max_gpus of tenant team-a: at most 2, 4 asked; more than it may ever have"
    )
    found = WHY | {"verdict": verdict(impossible_now=True, message=said)}
    assert of(found)[1] == said
    assert "no known node could ever hold it" not in of(found)


def test_several_reasons_of_a_node_come_most_frequent_first() -> None:
    both = [
        {"code": "foreign_memory", "asked": None, "have": None},
        {"code": "insufficient_gpus", "asked": 4, "have": None},
    ]
    nodes = [*WHY["nodes"][1:], {"name": "n9", "fits": False, "reasons": both}]
    assert "  n9      insufficient_gpus (asked 4), foreign_memory" in of(WHY | {"nodes": nodes})


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (("insufficient_gpus", 4, 2, "GPUs"), "insufficient_gpus (asked 4, has 2)"),
        (("insufficient_cpu", 6, 2.5, "CPUs"), "insufficient_cpu (asked 6 CPUs, has 2.5 CPUs)"),
        (("insufficient_cpu", 1.0, 0.5, "CPUs"), "insufficient_cpu (asked 1 CPU, has 0.5 CPUs)"),
        (
            ("insufficient_gpus", 1, 0, "instances"),
            "insufficient_gpus (asked 1 instance, has 0 instances)",
        ),
        (("insufficient_memory", 8192, None, "MiB"), "insufficient_memory (asked 8192 MiB)"),
        (("where_mismatch", "zone=b", "a", None), "where_mismatch (asked zone=b, has a)"),
        (("where_mismatch", "zone=b", None, None), "where_mismatch (asked zone=b)"),
        (
            ("where_mismatch", from_gpu_model("H200"), "NVIDIA-A100", None),
            "where_mismatch (asked --gpu-model H200, has NVIDIA-A100)",
        ),
        (
            ("where_mismatch", from_gpu_model("RTX 4090|A100*"), None, None),
            "where_mismatch (asked --gpu-model 'RTX-4090|A100*')",
        ),
        (
            ("where_mismatch", "gpu-name=H200|H200-*", None, None),
            "where_mismatch (asked gpu-name=H200|H200-*)",
        ),
    ],
)
def test_a_reason_has_its_unit_or_its_line(reason: tuple[object, ...], told: str) -> None:
    keys = ("code", "asked", "have", "unit")
    assert reason_text(dict(zip(keys, reason, strict=True))) == told


def test_a_job_that_starts_is_told_without_a_time() -> None:
    job = FakeJob({"id": "abc", "image": "i"}, "t", "u")
    job.state = "assigned"
    assert not_waiting(job.view()) == "job abc does not wait: it is assigned"


def test_a_job_on_a_silent_node_is_not_said_not_to_wait() -> None:
    job = FakeJob({"id": "abc", "image": "i"}, "t", "u")
    job.state = "running"
    verdict = {"code": "node_lost_waiting", "message": "it waits until the node is back"}
    assert not_waiting({**job.view(), "verdict": verdict}).startswith("job abc is running")


def test_a_gang_that_is_stopping_is_so_since_it_was_asked_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    job = FakeJob({"id": "abc", "image": "i"}, "t", "u")
    job.state = "stopping"
    job.attempts.append({"attempt": 1, "node": "n1"})
    verdict = {"code": "node_lost_waiting", "message": "rank 0 on node n1 exited with 1; and so on"}
    times = {"started_at": "2026-01-01T00:00:00Z", "stop_requested_at": "2026-01-01T01:00:00Z"}
    view = {**job.view(), **times, "nodes": ["n1", "n2"], "verdict": verdict}
    assert not_waiting(view) == (
        "job abc is stopping on n1 +1 since 2026-01-01 01:00:00 UTC: "
        "rank 0 on node n1 exited with 1; and so on"
    )


def test_a_change_names_the_flag_that_the_job_was_given() -> None:
    def drop(line: str) -> str:
        change = {"kind": "drop_where", "line": line, "text": f"drop the line {line}"}
        return of(WHY | {"changes": [change]})[-1]

    assert drop(from_gpu_model("H200")) == "  drop --gpu-model H200"
    assert drop("gpu-name=H200") == "  drop the line gpu-name=H200"
    assert drop("zone=b") == "  drop the line zone=b"


async def test_dry_run_in_text_and_json(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        fits = await gpuyard(nats_server.url, "submit", "--dry-run", "--gpus", "1", "busybox")
        assert (fits.code, fits.err) == (0, "")
        assert fits.out == b"job would start on a100-0 with GPU-6a195a81 (dry run)\n"
        operation, body = yard.calls[-1]
        assert operation == "submit"
        assert body == {"v": 1, "image": "busybox", "gpus": 1, "dry_run": True}
        assert yard.submissions == []
        yard.dry_run |= {"notes": ["gpus is 1 by default", "priority is capped to 60"]}
        noted = await gpuyard(nats_server.url, "submit", "--dry-run", "busybox")
        assert noted.out.decode().splitlines()[1:] == [
            "  gpus is 1 by default",
            "  priority is capped to 60",
        ]
        yard.dry_run |= {"fits": False, "node": None, "gpus": [], "notes": []}
        waits = await gpuyard(nats_server.url, "run", "--dry-run", "busybox")
        assert (waits.code, waits.out.decode()) == (0, f"job would wait (dry run)\n{GOLDEN}")
        as_json = await gpuyard(nats_server.url, "submit", "--dry-run", "--json", "busybox")
        assert json.loads(as_json.out) == yard.dry_run
        stdin = b"image: a\nname: one\n---\nimage: b\nname: two\n"
        both = await gpuyard(nats_server.url, "submit", "--dry-run", "-f", "-", stdin=stdin)
        assert both.out.count(b"would wait (dry run)") == 2
        yard.refuses["submit"] = {"code": "invalid", "message": "gpus: no such thing"}
        refused = await gpuyard(nats_server.url, "submit", "--dry-run", "busybox")
        assert (refused.code, refused.err) == (1, "gpuyard: gpus: no such thing\n")
