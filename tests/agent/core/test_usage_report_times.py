"""Usage, reports and texts of times."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuyard.model.node import GpuSample
from gpuyard_agent.core.containers import Status
from gpuyard_agent.core.memory import Memory, key_list, measured_record
from gpuyard_agent.core.report import (
    MAX_WANTED_IN_BEAT_BYTES,
    is_reported,
    is_unexpected,
    keep_within_a_beat,
    report,
)
from gpuyard_agent.core.times import epoch_s, rfc3339
from gpuyard_agent.core.usage import UsageMeter, milli_of
from tests.support.agent_builders import attempt, ended, entry, gpu, intent, key, running, seen


def sample(uuid: str, *, used: int | None, foreign: int | None, busy: int | None) -> GpuSample:
    return {
        "uuid": uuid,
        "memory_used_mib": used,
        "memory_free_mib": None,
        "memory_foreign_mib": foreign,
        "utilization_percent": busy,
        "temperature_c": None,
        "power_w": None,
        "health": {"state": "healthy", "reason": None, "since": None},
        "foreign": [],
        "missing": [],
    }


def test_gpu_seconds_are_what_was_held_for_how_long() -> None:
    half = gpu("GPU-b") | {"milli": 500}
    meter = UsageMeter(milli_of([gpu("GPU-a"), half]), started=10)
    assert meter.total(14)["gpu_seconds"] == 6
    assert meter.total(9)["gpu_seconds"] == 0


def test_means_and_peaks_over_samples() -> None:
    meter = UsageMeter(2000, started=0)
    grants = [gpu("GPU-a"), gpu("GPU-b")]
    for used, busy in ((100, 10), (300, 30), (200, 20)):
        a = sample("GPU-a", used=used, foreign=50, busy=busy)
        b = sample("GPU-b", used=used, foreign=None, busy=busy)
        meter.sample({"GPU-a": a, "GPU-b": b}, grants)
    total = meter.total(1)
    assert (total["utilization_mean_percent"], total["memory_peak_mib"]) == (20, 550)


def test_what_cannot_be_measured_is_unknown_and_not_zero() -> None:
    meter = UsageMeter(1000, started=0)
    meter.sample({"GPU-a": sample("GPU-a", used=None, foreign=None, busy=None)}, [gpu("GPU-a")])
    meter.sample({}, [gpu("GPU-a")])
    total = meter.total(1)
    assert (total["utilization_mean_percent"], total["memory_peak_mib"]) == (None, None)


def test_the_reported_state_follows_the_attempts_life_and_never_goes_back() -> None:
    want = entry()
    made = attempt(want)
    assert report(made, None)["state"] == "accepted"
    made.busy = "prepare"
    assert report(made, None)["state"] == "preparing"
    made.busy = None
    assert report(made, None)["state"] == "preparing"
    made.container = seen()
    assert report(made, None)["state"] == "running"
    made.intent = intent("preempted")
    stopping = report(made, None)
    assert (stopping["state"], stopping["reason"]) == ("stopping", "preempted")
    made.intent = None
    assert report(made, None)["state"] == "stopping"
    made.result = ended("preempted", 143)
    over = report(made, None)
    assert (over["state"], over["reason"], over["exit_code"]) == ("ended", "preempted", 143)


def test_a_report_tells_what_it_was_started_from_only_while_no_document_does() -> None:
    made = running(entry())
    assert "wanted" not in report(made, None)
    made.entry, made.former = None, entry()
    assert report(made, None)["wanted"] == entry()


def test_what_does_not_fit_one_beat_is_told_with_a_later_one() -> None:
    large = entry(env={"TEXT": "x" * (MAX_WANTED_IN_BEAT_BYTES // 3)})
    made = [report(attempt(None, former=large), None) for _ in range(4)]
    ordinary = report(running(entry()), None)
    keep_within_a_beat([*made, ordinary])
    assert [told["wanted"] is None for told in made] == [False, False, True, True]
    assert "wanted" not in ordinary


def test_an_end_is_not_told_before_its_last_log_chunk() -> None:
    made = running(entry(), result=ended(), logs_settled=False)
    early = report(made, None)
    assert (early["state"], early["exit_code"], early["ended_at"]) == ("running", None, None)
    made.logs_settled = True
    assert report(made, None)["state"] == "ended"


def test_what_was_not_accepted_and_is_not_here_is_not_reported() -> None:
    assert not is_reported(attempt(entry(), accepted=False))
    assert is_reported(attempt(entry()))
    assert is_reported(attempt(accepted=False, container=seen()))


def test_unexpected_are_containers_that_no_document_names() -> None:
    assert is_unexpected(attempt(accepted=False, container=seen()))
    assert is_unexpected(running())
    assert not is_unexpected(running(entry()))
    # Its end was committed, so its entry is gone: that is the usual way.
    assert not is_unexpected(running(result=ended(), container=seen(status=Status.EXITED)))


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000000Z", "2026-01-01T01:00:00.5+01:00"],
)
def test_times_of_engines_are_read_with_nanoseconds(text: str) -> None:
    assert epoch_s(text) == datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC).timestamp()


def test_times_are_written_in_utc_and_read_back() -> None:
    assert rfc3339(1_767_225_600.25) == "2026-01-01T00:00:00.250Z"
    assert epoch_s(rfc3339(1_767_225_600.25)) == 1_767_225_600.25
    for nothing in (None, "", "soon", "0001-01-01"):
        assert nothing == "0001-01-01" or epoch_s(nothing) is None


def test_a_meter_goes_on_from_what_was_measured_before() -> None:
    before = UsageMeter(1000, started=0)
    before.sample({"GPU-a": sample("GPU-a", used=500, foreign=0, busy=90)}, [gpu("GPU-a")])
    memory, rebuilt = Memory(), Memory()
    memory.apply({"k": "accepted", "key": key_list(key()), "gpus": [gpu("GPU-a")]})
    memory.apply(measured_record(key(), before.measured))
    for record in memory.snapshot():
        rebuilt.apply(record)

    after = UsageMeter(1000, 0, rebuilt.attempts[key()].measured)
    after.sample({"GPU-a": sample("GPU-a", used=100, foreign=0, busy=10)}, [gpu("GPU-a")])

    total = after.total(1)
    assert (total["utilization_mean_percent"], total["memory_peak_mib"]) == (50, 500)


def test_what_is_known_of_a_running_container_is_told_until_there_is_more_to_say() -> None:
    want = entry()
    made = running(want, container=replace(seen(), note="paused by 'docker pause'"))
    assert report(made, None)["message"] == "paused by 'docker pause'"
    made.intent = intent("time_limit")
    assert report(made, None)["message"] is None
