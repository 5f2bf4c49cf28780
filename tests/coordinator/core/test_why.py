"""`why` in full: golden JSON and text for each verdict code, and every change offered is true.

The golden files stand in `why_golden`; `GPUYARD_WRITE_GOLDEN=1` writes what is said now.
"""

import copy
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.why import text
from gpuyard.model.verdicts import VerdictCode
from gpuyard_coordinator.core import explain
from gpuyard_coordinator.core.shapes import Shape
from tests.coordinator.core.following import follow
from tests.coordinator.core.why_scenes import LATER, SCENES, waiting
from tests.support import soundness
from tests.support.agents import H200, RTX_4090
from tests.support.yard import Yard

GOLDEN = Path(__file__).parent / "why_golden"


def test_there_is_a_scene_for_every_code_that_exists_so_far() -> None:
    assert set(SCENES) | LATER == {str(code) for code in VerdictCode}
    assert not set(SCENES) & LATER


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times for people are of this machine's zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("code", SCENES)
def test_the_json_and_the_text_of_each_code(code: str) -> None:
    yard = SCENES[code]()
    before = copy.deepcopy(yard.cluster)

    found = yard.why()

    soundness.assert_equal(before, yard.cluster)
    assert found["verdict"] is not None and found["verdict"]["code"] == code
    as_json = json.dumps(found, indent=2) + "\n"
    as_text = "\n".join(text(found, rows=None, width=None)) + "\n"
    for suffix, said in ((".json", as_json), (".txt", as_text)):
        file = (GOLDEN / code).with_suffix(suffix)
        if os.environ.get("GPUYARD_WRITE_GOLDEN"):
            file.write_text(said)
        assert said == file.read_text(), f"{file.name} says otherwise"


@pytest.mark.parametrize("code", SCENES)
def test_every_change_offered_starts_the_job(code: str) -> None:
    yard = SCENES[code]()
    for offered in yard.why()["changes"]:
        follow(yard, offered)


@pytest.mark.parametrize(
    ("spec", "asked", "have"),
    [
        ({"where": ["gpu-name=*4090", "zone=b"]}, "zone=b", "a"),
        ({"where": ["rack"]}, "rack", None),
        ({"where": ["!zone"]}, "!zone", "a"),
        ({"where": ["gpu-name=*H100*"]}, "gpu-name=*H100*", "NVIDIA-GeForce-RTX-4090, NVIDIA-H200"),
        ({"where": ["gpu-memory>=100", "gpu-name=*4090"]}, "gpu-memory>=100, gpu-name=*4090", None),
        ({"gpus": "device=0", "where": ["gpu-memory>=100"]}, "gpu-memory>=100", "24GB"),
        ({"gpus": "all", "where": ["gpu-name=*4090"]}, "gpu-name=*4090", "NVIDIA-H200"),
        ({"gpus": "device=0,7"}, "device=0,7", None),
        ({"node": "ghost"}, "node=ghost", "a"),
        ({"gpus": 0, "where": ["gpu-name=*H100*", "zone"]}, "gpu-name=*H100*", None),
    ],
)
def test_the_line_that_fails_is_named(spec: dict[str, Any], asked: str, have: str | None) -> None:
    yard = Yard()
    yard.node("a", cards=[RTX_4090, H200], labels={"zone": "a"})
    found = waiting(yard, **{"gpus": 1} | spec).why()

    (reason,) = found["nodes"][0]["reasons"]
    assert reason["code"] == "where_mismatch" and reason["asked"] == asked
    assert have is None or reason["have"] == have
    assert reason["unit"] is None


def test_a_job_that_does_not_wait_has_neither_verdict_nor_changes() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.submit("j", gpus=1)
    yard.plan()

    assert yard.why() == {
        "v": 1,
        "job": "j",
        "state": "assigned",
        "verdict": None,
        "nodes": [],
        "forecast": None,
        "changes": [],
    }


def test_a_node_that_is_silent_tells_since_when() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    heard = yard.core_node("a").last_beat_at
    yard.tick(7)
    yard.submit("j", gpus=1)
    yard.plan()
    assert f"suspect: silent since {heard}" in str(yard.why("j")["nodes"])


def test_silent_nodes_are_counted_as_one_cause_since_the_first_fell_silent() -> None:
    yard = Yard()
    yard.node("a", gpus=1)
    heard = yard.core_node("a").last_beat_at
    yard.mono += 1
    yard.node("b", gpus=1)
    assert yard.core_node("b").last_beat_at != heard
    yard.tick(7)
    yard.submit("j", gpus=1)
    yard.plan()
    code, message = explain.explain(yard.cluster, yard.job("j").shape)
    assert (code, message) == ("node_unready", f"0/2 nodes fit: 2 suspect: silent since {heard}")


def test_too_many_unlike_jobs_are_not_all_explained_in_one_answer() -> None:
    yard = Yard()
    for number in range(10):
        yard.node(f"n{number}")
    words = explain.Words(yard.cluster)
    looks = explain.MOST_LOOKS // 10
    told = [words.of(Shape(gpus=1, cpu_milli=n)) for n in range(looks + 5)]

    assert all(told[:looks]) and not any(told[looks:])
    assert words.of(Shape(gpus=1, cpu_milli=0)) == told[0]
