"""Chunks in any order, twice, missing, from strangers: the output comes out as it was written."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.client import output
from gpuyard.client.output import (
    AttemptOutput,
    LineSplitter,
    OutputFeed,
    OutputLines,
    of_rank,
    parse_chunk,
)
from gpuyard.messages import LogChunk


def chunk(n: int, data: bytes = b"", *, offset: int = 0, **more: Any) -> LogChunk:
    body: Any = {
        "v": 1,
        "attempt": 1,
        "n": n,
        "stream": 1,
        "offset": offset,
        "at": "2026-01-01T00:00:00Z",
        "data": data,
        "lost_bytes": 0,
        "end": False,
    } | more
    made: LogChunk = body
    return made


def texts(chunks: Sequence[LogChunk]) -> list[bytes]:
    return [item["data"] for item in chunks]


def test_chunks_in_order_pass_at_once() -> None:
    attempt = AttemptOutput(1)
    assert texts(attempt.feed(chunk(0, b"ab"))) == [b"ab"]
    assert texts(attempt.feed(chunk(1, b"cd", offset=2))) == [b"cd"]
    assert not attempt.is_complete
    attempt.feed(chunk(2, offset=4, end=True))
    assert attempt.is_complete


def test_what_is_ahead_is_held_until_the_gap_is_filled() -> None:
    attempt = AttemptOutput(1)
    assert attempt.feed(chunk(2, b"c", offset=2)) == []
    assert attempt.feed(chunk(1, b"b", offset=1)) == []
    assert attempt.has_gap
    assert texts(attempt.feed(chunk(0, b"a"))) == [b"a", b"b", b"c"]
    assert not attempt.has_gap
    assert attempt.held_bytes == 0


def test_duplicates_are_dropped_by_offset() -> None:
    attempt = AttemptOutput(1)
    attempt.feed(chunk(0, b"ab"))
    assert attempt.feed(chunk(0, b"ab")) == []
    assert texts(attempt.feed(chunk(1, b"bc", offset=1))) == [b"c"]


def test_chunks_sent_again_and_cut_elsewhere_fit_together() -> None:
    attempt = AttemptOutput(1)
    attempt.feed(chunk(0, b"ab"))
    assert attempt.feed(chunk(2, b"ef", offset=4)) == []
    # Number 1 was lost; sent again it holds less than before, and number 2 the rest.
    assert texts(attempt.feed(chunk(1, b"c", offset=2))) == [b"c"]
    assert texts(attempt.feed(chunk(2, b"def", offset=3))) == [b"def"]
    assert not attempt.has_gap


def test_an_agent_that_lost_its_count_loses_no_bytes() -> None:
    attempt = AttemptOutput(1)
    for n in range(3):
        attempt.feed(chunk(n, b"x", offset=n))
    assert texts(attempt.feed(chunk(0, b"xyz", offset=2))) == [b"yz"]


def test_bytes_that_the_sender_cut_are_no_gap() -> None:
    attempt = AttemptOutput(1)
    attempt.feed(chunk(0, b"ab"))
    ready = attempt.feed(chunk(1, b"z", offset=10, lost_bytes=8))
    assert texts(ready) == [b"z"]
    assert ready[0]["lost_bytes"] == 8


def test_a_gap_that_is_given_up_is_marked() -> None:
    attempt = AttemptOutput(1)
    attempt.feed(chunk(0, b"ab"))
    attempt.feed(chunk(2, b"e", offset=4))
    ready = attempt.skip_gap()
    assert texts(ready) == [b"e"]
    assert ready[0]["lost_bytes"] == 2


@given(st.data())
def test_any_order_any_duplicates_give_the_same_bytes(data: st.DataObject) -> None:
    parts = data.draw(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=4)), max_size=12)
    )
    chunks, sizes = [], {1: 0, 2: 0}
    for n, (stream, text) in enumerate(parts):
        chunks.append(chunk(n, text, offset=sizes[stream], stream=stream))
        sizes[stream] += len(text)
    chunks.append(chunk(len(parts), offset=sizes[1], end=True))
    again = data.draw(st.lists(st.sampled_from(chunks), max_size=6))
    attempt = AttemptOutput(1)
    shown = []
    for item in data.draw(st.permutations([*chunks, *again])):
        shown += attempt.feed(item)
    assert attempt.is_complete
    assert not attempt.has_gap
    for stream in (1, 2):
        written = b"".join(text for number, text in parts if number == stream)
        assert b"".join(c["data"] for c in shown if c["stream"] == stream) == written
    assert [c["n"] for c in shown] == sorted(c["n"] for c in shown)


def test_only_the_assigned_node_is_believed() -> None:
    feed = OutputFeed()
    feed.assign(1, "n1")
    feed.live(1, "evil", chunk(0, b"forged"))
    feed.live(1, "n1", chunk(0, b"true"))
    assert texts(list(feed.take())) == [b"true"]
    assert feed.foreign == 1


def test_output_before_the_assignment_is_kept_and_judged() -> None:
    feed = OutputFeed()
    feed.live(1, "evil", chunk(0, b"forged"))
    feed.live(1, "n1", chunk(0, b"true"))
    assert list(feed.take()) == []
    feed.assign(1, "n1")
    assert texts(list(feed.take())) == [b"true"]
    assert feed.held_bytes == 0


def test_a_later_attempt_waits_for_the_one_before() -> None:
    feed = OutputFeed()
    feed.assign(1, "n1")
    feed.assign(2, "n2")
    feed.live(2, "n2", chunk(0, b"second", attempt=2))
    feed.live(1, "n1", chunk(0, b"first"))
    assert texts(list(feed.take())) == [b"first"]
    feed.live(1, "n1", chunk(1, offset=5, end=True))
    assert texts(list(feed.take())) == [b"second"]


def test_an_attempt_that_is_given_up_shows_what_it_has() -> None:
    feed = OutputFeed()
    feed.assign(1, "n1")
    feed.live(1, "n1", chunk(0, b"a"))
    feed.live(1, "n1", chunk(3, b"d", offset=3))
    feed.give_up((1, 0))
    shown = list(feed.take())
    assert texts(shown) == [b"a", b"d"]
    assert shown[1]["lost_bytes"] == 2
    assert feed.is_settled((1, 0))


def test_a_gangs_members_come_as_they_write_each_with_its_rank() -> None:
    feed = OutputFeed()
    feed.live(1, "n2", chunk(0, b"early"))
    feed.assign(1, "n1", "n2")
    feed.assign(1, "n1")  # an event names the first node alone
    feed.live(1, "n1", chunk(0, b"first"))
    feed.live(1, "evil", chunk(0, b"forged"))
    shown = list(feed.take())
    assert [(c["rank"], c["data"]) for c in shown] == [(1, b"early"), (0, b"first")]
    assert feed.foreign == 1
    feed.assign(2, "n1", "n3")
    feed.live(2, "n3", chunk(0, b"again", attempt=2))
    feed.live(1, "n1", chunk(1, offset=5, end=True))
    assert texts(list(feed.take())) == [], "rank 1 of the first attempt is not complete"
    feed.live(1, "n2", chunk(1, offset=5, end=True))
    assert texts(list(feed.take())) == [b"again"]


def test_lines_of_members_are_cut_each_by_itself() -> None:
    lines = OutputLines()
    assert lines.feed(of_rank(chunk(0, b"ab"), 0)) == []
    (whole,) = lines.feed(of_rank(chunk(0, b"x\ny"), 1))
    assert (whole.rank, whole.text) == (1, "x")
    (end,) = lines.feed(of_rank(chunk(1, b"c\n", offset=2), 0))
    assert (end.rank, end.text) == (0, "abc")
    assert [(line.rank, line.text) for line in lines.flush()] == [(1, "y")]


def test_too_much_held_is_dropped_and_fetched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_HELD_BYTES", 10)
    feed = OutputFeed()
    feed.assign(1, "n1")
    chunks = [chunk(n, b"12345", offset=5 * n) for n in range(5)]
    for item in chunks:
        feed.live(1, "n1", item)
    assert feed.dropped == 2
    assert len(list(feed.take())) == 3
    feed.stored((1, 0), chunks)
    assert len(list(feed.take())) == 2
    assert feed.held_bytes == 0


def test_lines_are_cut_for_each_stream_alone() -> None:
    lines = LineSplitter()
    assert [line.text for line in lines.feed(chunk(0, b"a\nb"))] == ["a"]
    assert [line.text for line in lines.feed(chunk(1, b"E\n", stream=2))] == ["E"]
    found = lines.feed(chunk(2, b"c\r\n", offset=3))
    assert [(line.stream, line.text) for line in found] == [("stdout", "bc")]
    assert lines.flush() == []


def test_the_end_completes_lines_without_a_line_end() -> None:
    lines = LineSplitter()
    lines.feed(chunk(0, b"no end"))
    assert [line.text for line in lines.feed(chunk(1, offset=6, end=True))] == ["no end"]


def test_text_cut_inside_a_character_is_whole_again() -> None:
    lines = LineSplitter()
    raw = "é\n".encode()
    lines.feed(chunk(0, raw[:1]))
    assert [line.text for line in lines.feed(chunk(1, raw[1:], offset=1))] == ["é"]
    assert lines.feed(chunk(2, b"\xff\n", offset=3))[0].text == "�"


def test_a_line_without_end_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LINE_CHARACTERS", 4)
    lines = LineSplitter()
    assert [line.text for line in lines.feed(chunk(0, b"123456"))] == ["123456"]


def test_a_new_attempt_completes_the_line_of_the_one_before() -> None:
    lines = LineSplitter()
    lines.feed(chunk(0, b"broken"))
    found = lines.feed(chunk(0, b"whole\n", attempt=2))
    assert [(line.attempt, line.text) for line in found] == [(1, "broken"), (2, "whole")]


@pytest.mark.parametrize(
    "fault",
    [
        {"stream": 3},
        {"n": -1},
        {"n": True},
        {"offset": "1"},
        {"data": "not base64!"},
        {"data": None},
        {"at": 5},
        {"lost_bytes": -2},
    ],
)
def test_what_is_no_chunk_is_passed_over(fault: dict[str, Any]) -> None:
    assert parse_chunk({**chunk(0, b"x"), **fault}) is None


def test_a_chunk_in_json_has_its_bytes_in_base64() -> None:
    parsed = parse_chunk({**chunk(0), "data": "aGk="})
    assert parsed is not None
    assert parsed["data"] == b"hi"
