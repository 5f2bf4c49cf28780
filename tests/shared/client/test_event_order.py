"""Events come out in order and once, and a refusal becomes the exception that it stands for."""

from typing import Any

import pytest

from gpuyard.client.event_order import EventOrder, parse_event, refusal_of
from gpuyard.errors import Conflict, GpuyardError, InvalidJob, RequestError
from gpuyard.messages import Event


def event(seq: int, kind: str = "queued", **more: Any) -> Event:
    body = {"seq": seq, "at": "t", "tenant": "a", "job": "j", "kind": kind, "state": "queued"}
    parsed = parse_event(body | more)
    assert parsed is not None
    return parsed


def seqs(events: list[Event]) -> list[int]:
    return [item["seq"] for item in events]


def test_events_wait_for_their_turn() -> None:
    order = EventOrder()
    assert seqs(order.live(event(2))) == []
    assert order.has_gap
    assert seqs(order.live(event(1))) == [1, 2]
    assert seqs(order.live(event(1))) == []
    assert not order.has_gap


def test_the_history_fills_a_gap_and_moves_past_what_is_gone() -> None:
    order = EventOrder()
    order.live(event(7))
    assert seqs(order.history([event(5), event(4)])) == [4, 5]
    assert order.has_gap
    assert seqs(order.skip_gap()) == [7]


def test_a_refusal_in_the_history_does_not_count() -> None:
    order = EventOrder()
    assert seqs(order.history([event(900, "rejected"), event(1), event(2)])) == [1, 2]
    assert seqs(order.live(event(3))) == [3]


@pytest.mark.parametrize("fault", [{"seq": "1"}, {"kind": None}, {"job": 3}, {"seq": True}])
def test_what_is_no_event_is_passed_over(fault: dict[str, Any]) -> None:
    assert parse_event({**event(1), **fault}) is None


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (
            [{"field": "gpu", "code": "unknown_field", "message": "unknown field"}],
            InvalidJob,
            "gpu: unknown field",
        ),
        (
            [
                {"field": "a", "code": "invalid", "message": "x"},
                {"field": "b", "code": "invalid", "message": "y", "did_you_mean": "c"},
            ],
            InvalidJob,
            "a: x; b: y (did you mean c?)",
        ),
        ([{"field": "id", "code": "conflict", "message": "exists"}], Conflict, "exists"),
        ([], RequestError, "no"),
        (["rubbish"], RequestError, "no"),
    ],
)
def test_a_refusal_is_its_exception(data: list[Any], kind: type[GpuyardError], text: str) -> None:
    fault = refusal_of(event(1, "rejected", message="no", data={"errors": data}))
    assert type(fault) is kind
    assert str(fault) == text


def test_a_full_queue_is_told_by_its_reason() -> None:
    errors = [{"field": "", "code": "invalid", "message": "too many"}]
    fault = refusal_of(event(1, "rejected", reason="queue_full", data={"errors": errors}))
    assert isinstance(fault, InvalidJob)
    assert fault.code == "queue_full"
