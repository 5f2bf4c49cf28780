"""Lists at every width: aligned, cut, complete, and nothing a terminal would obey."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard.cli.globals import Globals
from gpuyard.cli.job import detail, event_text
from gpuyard.cli.jobs import gpus_text, job_columns, job_query, sort_jobs, state_text, why_text
from gpuyard.cli.nodes import gpu_columns, node_columns, node_detail
from gpuyard.cli.render import age, json_array, local_times, mib, show_list, span, table
from tests.shared.client.fake_yard import FakeJob


def job(**more: Any) -> dict[str, Any]:
    fake = FakeJob({"id": "7k3mzzzzzzzzzzzz", "image": "busybox", "name": "train"}, "t", "alice")
    return fake.view(detail=True) | more


def node(**more: Any) -> dict[str, Any]:
    gpu = {
        "uuid": "GPU-6a195a81-5f66",
        "index": 0,
        "name": "NVIDIA A100",
        "labels": {"gpu-name": "NVIDIA-A100", "gpu-memory": "80GB"},
        "compute_capability": "8.0",
        "memory_total_mib": 81920,
        "memory_reserved_mib": None,
        "memory_used_mib": 20480,
        "memory_free_mib": 61440,
        "memory_foreign_mib": 18432,
        "utilization_percent": None,
        "temperature_c": 40,
        "power_w": None,
        "health": {"state": "healthy", "reason": None, "since": None},
        "mig": None,
        "free_milli": 0,
        "allocatable_milli": 0,
        "grants": [{"tenant": "t", "job": "7k3mzzzzzzzzzzzz", "attempt": 1, "milli": 1000}],
        "foreign": [{"pid": 4242, "user": "bob", "container": "jupyter", "memory_mib": 18432}],
        "missing": [],
    }
    free = gpu | {"index": 1, "grants": [], "foreign": []}
    free |= {"free_milli": 1000, "allocatable_milli": 1000}
    return {
        "v": 1,
        "name": "a100-0",
        "state": "ready",
        "scheduling": "open",
        "reasons": [],
        "labels": {"zone": "a"},
        "driver_version": "550.54.15",
        "cuda_version": "12.4",
        "docker_version": None,
        "agent_version": "0.1.0",
        "boot_id": "b",
        "generation": 1,
        "runtime": "docker",
        "gpu_injection": "toolkit",
        "sharing": "none",
        "cpus": 64.0,
        "cpus_free": 60.0,
        "memory_mib": 524288,
        "memory_free_mib": None,
        "last_beat_at": "2026-01-01T00:00:00Z",
        "jobs": ["7k3mzzzzzzzzzzzz"],
        "missing": [],
        "gpus": [gpu, free],
        "links": [],
    } | more


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    verdict = {"code": "insufficient_gpus", "message": "0/3 nodes fit: " + "x" * 100, "since": ""}
    jobs = [job(), job(verdict=verdict, name="a" * 60), job(node_state="lost", state="running")]
    for line in table(jobs, job_columns(False), width=width):
        assert len(line) <= max(width, 24)
    for line in table([node()], node_columns(), width=width):
        assert len(line) <= max(width, 30)


def test_forty_columns_still_say_what_matters() -> None:
    verdict = {"code": "x", "message": "0/3 nodes fit: 2 insufficient_gpus", "since": ""}
    lines = table([job(verdict=verdict)], job_columns(False), width=40)
    assert lines[0].split() == ["ID", "NAME", "STATE", "WHY"] or "STATE" in lines[0]
    assert "7k3mzzzz" in lines[1]
    assert "queued" in lines[1]
    assert "0/3" in lines[1]


def test_without_a_terminal_nothing_is_cut() -> None:
    long = "n" * 90
    lines = table([job(name=long)], job_columns(False), width=None)
    assert long in lines[1]


def test_columns_stand_under_their_titles() -> None:
    lines = table([job(), job(id="short", user="a-long-user")], job_columns(False), width=None)
    place = lines[0].index("STATE")
    assert all(line[place:].startswith("queued") for line in lines[1:])


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    lines = table([job(name="a\x1b[2Jb\nc")], job_columns(False), width=None)
    assert len(lines) == 2
    assert "a?[2Jb?c" in lines[1]


def test_ten_thousand_jobs_are_quick() -> None:
    jobs = [job(id=f"{n:016d}") for n in range(10_000)]
    began = time.process_time()
    assert len(table(jobs, job_columns(False), width=100)) == 10_001
    assert time.process_time() - began < 1.5


def test_a_list_is_a_table_json_or_ids(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [job(), job(id="other-job")]
    show_list(jobs, job_columns(False), Globals(quiet=True), key="id")
    assert capsys.readouterr().out == "7k3mzzzzzzzzzzzz\nother-job\n"
    show_list(jobs, job_columns(False), Globals(json=True), key="id")
    assert json.loads(capsys.readouterr().out) == jobs
    show_list(jobs, job_columns(False), Globals(), key="id")
    assert capsys.readouterr().out.startswith("ID ")
    show_list([], job_columns(False), Globals(), key="id", empty="no jobs")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no jobs\n")
    show_list([], job_columns(False), Globals(json=True), key="id", empty="no jobs")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("[]\n", "")


def test_json_is_one_array() -> None:
    assert json_array([]) == "[]\n"
    assert json.loads(json_array([{"a": "é"}, {"b": None}])) == [{"a": "é"}, {"b": None}]


ASKED = {
    "count": 0,
    "all": False,
    "ids": [],
    "memory_mib": None,
    "core_percent": None,
    "mig": None,
}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "-"),
        ({"count": 4}, "4"),
        ({"all": True}, "all"),
        ({"ids": ["0", "2"]}, "2"),
        ({"memory_mib": 8192}, "8GiB"),
        ({"memory_mib": 1000, "core_percent": 50.0}, "1000MiB,50%"),
        ({"mig": "1g.10gb", "count": 2}, "1g.10gb:2"),
    ],
)
def test_what_was_asked_of_gpus(asked: dict[str, Any], text: str) -> None:
    assert gpus_text(job(gpus_requested=ASKED | asked)) == text


def test_a_job_on_a_lost_node_says_so() -> None:
    assert state_text(job(state="running", node_state="lost")) == "running (node lost)"
    assert state_text(job(state="running", node_state="ready")) == "running"
    heard = (datetime.now(UTC) - timedelta(minutes=11)).isoformat().replace("+00:00", "Z")
    waiting = {"code": "node_lost_waiting", "message": "node n1 is silent", "since": heard}
    lost = job(state="running", node_state="lost", verdict=waiting)
    assert state_text(lost) == "running (node lost 11m)"
    assert why_text(lost) == "node n1 is silent"


@pytest.mark.parametrize(
    ("rule", "is_fenced", "text"),
    [
        ({"stop_after": "900s"}, True, "ends after 15m"),
        ({"stop_after": "900s"}, False, "ends after 15m (its node does not hold the fence)"),
    ],
)
def test_a_job_tells_what_becomes_of_it_while_it_is_cut_off(
    rule: dict[str, str], is_fenced: bool, text: str
) -> None:
    attempt = {
        "attempt": 1,
        "node": "n1",
        "started_at": None,
        "ended_at": None,
        "next_allowed_because": None,
        "usage": None,
        "fenced": is_fenced,
    }
    view = job(state="running", node="n1", spec={"on_partition": rule}, attempts=[attempt])
    told = [line.removeprefix("Cut off").strip() for line in detail(view) if line[:7] == "Cut off"]
    assert told == [text]
    kept = job(state="running", node="n1", spec={"on_partition": "keep"}, attempts=[attempt])
    assert not any(line.startswith("Cut off") for line in detail(kept))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, ""),
        ({"state": "running"}, ""),
        ({"verdict": {"code": "waiting_turn", "message": "", "since": ""}}, "waiting_turn"),
        ({"state": "failed", "reason": "exited", "exit_code": 7}, "exited 7"),
        ({"state": "failed", "reason": "no_space", "message": "full"}, "no_space: full"),
        ({"state": "stopping", "reason": "cancelled"}, "cancelled"),
        ({"state": "cancelled", "reason": "cancelled", "exit_code": 3}, "cancelled"),
        ({"state": "failed", "reason": "time_limit", "exit_code": 143}, "time_limit"),
    ],
)
def test_why_a_job_is_where_it_is(more: dict[str, Any], text: str) -> None:
    assert why_text(job(**more)) == text


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"count": 1}, "1 GPU"),
        ({"count": 2}, "2 GPUs"),
        ({"all": True}, "all GPUs"),
        ({"core_percent": 50.0}, "50% of a GPU"),
        ({"count": 1, "mig": "1g.10gb"}, "1 MIG instance (1g.10gb)"),
        ({"count": 2, "mig": "1g.10gb"}, "2 MIG instances (1g.10gb)"),
        ({}, "no GPU"),
    ],
)
def test_what_a_job_asked_for_is_counted_in_its_own_nouns(asked: dict[str, Any], text: str) -> None:
    lines = detail(job(gpus_requested=ASKED | asked, spec={}, events=[], attempts=[]))
    assert [line.split("  ")[-1] for line in lines if line.startswith("Asked for")] == [text]


def test_a_job_in_detail() -> None:
    attempt = {
        "attempt": 1,
        "node": "n1",
        "reason": "node_lost",
        "exit_code": None,
        "message": "gone",
        "assigned_at": "2026-01-01T00:00:00Z",
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T01:30:00Z",
        "container_id": None,
        "gpus": [],
        "next_allowed_because": "boot_id",
        "usage": {"gpu_seconds": 5400.0},
    }
    event = {
        "kind": "accepted",
        "at": "2026-01-01T00:00:00Z",
        "node": None,
        "reason": None,
        "message": "evil\x1b[2J",
        "actor": "alice",
    }
    held = {"uuid": "GPU-1", "index": 3, "milli": 1000, "enforced": "exclusive"}
    text = "\n".join(
        detail(job(attempts=[attempt], events=[event], gpus=[held], labels={"a": "b"}))
    )
    assert "Job" in text and "7k3mzzzzzzzzzzzz" in text
    assert "alice (not verified)" in text
    assert "3 GPU-1 (exclusive)" in text
    assert "1  n1  node_lost  after 1h30m  gone  next allowed: boot_id  5400 GPU-seconds" in text
    assert "\x1b" not in text


def test_a_node_in_detail_names_holders_and_strangers() -> None:
    reason = {"code": "disk_low", "message": "2 GiB left", "gpu": None, "since": None}
    lines = list(node_detail(node(reasons=[reason]), {"7k3mzzzzzzzzzzzz": "alice"}))
    text = "\n".join(lines)
    assert "! disk_low: 2 GiB left" in text
    assert "7k3mzzzz (alice), pid 4242" in text
    assert "GPU 0: pid 4242 of bob in container jupyter holds 18.0 GiB outside the yard" in text
    assert "? of 512.0 GiB" in text or "- of 512.0 GiB free" in text


def test_a_node_without_gpus_says_so() -> None:
    bare = node(gpus=[], driver_version=None)
    assert any("none found, and no NVIDIA driver" in line for line in node_detail(bare, {}))
    assert "no GPUs" in "\n".join(table([bare], node_columns(), width=200))


@pytest.mark.parametrize(("width", "uuid"), [(160, True), (100, True), (80, False)])
def test_model_holders_and_uuids_stay_whole(width: int, uuid: bool) -> None:
    gpus = [
        gpu
        | {"name": "NVIDIA GeForce RTX 4090", "uuid": "GPU-6a195a81-5f66-5595-ac35-38028e02c9a3"}
        for gpu in node()["gpus"][1:]
    ]
    lines = table(gpus, gpu_columns({}), width=width)
    assert max(map(len, lines)) <= width
    for line in lines[1:]:
        assert "NVIDIA GeForce RTX 4090" in line and " of 80.0 GiB" in line
        # What is left of it still names the GPU to --gpus device=.
        assert ("GPU-6a195a81" in line) == uuid


def test_a_job_of_nobody_has_a_hyphen_for_its_user() -> None:
    assert "\nUser       -\n" in "\n".join(detail(job(user="_", attempts=[], events=[])))
    lines = table([job(user="_")], job_columns(False), width=None)
    assert lines[1].split()[2] == "-"


def test_a_node_in_one_line() -> None:
    lines = table([node(scheduling="cordoned")], node_columns(), width=None)
    cells = lines[1].split()
    assert cells[:5] == ["a100-0", "ready,cordoned", "1/2", "NVIDIA-A100", "80GB"]
    mixed = node()
    mixed["gpus"][1] = mixed["gpus"][1] | {"labels": {"gpu-name": "other"}}
    assert "mixed" in table([mixed], node_columns(), width=None)[1]


def test_unknown_is_not_zero() -> None:
    gpus = [gpu | {"memory_foreign_mib": None} for gpu in node()["gpus"]]
    lines = table([node(gpus=gpus, driver_version=None)], node_columns(), width=None)
    place = lines[0].index("FOREIGN") + len("FOREIGN") - 1
    assert lines[1][place] == "-"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (61, "1m1s"),
        (600, "10m"),
        (3600, "1h"),
        (11520, "3h12m"),
        (90000, "1d1h"),
        (86400 * 40, "40d"),
        (-5, "0s"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_ages_and_sizes() -> None:
    now = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    assert age("2026-01-01T00:00:00Z", now) == "5m"
    assert (age(None), age("soon")) == ("-", "-")
    assert (mib(None), mib(12), mib(2048)) == ("-", "12 MiB", "2.0 GiB")


def test_a_list_is_sorted_with_the_unknown_last() -> None:
    jobs: list[Any] = [
        job(priority=1, id="a"),
        job(priority=9, id="b"),
        job(started_at="x", id="c"),
    ]
    assert [item["id"] for item in sort_jobs(jobs, "priority")] == ["c", "b", "a"]
    assert [item["id"] for item in sort_jobs(jobs, "started")] == ["c", "a", "b"]
    assert sort_jobs(jobs, None) is jobs


def test_since_is_a_span_or_a_time() -> None:
    values: dict[str, Any] = dict.fromkeys(("user", "node", "name", "sort", "since"))
    values |= {"is_all": False, "states": ("queued,running",), "all_tenants": False}
    now = datetime(2026, 1, 2, tzinfo=UTC)
    query = job_query(values | {"since": "2h"}, now)
    assert query["since"] == "2026-01-01T22:00:00Z"
    assert query["state"] == ["queued", "running"]
    assert job_query(values | {"since": "2026-01-01T05:00:00+01:00"}, now)["since"] == (
        "2026-01-01T04:00:00Z"
    )
    local = (now - timedelta(days=1)).astimezone().strftime("%Y-%m-%dT%H:%M")
    assert job_query(values | {"since": local}, now)["since"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("message", "actor", "told"),
    [
        (None, "root", "accepted   by root"),
        ("max_runtime is 4h by the tenant's default", "root",
         "accepted   by root: max_runtime is 4h by the tenant's default"),
        ("cancelled by root", "root", "accepted   cancelled by root"),
        ("max_runtime is 4h by the tenant's default", None,
         "accepted   max_runtime is 4h by the tenant's default"),
        (None, None, "accepted"),
    ],
)  # fmt: skip
def test_an_event_names_who_did_it_before_what_is_said_of_it(
    message: str | None, actor: str | None, told: str
) -> None:
    event = {"kind": "accepted", "node": None, "reason": None, "message": message, "actor": actor}
    assert event_text(event) == told


def test_an_event_of_a_pull_tells_how_much_has_arrived() -> None:
    event = {"kind": "pulling", "node": "n1", "reason": None, "message": None, "actor": None}
    loaded = {"done_bytes": 512 << 20, "total_bytes": 1024 << 20}
    assert event_text(event | {"data": loaded}) == "pulling    on n1 512 MiB of 1.0 GiB"
    begun = {"done_bytes": 0, "total_bytes": 0}
    assert event_text(event | {"data": begun}) == "pulling    on n1"


def test_times_in_messages_are_of_this_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    told = "job a (started 2026-11-30T14:16:31.218Z) until 2026-12-01T00:00:00Z, not 2026-12-01"
    said = local_times(told)
    monkeypatch.undo()
    time.tzset()
    assert said == (
        "job a (started 2026-11-30 23:16:31 JST) until 2026-12-01 09:00:00 JST, not 2026-12-01"
    )
