"""The record on the disk: private, bounded, and never in anybody's way."""

import stat
from pathlib import Path
from typing import Any

import pytest

from gpuyard_coordinator.core.plan import Plan
from gpuyard_coordinator.core.state import Now
from gpuyard_coordinator.record import BadRecord, Recorder, Segments, read_frames, segments_of
from gpuyard_coordinator.record.frames import frame
from gpuyard_coordinator.record.recorder import AGAIN_AFTER_S
from gpuyard_coordinator.store import put
from tests.support.yard import Yard

FRAME = frame({"v": 1, "kind": "turn", "text": "x" * 1000})


def kinds(path: Path) -> list[str]:
    return [each["kind"] for each in read_frames(path)]


def written(folder: Path, *, segments: int, frames: int, most_bytes: int) -> list[Path]:
    kept = Segments(folder, most_bytes=most_bytes)
    for _ in range(segments):
        kept.begin()
        for _ in range(frames):
            kept.put(FRAME)
    kept.close(timeout_s=30)
    return segments_of(folder)


def test_a_record_is_its_owners_alone(tmp_path: Path) -> None:
    (path,) = written(tmp_path / "record", segments=1, frames=3, most_bytes=1 << 20)

    assert kinds(path) == ["turn"] * 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_oldest_segments_go_once_there_is_too_much(tmp_path: Path) -> None:
    most = 40 * len(FRAME)
    paths = written(tmp_path, segments=20, frames=10, most_bytes=most)

    assert sum(path.stat().st_size for path in paths) <= most + 20 * len(paths)
    assert 3 <= len(paths) <= 4 and all(len(kinds(path)) == 10 for path in paths)


def test_a_frame_that_was_cut_off_ends_its_segment_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    (path,) = written(tmp_path, segments=1, frames=3, most_bytes=1 << 20)
    whole = path.read_bytes()

    path.write_bytes(whole[:-5])
    assert kinds(path) == ["turn"] * 2
    path.write_bytes(whole[: -len(FRAME)] + b"\0\0\0\2\xc1\xc1")
    with pytest.raises(BadRecord, match="damaged at byte"):
        kinds(path)
    path.write_bytes(b"something else")
    with pytest.raises(BadRecord, match="no record of decisions"):
        kinds(path)


def test_a_disk_that_takes_nothing_costs_a_line_and_no_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is tried again a minute later, with a snapshot."""
    folder = tmp_path / "record"
    folder.write_text("in the way")
    kept = Segments(folder, most_bytes=1 << 20)
    yard = Yard()
    recorder = Recorder(yard.cluster, yard.planner, kept)

    def turn(at: float) -> None:
        now = Now(at, "2026-01-01T00:00:00.000Z")
        recorder.notice(1)
        recorder.take(now, Plan(), [])
        recorder.keep(now)

    turn(0.0)
    waited = _until(lambda: kept.is_broken)
    turn(1.0)
    folder.unlink()
    turn(AGAIN_AFTER_S - 1)
    assert waited and not folder.exists()
    turn(AGAIN_AFTER_S + 1)
    recorder.close()
    kept.close(timeout_s=30)

    (path,) = segments_of(folder)
    assert kinds(path)[0] == "head" and kinds(path)[-1] == "whole"
    said = capsys.readouterr().out + caplog.text
    assert said.count("decisions not recorded for a while") == 1


def test_a_turn_that_was_not_committed_is_in_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    kept = Segments(folder, most_bytes=1 << 20)
    yard = Yard()
    recorder = Recorder(yard.cluster, yard.planner, kept)
    now = Now(0.0, "2026-01-01T00:00:00.000Z")
    for key in ("job.t.one", "job.t.two"):
        recorder.notice(1)
        recorder.take(now, Plan(), [put(key, {"v": 1})])
        if key == "job.t.one":
            recorder.keep(now)
    recorder.close()
    kept.close(timeout_s=30)

    (path,) = segments_of(folder)
    assert "whole" in kinds(path) and "turn" not in kinds(path)


def _until(is_true: Any, tries: int = 2000) -> bool:
    """Waits for the thread, which tells nobody when it fails."""
    import threading

    for _ in range(tries):
        if is_true():
            return True
        threading.Event().wait(0.01)
    return False
