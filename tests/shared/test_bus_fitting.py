"""Whether a bus fits a yard, on real servers: one alone, and a cluster of three."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from gpuyard import subjects
from gpuyard.bus import (
    Bus,
    BusUnfit,
    Publication,
    Sizes,
    connect,
    ensure_streams,
    fit_streams,
    stream_configs,
)
from tests.support.nats_cluster import NatsCluster
from tests.support.nats_server import MakeNatsServer, NatsServer

SMALL_GIB = 0.25


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await connect(nats_server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        yield bus


async def config_of(bus: Bus, stream: str) -> dict[str, Any]:
    answer: dict[str, Any] = await bus.jetstream.call(f"STREAM.INFO.{stream}", attempts=20)
    return dict(answer["config"])


async def configs(bus: Bus) -> list[dict[str, Any]]:
    return [await config_of(bus, config["name"]) for config in stream_configs(Sizes())]


async def test_a_new_bus_gets_the_largest_sizes_that_fit_and_keeps_them(bus: Bus) -> None:
    fitting = await fit_streams(bus.jetstream)
    first = await configs(bus)

    assert (fitting.replicas, fitting.mended, fitting.warnings) == (1, [], [])
    # The test's server stores 4 GB, the default sizes are 4.5 GiB.
    assert sum(config["max_bytes"] for config in first) == Sizes().total_bytes // 2
    again = await fit_streams(bus.jetstream)
    assert again.mended == []
    assert await configs(bus) == first


async def test_a_start_that_was_cut_short_is_ended_within_the_room_there_is(bus: Bus) -> None:
    """The state alone at its full size leaves too little for the others at theirs."""
    await bus.jetstream.call("STREAM.CREATE.ROOM", _other_stream(gib=2.6))
    await bus.jetstream.call(f"STREAM.CREATE.{subjects.STATE_STREAM}", stream_configs(Sizes())[0])

    await fit_streams(bus.jetstream)

    assert sum(config["max_bytes"] for config in await configs(bus)) < 1.4 * 1024**3


async def test_a_size_that_is_asked_for_is_made_so(bus: Bus) -> None:
    await fit_streams(bus.jetstream)

    fitting = await fit_streams(bus.jetstream, max_gib=SMALL_GIB)

    assert {drift.setting for drift in fitting.mended} == {"max_bytes"}
    total = sum(config["max_bytes"] for config in await configs(bus))
    assert 0.99 * SMALL_GIB * 1024**3 < total <= SMALL_GIB * 1024**3


async def test_what_drifted_is_mended_and_named_and_nothing_stored_is_lost(bus: Bus) -> None:
    await fit_streams(bus.jetstream, max_gib=SMALL_GIB)
    await bus.jetstream.publish(Publication("gpuyard.events.a.b.queued.1", b"kept"))
    events = await config_of(bus, subjects.EVENTS_STREAM)
    await bus.jetstream.call(
        f"STREAM.UPDATE.{subjects.EVENTS_STREAM}", events | {"max_age": 10**12, "max_msgs": 99}
    )

    fitting = await fit_streams(bus.jetstream, max_gib=SMALL_GIB)

    (drift,) = fitting.mended
    assert str(drift) == "GPUYARD_EVENTS: max_age was 1000000000000, is 2592000000000000"
    mended = await config_of(bus, subjects.EVENTS_STREAM)
    # What the yard does not ask for is left as somebody set it.
    assert (mended["max_age"], mended["max_msgs"]) == (events["max_age"], 99)
    assert (await bus.jetstream.state(subjects.EVENTS_STREAM)).messages == 1


async def test_what_cannot_be_mended_is_refused_with_one_line(bus: Bus) -> None:
    state = stream_configs(Sizes.within(2**28))[0] | {"storage": "memory"}
    await bus.jetstream.call(f"STREAM.CREATE.{subjects.STATE_STREAM}", state)

    with pytest.raises(BusUnfit, match=r"KV_gpuyard has storage memory \(needed: file\)") as fault:
        await fit_streams(bus.jetstream, max_gib=SMALL_GIB)

    assert "\n" not in str(fault.value)


async def test_a_bus_without_room_is_refused_with_the_size_it_needs(bus: Bus) -> None:
    await bus.jetstream.call("STREAM.CREATE.ROOM", _other_stream(gib=3.8))

    with pytest.raises(BusUnfit, match=r"cannot store the 288 MiB .* max_file_store"):
        await fit_streams(bus.jetstream)


def _account(limits: str) -> str:
    user = '{user: "a", password: "b"}'
    account = f"A {{ jetstream {{ {limits} }}, users: [{user}] }}"
    return f'accounts {{ {account} }}\nno_auth_user: "a"'


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("max_payload: 65536", r"max_payload is 65536 bytes, .* needs 1048576"),
        (_account("max_streams: 3"), "may have 3 streams, and gpuyard needs 6"),
        (_account("max_store: 64MB"), "may store 64 MiB, and gpuyard needs at least 288 MiB"),
    ],
)
async def test_limits_that_are_too_low_are_named(
    make_nats_server: MakeNatsServer, extra: str, told: str
) -> None:
    server = make_nats_server(extra=extra)

    async with await connect(server.url, name="test", inbox_prefix="_INBOX.x") as bus:
        with pytest.raises(BusUnfit, match=told):
            await fit_streams(bus.jetstream)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def clustered(cluster: NatsCluster) -> AsyncIterator[Bus]:
    await cluster.ready()
    async with await connect(cluster.url, name="test", inbox_prefix="_INBOX.x") as bus:
        yield bus
        for config in stream_configs(Sizes()):
            await bus.jetstream.call(f"STREAM.DELETE.{config['name']}", attempts=20)


async def test_streams_of_a_cluster_have_three_replicas(clustered: Bus) -> None:
    fitting = await fit_streams(clustered.jetstream, max_gib=SMALL_GIB)

    assert fitting.replicas == 3
    assert {config["num_replicas"] for config in await configs(clustered)} == {3}


async def test_streams_made_on_one_server_get_replicas_once_there_are_three(
    clustered: Bus,
) -> None:
    await ensure_streams(clustered.jetstream, sizes=Sizes.within(2**28), replicas=1)
    await clustered.jetstream.publish(Publication(subjects.state("node.a"), b"kept"))

    fitting = await fit_streams(clustered.jetstream, max_gib=SMALL_GIB)

    assert fitting.replicas == 3
    grown = {drift.stream for drift in fitting.mended if drift.setting == "num_replicas"}
    assert grown == {config["name"] for config in stream_configs(Sizes())}
    stored = await clustered.jetstream.last(subjects.STATE_STREAM, subjects.state("node.a"))
    assert stored is not None


async def test_a_cluster_of_too_few_servers_is_refused(nats_pair: NatsCluster) -> None:
    async with await connect(nats_pair.url, name="test", inbox_prefix="_INBOX.x") as bus:
        with pytest.raises(BusUnfit, match="fewer than 3 servers"):
            await fit_streams(bus.jetstream, max_gib=SMALL_GIB)


def _other_stream(*, gib: float) -> dict[str, Any]:
    return {"name": "ROOM", "subjects": ["room"], "max_bytes": int(gib * 1024**3)}
