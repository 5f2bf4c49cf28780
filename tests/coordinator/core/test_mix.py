"""The mix that is learned from submissions, and how it is kept."""

import json

import pytest

from gpuyard.model.where import parse
from gpuyard_coordinator.core.headroom import Headroom
from gpuyard_coordinator.core.mix import HALVED_EVERY, Mix, request_of
from gpuyard_coordinator.core.shapes import Shape
from tests.coordinator.core.packing.builders import share


def test_jobs_that_differ_in_what_packing_ignores_are_one_request() -> None:
    lines = (parse("gpu-name=*A100*"), parse("zone=a"), parse("gpu-uuid=GPU-1"))
    shape = Shape(gpus=2, cpu_milli=4000, memory_mib=9, node="n", tenant="t", where=lines)

    assert request_of(shape) == Shape(gpus=2, cpu_milli=4000, where=lines[:1])
    assert request_of(Shape(gpu_ids=("0", "1"), node="n")) == Shape(gpus=2)
    assert request_of(Shape(where=lines, models=("x",))) == Shape(), "without GPUs no model binds"


def test_a_kept_mix_is_read_back_equal() -> None:
    mix = Mix.prior()
    mix.observe(Shape(gpus=1, where=(parse("gpu-memory>=24"),), models=("*A100*",)))
    mix.observe(Shape(share_mib=8192, cpu_milli=500))
    mix.observe(Shape(all_gpus=True))
    mix.observe(share(12.5))

    assert Mix.from_document(json.loads(json.dumps(mix.to_document()))) == mix
    low = mix.copy(Headroom.LOW)
    assert Mix.from_document(json.loads(json.dumps(low.to_document()))) == low != mix


def test_a_mix_kept_without_a_headroom_is_read_with_the_middle_one() -> None:
    document = Mix.prior().copy(Headroom.HIGH).to_document()
    del document["headroom"]

    assert Mix.from_document(document) == Mix.prior()
    with pytest.raises(ValueError, match="7"):
        Mix.from_document({**document, "headroom": 7})


def test_a_copy_is_due_as_soon_as_the_headroom_is_another_one() -> None:
    priced = Mix.prior().copy(Headroom.LOW)

    assert not Mix.prior().is_due(priced, Headroom.LOW)
    assert Mix.prior().is_due(priced, Headroom.MIDDLE)


def test_what_was_not_asked_for_of_late_fades_and_goes() -> None:
    mix = Mix()
    mix.observe(Shape(gpus=8))
    for _ in range(12 * HALVED_EVERY):
        mix.observe(Shape(gpus=1))

    ((request, count),) = mix.most_common()
    assert request == Shape(gpus=1)
    assert count <= 2 * HALVED_EVERY * 1024


def test_a_yard_that_was_asked_for_nothing_has_a_mix_of_all_sizes() -> None:
    prior = Mix.prior()

    assert prior.observed == 0
    assert {request.gpus for request, _ in prior.most_common()} == {0, 1, 2, 4, 8}
