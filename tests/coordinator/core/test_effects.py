"""How large a turn has become: each job's document counts once, whatever is stored of it."""

import pytest

from gpuyard import codec
from gpuyard.model.states import EventKind
from gpuyard_coordinator.core.apply import apply
from gpuyard_coordinator.core.effects import Effects
from gpuyard_coordinator.core.events import NodeBeat
from tests.support.agents import change
from tests.support.yard import Yard

LARGE = {"A": "x" * 60_000}
LARGE_KIB = 60


def test_a_jobs_document_counts_once_however_often_it_changes() -> None:
    yard = Yard()
    yard.submit(env=LARGE)
    effects = Effects()

    for _ in range(3):
        effects.emit(yard.job(), EventKind.QUEUED, yard.now)

    assert effects.kib == yard.job().shape.document_kib >= LARGE_KIB


@pytest.mark.parametrize("gpus", [2, 1])
def test_the_record_of_a_refused_job_counts_as_that_of_an_accepted_one(gpus: int) -> None:
    yard, effects = Yard(), Effects()
    yard.tenant(limits={"gpus": 1})

    yard.submit_into(effects, "j", gpus=gpus, env=LARGE)

    assert (("default", "j") in effects.done) == (gpus == 2)
    assert LARGE_KIB <= effects.kib <= 2 * LARGE_KIB + 8


def test_what_a_beat_changes_without_an_event_counts_too() -> None:
    yard, effects = Yard(), Effects()
    agent = yard.node("a")
    yard.submit(env=LARGE)
    yard.plan()
    yard.start()
    change(agent.reports["default", "j", 1], fenced=True)

    beat = codec.decode(codec.encode(agent.beat(yard.now.at)))
    apply(yard.cluster, NodeBeat(beat), yard.now, effects)  # type: ignore[arg-type]  # a map

    assert effects.out == [] and yard.attempt().fenced
    assert effects.kib >= LARGE_KIB
