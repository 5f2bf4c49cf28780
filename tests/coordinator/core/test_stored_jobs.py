"""Reading stored jobs: by what was seen before where the bytes are the same, and only there."""

import random
from dataclasses import replace
from typing import Any

import pytest

from gpuyard import codec
from gpuyard.errors import RemoteProtocolError
from gpuyard.model.intake import parse_spec
from gpuyard_coordinator.core import documents, stored_jobs
from gpuyard_coordinator.core.ordering import Queue
from gpuyard_coordinator.core.shapes import shape_of
from gpuyard_coordinator.core.state import Job

SPEC: dict[str, Any] = {
    "name": "train",
    "image": "busybox",
    "command": ["sh", "-c", "\u00e4spec \u00e4gpus"],
    "gpus": 2,
    "priority": 70,
    "preemptible": True,
    "max_runtime": "1h",
    "on_partition": {"stop_after": "10m"},
}


def job(**changes: Any) -> Job:
    spec = parse_spec({**SPEC, **changes}).normalised()
    return Job(
        tenant="t",
        id="j",
        user="u",
        user_verified=False,
        packed_spec=codec.encode(spec),
        name=spec["name"],
        spec_sha256="",
        shape=shape_of(spec, "t"),
        priority=spec["priority"],
        submitted_at="2026-01-01T00:00:00.000Z",
        submit_seq=1,
        image=spec["image"],
        deadline=spec["deadline"],
        fence_s=documents.fence_s(spec),
        is_preemptible=spec["preemptible"],
    )


CHANGES: list[dict[str, Any]] = [
    {},
    {"name": "other"},
    {"image": "alpine"},
    {"env": {"A": "x" * 5000}},
    {"command": ["x"] * 1000},
    {"gpus": 1},
    {"priority": 10},
    {"preemptible": False},
    {"max_runtime": "2h"},
    {"on_partition": "keep"},
    {"where": ["gpu-name=A100"]},
    {"node": "n1"},
    {"cpus": 2},
    {"memory_mib": 100},
    {"prefer": ["gpu-name=A100"]},
    {"tolerate": ["cordon"]},
    {"stop_grace": "5m"},
    {"nodes": 2},
    {"deadline": "2026-02-01T00:00:00Z"},
]


def test_each_reads_back_as_it_was_whatever_was_read_before() -> None:
    for changes in [*CHANGES, *reversed(CHANGES)]:
        kept = job(**changes)
        assert stored_jobs.read_job(documents.encode_job(kept), {}) == kept


def test_a_spec_in_another_order_is_the_same_request() -> None:
    kept = job()
    spec = dict(reversed(kept.spec.items()))
    turned = replace(kept, packed_spec=codec.encode(spec))
    document = dict(reversed(documents.job_document(kept).items()))

    assert stored_jobs.read_job(documents.encode_job(turned), {}) == turned
    assert stored_jobs.read_job(codec.encode(document), {}) == kept


def test_a_document_of_before_there_was_more_to_say_is_read() -> None:
    kept = job()
    document: dict[str, Any] = dict(documents.job_document(kept))
    for key in ("v", "avoid", "not_before", "hold", "after", "array", "age_seq"):
        del document[key]

    assert stored_jobs.read_job(codec.encode({**document, "later": 1}), {}) == kept


def test_two_tenants_with_the_same_spec_have_shapes_of_their_own() -> None:
    data = documents.encode_job(job())
    rules: list[dict[str, Any]] = [
        {},
        {"models": ["A*"]},
        {"models": []},
        {"share_across_tenants": True},
    ]
    shapes = [stored_jobs.read_job(data, {"t": rule}).shape for rule in rules]

    assert [shape.models for shape in shapes] == [None, ("A*",), (), None]
    assert shapes[3].is_shared_across_tenants
    other = stored_jobs.read_job(documents.encode_job(replace(job(), tenant="u")), {})
    assert other.shape == replace(job().shape, tenant="u")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        codec.encode({"v": 1}),
        codec.encode({"v": 1, "spec": 1}),
        codec.encode({"v": 1, "tenant": 7, "spec": {}}),
        codec.encode({**documents.job_document(job()), "state": "no such"}),
        codec.encode({**documents.job_document(job()), "v": 99}),
        codec.encode({**documents.job_document(job()), "v": 0}),
        codec.encode({**documents.job_document(job()), "events": "two"}),
        codec.encode({**documents.job_document(job()), "attempts": [1]}),
        codec.encode({**documents.job_document(job()), "array": {"next": 0}}),
        codec.encode({**documents.job_document(job()), "spec": {"priority": "high"}}),
        documents.encode_job(job())[:-4],
    ],
)
def test_what_cannot_be_understood_is_refused(data: bytes) -> None:
    with pytest.raises((RemoteProtocolError, KeyError, TypeError, ValueError)):
        stored_jobs.read_job(data, {})


def test_jobs_that_are_added_at_once_stand_as_if_one_by_one() -> None:
    dice = random.Random(1)
    jobs = [
        replace(
            job(gpus=dice.randrange(1, 4)),
            id=f"{n}",
            submit_seq=dice.randrange(50),
            priority=dice.choice([10, 50]),
        )
        for n in range(100)
    ]
    at_once, one_by_one = Queue(), Queue()
    for queue in (at_once, one_by_one):
        queue.add(jobs[0])
    at_once.add_all(jobs[1:])
    for each in jobs[1:]:
        one_by_one.add(each)

    assert at_once == one_by_one
