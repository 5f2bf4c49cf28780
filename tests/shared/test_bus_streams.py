"""Streams on a real server: their configuration, conditional writes, batches and reads."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gpuyard import subjects
from gpuyard.bus import (
    Bus,
    JetStream,
    NotFound,
    Publication,
    Sizes,
    Stale,
    Stored,
    connect,
    ensure_streams,
    last_values,
    read_last_values,
    stream_configs,
)
from gpuyard.errors import LocalProtocolError, Unavailable
from tests.support.nats_server import NatsServer

SIZES = Sizes.within(2 * 1024**3)
key = subjects.state


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        await ensure_streams(bus.jetstream, sizes=SIZES)
        yield bus


@pytest.fixture
def jetstream(bus: Bus) -> JetStream:
    return bus.jetstream


async def stored_keys(jetstream: JetStream) -> set[str]:
    found = await read_last_values(jetstream, subjects.STATE_STREAM, [subjects.STATE_ALL])
    return {stored.subject.removeprefix(key("")) for stored in found}


async def test_the_streams_are_as_the_rules_say(jetstream: JetStream) -> None:
    day_ns = 86_400 * 10**9
    state = (await jetstream.call("STREAM.INFO.KV_gpuyard"))["config"]
    submit = (await jetstream.call("STREAM.INFO.GPUYARD_SUBMIT"))["config"]
    events = (await jetstream.call("STREAM.INFO.GPUYARD_EVENTS"))["config"]
    logs = (await jetstream.call("STREAM.INFO.GPUYARD_LOGS"))["config"]

    assert state["max_msgs_per_subject"] == 1
    assert state["allow_atomic"] and state["allow_msg_ttl"] and state["allow_rollup_hdrs"]
    assert state["deny_delete"] and state["allow_direct"]
    assert state["discard"] == "new"
    assert "subject_delete_marker_ttl" not in state
    assert (submit["retention"], submit["max_age"]) == ("limits", 0)
    assert (submit["duplicate_window"], submit["discard"]) == (10**8, "new")
    assert (events["max_age"], logs["max_age"]) == (30 * day_ns, 7 * day_ns)
    assert all(config["max_bytes"] > 0 for config in (state, submit, events, logs))


async def test_streams_that_are_right_are_left_alone_and_others_are_corrected(
    bus: Bus, jetstream: JetStream
) -> None:
    async def configs() -> list[object]:
        return [
            (await jetstream.call(f"STREAM.INFO.{config['name']}"))["config"]
            for config in stream_configs(SIZES)
        ]

    calls: list[str] = []
    await bus.app.subscribe(
        "$JS.API.STREAM.UPDATE.>", lambda message: calls.append(message.subject)
    )
    before = await configs()
    await ensure_streams(jetstream, sizes=SIZES)
    assert calls == []
    await jetstream.publish(Publication("gpuyard.events.a.b.queued.1", b"kept"))

    await ensure_streams(jetstream, sizes=Sizes.within(1024**3))
    await ensure_streams(jetstream, sizes=SIZES)

    assert await configs() == before
    assert (await jetstream.state("GPUYARD_EVENTS")).messages == 1


def test_sizes_keep_their_proportions_below_a_total() -> None:
    small = Sizes.within(1024**3)

    assert 0.99 * 1024**3 < small.total_bytes <= 1024**3
    assert Sizes.within(2**60) == Sizes()


async def test_a_write_is_stored_only_if_what_it_expects_holds(jetstream: JetStream) -> None:
    first = await jetstream.publish(Publication(key("a"), b"1", expected=0))
    with pytest.raises(Stale, match="wrong last sequence"):
        await jetstream.publish(Publication(key("a"), b"2", expected=0))
    guarded = Publication(key("b"), b"3", expected=first.sequence, expected_on=key("a"))
    await jetstream.publish(guarded)
    await jetstream.publish(Publication(key("a"), b"4", expected=first.sequence))
    with pytest.raises(Stale):
        await jetstream.publish(guarded)

    stored = await jetstream.last("KV_gpuyard", key("a"))
    assert stored is not None
    assert (stored.data, stored.sequence) == (b"4", 3)


async def test_a_message_id_is_stored_once_and_says_so(jetstream: JetStream) -> None:
    submission = Publication("gpuyard.events.a", b"x", message_id="id-1")

    acks = [await jetstream.publish(submission) for _ in range(2)]

    assert [ack.duplicate for ack in acks] == [False, True]
    assert acks[0].sequence == acks[1].sequence


async def test_a_message_with_a_ttl_vanishes(jetstream: JetStream) -> None:
    await jetstream.publish(Publication(key("short"), b"x", ttl_s=1))
    assert await jetstream.last("KV_gpuyard", key("short"))

    await asyncio.sleep(1.6)

    assert await jetstream.last("KV_gpuyard", key("short")) is None


async def test_a_batch_is_stored_whole(jetstream: JetStream) -> None:
    ack = await jetstream.publish_batch([Publication(key(f"k.{n}"), b"x") for n in range(400)])

    assert ack.sequence == 400
    assert len(await stored_keys(jetstream)) == 400


@pytest.mark.parametrize("broken", [0, 1, 2])
async def test_a_batch_with_one_failing_condition_stores_nothing(
    jetstream: JetStream, broken: int
) -> None:
    batch = [
        Publication(key(f"k.{n}"), b"x", expected=7 if n == broken else None) for n in range(3)
    ]

    with pytest.raises(Stale):
        await jetstream.publish_batch(batch)

    assert await stored_keys(jetstream) == set()


async def test_a_batch_above_the_limits_is_our_fault(jetstream: JetStream) -> None:
    with pytest.raises(LocalProtocolError, match="401 messages"):
        await jetstream.publish_batch([Publication(key(f"{n}"), b"") for n in range(401)])
    with pytest.raises(LocalProtocolError, match="bytes"):
        await jetstream.publish_batch([Publication(key(f"{n}"), b"x" * 10**6) for n in range(9)])
    with pytest.raises(LocalProtocolError):
        await jetstream.publish_batch([])
    broken = Publication(key("b"), b"", message_id="two\r\nlines")
    with pytest.raises(LocalProtocolError, match="headers"):
        await jetstream.publish_batch([Publication(key("a"), b""), broken, broken])
    assert await stored_keys(jetstream) == set()


async def test_a_batch_whose_parts_got_lost_is_open_and_stores_nothing(
    jetstream: JetStream,
) -> None:
    headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}

    with pytest.raises(Unavailable, match="incomplete"):
        await jetstream.publish(Publication(key("a"), b"x", headers=headers))

    assert await stored_keys(jetstream) == set()


async def test_a_batch_never_half_survives_a_kill(
    nats_server: NatsServer, bus: Bus, jetstream: JetStream
) -> None:
    for round_ in range(4):
        names = [f"r{round_}.{n}" for n in range(200)]
        batch = [Publication(key(name), b"x" * 2000) for name in names]
        sending = asyncio.create_task(jetstream.publish_batch(batch))
        await asyncio.sleep(0.004 * round_)
        nats_server.kill()
        await asyncio.gather(sending, return_exceptions=True)
        while bus.is_connected:
            await asyncio.sleep(0.01)
        nats_server.start()
        while not bus.is_connected:
            await asyncio.sleep(0.05)

        survived = await stored_keys(jetstream) & set(names)
        assert len(survived) in (0, len(names))
        if not isinstance(sending.exception(), Unavailable):
            assert len(survived) == len(names)


async def test_last_values_leave_out_deleted_keys_and_old_values(jetstream: JetStream) -> None:
    for name, text in (("job.a.1", b"old"), ("job.a.2", b"gone"), ("done.a.3", b"other")):
        await jetstream.publish(Publication(key(name), text))
    await jetstream.publish(Publication(key("job.a.1"), b"new"))
    await jetstream.publish(Publication(key("job.a.2"), b"", marker="DEL", ttl_s=10))
    await jetstream.publish(Publication(key("node.n"), b"node"))

    found = await read_last_values(jetstream, "KV_gpuyard", [key("job.>"), key("node.>")])

    assert [(s.subject, s.data) for s in found] == [
        (key("job.a.1"), b"new"),
        (key("node.n"), b"node"),
    ]


async def test_a_read_from_a_server_that_is_behind_is_begun_anew(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jetstream.publish(Publication(key("job.a.1"), b"x"))
    last, leads_by = jetstream.last, [1, 0]

    async def ahead(stream: str, subject: str) -> Stored | None:
        newest = await last(stream, subject)
        assert newest is not None
        return newest._replace(sequence=newest.sequence + leads_by.pop(0))

    monkeypatch.setattr(jetstream, "last", ahead)

    assert len(await read_last_values(jetstream, "KV_gpuyard", [key("job.>")])) == 1
    assert leads_by == []

    leads_by.append(1)
    with pytest.raises(Unavailable, match="behind"):
        [chunk async for chunk in last_values(jetstream, "KV_gpuyard", key("job.>"))]


async def test_twenty_thousand_overwritten_values_are_read_in_a_moment(
    jetstream: JetStream,
) -> None:
    for chunk in range(50):
        names = [f"job.a.{chunk}-{n}" for n in range(400)]
        await jetstream.publish_batch([Publication(key(name), b"x" * 700) for name in names])
    for chunk in range(50):
        names = [f"job.a.{chunk}-{n}" for n in range(400) if n % 3]
        await jetstream.publish_batch([Publication(key(name), b"y" * 700) for name in names])

    start = time.monotonic()
    found = await read_last_values(jetstream, "KV_gpuyard", [key("job.>"), key("out.>")])

    assert len(found) == 20_000
    assert time.monotonic() - start < 5


async def test_no_values_and_no_stream(jetstream: JetStream) -> None:
    assert await read_last_values(jetstream, "KV_gpuyard", [key("job.>")]) == []
    assert await jetstream.last("KV_gpuyard", key("job.a")) is None
    assert await jetstream.direct_last("KV_gpuyard", key("job.a")) is None
    with pytest.raises(NotFound):
        await jetstream.state("NO_SUCH_STREAM")
    with pytest.raises(NotFound):
        await jetstream.last("NO_SUCH_STREAM", "a")


async def test_logs_of_a_job_are_read_page_by_page(jetstream: JetStream) -> None:
    for n in range(25):
        await jetstream.publish(Publication(subjects.logs("a", "j", 1, "n"), b"%d" % n))
        await jetstream.publish(Publication(subjects.logs("a", "other", 1, "n"), b"no"))

    read, cursor = [], 1
    while cursor:
        page = await jetstream.read_page(
            "GPUYARD_LOGS", subject=subjects.logs_of("a", "j"), from_sequence=cursor, limit=10
        )
        assert len(page.messages) <= 10
        read += [int(stored.data) for stored in page.messages]
        cursor = page.next_sequence or 0

    assert read == list(range(25))
    last = await jetstream.direct_last("GPUYARD_LOGS", subjects.logs("a", "j", 1, "n"))
    assert last is not None
    assert (last.data, last.at is not None) == (b"24", True)


async def test_a_page_of_nothing_is_the_last_one(jetstream: JetStream) -> None:
    page = await jetstream.read_page("GPUYARD_LOGS", subject=subjects.logs_of("a", "j"))

    assert (page.messages, page.next_sequence) == ([], None)


async def test_purging_keeps_what_is_above(jetstream: JetStream) -> None:
    for n in range(5):
        await jetstream.publish(Publication(subjects.submit("a"), b"%d" % n))

    assert await jetstream.purge("GPUYARD_SUBMIT", below=4) == 3

    first = await jetstream.first_from("GPUYARD_SUBMIT", 1)
    assert first is not None
    assert first.sequence == 4
    assert await jetstream.first_from("GPUYARD_SUBMIT", 6) is None


async def test_headers_and_markers_come_back(jetstream: JetStream) -> None:
    await jetstream.publish(
        Publication(key("k"), b"", marker="PURGE", ttl_s=60, headers={"Gpuyard-Out": "1.2.3"})
    )

    for stored in (
        await jetstream.last("KV_gpuyard", key("k")),
        await jetstream.direct_last("KV_gpuyard", key("k")),
    ):
        assert stored is not None
        assert stored.is_marker
        assert stored.headers["Gpuyard-Out"] == "1.2.3"
