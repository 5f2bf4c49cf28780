"""A record of a yard replays to the same decisions, from each of its snapshots on."""

import random
from pathlib import Path
from typing import Any

import pytest

from gpuyard.model.states import AttemptState
from gpuyard_coordinator.core import handing_out
from gpuyard_coordinator.core.state import Job
from gpuyard_coordinator.record.frames import MAGIC
from gpuyard_coordinator.simulate.recorded import read_record
from gpuyard_coordinator.simulate.replay import Replay, replay_frames
from tests.support.agents import A100_40, MIG_MIXED, RTX_4090
from tests.support.recording import frames_of
from tests.support.yard import Yard

KINDS: list[dict[str, Any]] = [
    {"gpus": 1, "max_runtime": 300},
    {"gpus": 1},
    {"gpus": "30%"},
    {"gpus": "8GiB", "max_runtime": 120},
    {"gpus": 2, "max_runtime": 200},
    {"gpus": 4, "max_runtime": 100},
    {"gpus": "all"},
    {"gpus": 1, "where": ["gpu-memory>=40"]},
    {"cpus": 4},
    {"gpus": 1, "nodes": 2, "max_runtime": 150},
    {"gpus": 2, "nodes": 3},
    {"gpus": 1, "array": "0-4%3"},
    {"gpus": "mig=1g.10gb"},
    {"gpus": 1, "image": "big"},
    {"gpus": 1, "hold": True},
    {"gpus": 1, "not_before": "60s"},
]


def busy_yard(seed: int, steps: int = 70) -> Yard:
    """Three tenants on nodes of three models; jobs of all kinds come, start, end or fail."""
    chance, yard = random.Random(seed), Yard()
    yard.tenant("a", weight=2, share_across_tenants=True)
    yard.tenant("b", weight=1, limits={"gpus": 5}, share_across_tenants=True)
    fleet = ([RTX_4090] * 4, [RTX_4090] * 4, [RTX_4090, A100_40, A100_40], [MIG_MIXED])
    for number, cards in enumerate(fleet):
        yard.node(f"n{number}", cards=cards, cpus=16.0)
    for step in range(steps):
        yard.spend(chance.choice([2.0, 20.0, 30.0]))
        _come(yard, chance)
        for key, job in sorted(yard.cluster.jobs.items()):
            if job.last is not None and job.state.value in ("assigned", "stopping", "running"):
                _go_on(yard, key, str(job.state), chance)
        if step % 30 == 20:
            yard.cordon("n1")
        if step % 30 == 27:
            yard.uncordon("n1")
        yard.plan(chance.choice([1, 3, 100]), is_last=False)
    return yard


def _come(yard: Yard, chance: random.Random) -> None:
    """Up to two jobs; some that were held are let go."""
    for _ in range(chance.randrange(3)):
        spec = dict(chance.choice(KINDS))
        spec |= {
            "priority": chance.choice([50, 50, 50, 90]),
            "preemptible": chance.random() < 0.7,
        }
        if "array" not in spec and chance.random() < 0.1:
            spec["after"] = [{"job": job.id, "when": "ended"} for job in some(yard, chance, "a")]
        tenant = "a" if "after" in spec else chance.choice("abc")
        yard.submit(f"j{len(yard.story.events)}", tenant=tenant, **spec)
    for job in some(yard, chance, "abc"):
        if job.hold is not None:
            yard.release(job.id, tenant=job.tenant)


def some(yard: Yard, chance: random.Random, tenants: str) -> list[Job]:
    """Up to two live jobs of these tenants."""
    jobs = [job for key, job in sorted(yard.cluster.jobs.items()) if job.tenant in tenants]
    return chance.sample(jobs, min(2, len(jobs)))


def _go_on(yard: Yard, key: tuple[str, str], state: str, chance: random.Random) -> None:
    tenant, id = key
    parts = yard.attempt(id, tenant=tenant).parts
    held = [rank for rank, part in enumerate(parts) if part.state is not AttemptState.ENDED]
    is_over = chance.random() < 0.06
    if state == "assigned" and len(parts) > 1:
        for rank in held:
            yard.report(id, tenant=tenant, rank=rank, state="preparing", prepared=True)
    for rank in held:
        if state == "assigned":
            yard.start(id, tenant=tenant, rank=rank)
        elif state == "stopping":
            yard.end(id, tenant=tenant, rank=rank, reason="preempted")
        elif is_over:
            yard.end(id, tenant=tenant, rank=rank, exit_code=0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_yard_decides_again_as_it_did(seed: int) -> None:
    yard = busy_yard(seed)
    result = yard.recording.replayed()

    assert len(yard.recording.kept.segments) > 4 and result.decisions > 20
    kinds = {event["kind"] for events in yard.story.events.values() for event in events}
    assert "stopping" in kinds, "jobs were preempted, too"
    turns = [turn for data in yard.recording.kept.segments for turn in frames_of(bytes(data))]
    placed = [each for turn in turns for each in turn.get("placed", ())]
    assert any(len(places) > 1 for _, _, places in placed), "a gang started"
    assert any("_" in id for _, id, _ in placed), "a task of an array started"
    assert any(gpus and gpus[0].startswith("MIG") for _, _, [[_, gpus], *_] in placed)
    assert any(turn.get("parked") for turn in turns) and any(turn.get("images") for turn in turns)


def test_another_decision_is_found_and_told() -> None:
    yard = Yard()
    yard.recording.kept.most_bytes = 1 << 20
    yard.node("n0", gpus=2)
    yard.plan()
    yard.submit("j", gpus=1)
    yard.submit("k", gpus=1)
    yard.plan()
    assert yard.recording.replayed().decisions == 2
    (segment,) = yard.recording.kept.segments
    frames = list(frames_of(bytes(segment)))
    turn = next(each for each in frames if each.get("placed"))
    (_, _, [[_, gpus]]), (_, _, [[_, others]]) = turn["placed"]
    turn["placed"][0][2][0][1] = others

    result = Replay()
    replay_frames("it", iter(frames), result, lambda text: None)
    assert result.difference is not None
    assert result.difference.endswith(
        f"recorded start default/j on n0 {others[0]}; now start default/j on n0 {gpus[0]}"
    )


def test_tasks_that_a_plan_makes_room_for_are_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are stored with it, and waiting when the snapshot is whole."""
    monkeypatch.setattr(handing_out, "FRESH", 2)
    yard = Yard()
    yard.node("a", gpus=8)
    yard.submit("x", array="0-9", gpus=1)
    assert yard.plan() == 8

    assert yard.recording.replayed().decisions == 4, "two came before each of two snapshots"


def test_an_image_that_decided_a_tie_decides_it_again() -> None:
    yard = Yard()
    for name in "abc":
        yard.node(name, gpus=2)
    yard.plan()
    yard.submit("first", image="big", gpus=1, node="c")
    yard.plan()
    yard.start("first")
    yard.end("first", exit_code=0)
    yard.submit("same", image="big", gpus=1)
    yard.plan()

    assert yard.attempt("same").node == "c"
    assert yard.recording.replayed().decisions == 2


def test_a_gangs_reservation_outlasts_a_snapshot() -> None:
    yard = Yard()
    for name in "ab":
        yard.node(name, gpus=2)
        yard.submit(f"on-{name}", gpus=1, node=name, max_runtime=1000)
    yard.plan()
    yard.start("on-a")
    yard.start("on-b")
    yard.submit("g", gpus=2, nodes=2)
    yard.restart()
    for _ in range(2):
        yard.spend(2.0)
    yard.plan()
    yard.submit("late", gpus=1)
    yard.plan()

    (held,) = yard.cluster.reservations.by_job.values()
    assert set(held.nodes) == {"a", "b"} and yard.states("late") == ["queued"]
    assert yard.recording.replayed().difference is None


def test_a_record_is_played_from_when_nothing_but_room_kept_its_jobs(tmp_path: Path) -> None:
    yard = Yard()
    yard.recording.kept.most_bytes = 1 << 20
    yard.node("a", gpus=4)
    yard.plan()
    yard.submit("held", gpus=1, hold=True)
    yard.submit("x", gpus=1, array="0-1")
    yard.plan()
    yard.spend(60.0)
    yard.release("held")
    yard.plan()
    for id in ("held", "x_0", "x_1"):
        yard.start(id)
    yard.spend(30.0)
    yard.plan()
    assert yard.recording.replayed().difference is None
    path = tmp_path / "it.record"
    path.write_bytes(MAGIC + yard.recording.kept.segments[0])
    workload = read_record("it", [path])

    assert [round(each.at_s) for each in workload.arrivals] == [0, 0, 60]
    assert workload.left_out == 0 and not workload.arrivals[-1].spec["hold"]
