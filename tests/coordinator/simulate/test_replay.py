"""A record of a yard replays to the same decisions, from each of its snapshots on."""

import random
from typing import Any

import pytest

from gpuyard_coordinator.simulate.replay import Replay, replay_frames
from tests.support.agents import A100_40, RTX_4090
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
]


def busy_yard(seed: int, steps: int = 70) -> Yard:
    """Three tenants on nodes of two models, with jobs of all kinds that come, start, end or fail."""
    chance, yard = random.Random(seed), Yard()
    yard.tenant("a", weight=2, share_across_tenants=True)
    yard.tenant("b", weight=1, limits={"gpus": 5}, share_across_tenants=True)
    for number in range(2):
        cards = [[RTX_4090] * 4, [RTX_4090, A100_40, A100_40]][number]
        yard.node(f"n{number}", cards=cards, cpus=16.0)
    for step in range(steps):
        yard.spend(chance.choice([2.0, 20.0, 30.0]))
        for _ in range(chance.randrange(3)):
            spec = dict(chance.choice(KINDS))
            spec |= {
                "priority": chance.choice([50, 50, 50, 90]),
                "preemptible": chance.random() < 0.7,
            }
            yard.submit(f"j{len(yard.story.events)}", tenant=chance.choice("abc"), **spec)
        for key, job in sorted(yard.cluster.jobs.items()):
            if job.last is not None and job.state.value in ("assigned", "stopping", "running"):
                _go_on(yard, key, str(job.state), chance)
        if step % 30 == 20:
            yard.cordon("n1")
        if step % 30 == 27:
            yard.uncordon("n1")
        yard.plan(chance.choice([1, 3, 100]), is_last=False)
    return yard


def _go_on(yard: Yard, key: tuple[str, str], state: str, chance: random.Random) -> None:
    tenant, id = key
    if state == "assigned":
        yard.start(id, tenant=tenant)
    elif state == "stopping":
        yard.end(id, tenant=tenant, reason="preempted")
    elif chance.random() < 0.06:
        yard.end(id, tenant=tenant, exit_code=0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_yard_decides_again_as_it_did(seed: int) -> None:
    yard = busy_yard(seed)
    result = yard.recording.replayed()

    assert len(yard.recording.kept.segments) > 5 and result.decisions > 20
    kinds = {event["kind"] for events in yard.story.events.values() for event in events}
    assert "stopping" in kinds, "jobs were preempted, too"


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
