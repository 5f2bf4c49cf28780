"""A member of a gang on its node: made, waiting for the others, let go or ended before."""

import asyncio
import socket

import pytest

from gpuyard.messages import WantedEntry
from gpuyard_agent.core.launch import Launch, LaunchContext, container_name, launch_of
from gpuyard_agent.loop.address import source_address
from tests.support.agent_builders import NODE, YARD, entry, key, stop
from tests.support.agent_yard import Yard, in_yard


def member(rank: int = 1, *, may_start: bool = False, network: str = "host") -> WantedEntry:
    gang = {"rank": rank, "size": 4, "address": "10.0.0.7", "port": 29501, "may_start": may_start}
    return entry(network=network) | {"gang": gang}  # type: ignore[return-value]


def is_prepared(yard: Yard) -> bool:
    reports = yard.last_beat["attempts"]
    return bool(reports and reports[0].get("prepared"))


@pytest.mark.looptime
@in_yard
async def test_it_is_made_and_waits_until_all_are_let_go(yard: Yard) -> None:
    await yard.coordinator.assign(member())
    await yard.until(lambda: is_prepared(yard))
    assert "preparing" in yard.told(key())
    await asyncio.sleep(100)
    assert yard.runtime.starts == []
    await yard.coordinator.assign(member(may_start=True))
    await yard.until(lambda: "running" in yard.told(key()))
    assert yard.runtime.starts == [key()]
    assert not is_prepared(yard)


@pytest.mark.looptime
@in_yard
async def test_whoever_comes_later_passes_at_once(yard: Yard) -> None:
    await yard.coordinator.assign(member(may_start=True))
    await yard.until(lambda: "running" in yard.told(key()))
    assert not any(r.get("prepared") for b in yard.coordinator.beats for r in b["attempts"])


@pytest.mark.looptime
@in_yard
async def test_its_end_before_the_start_is_told_and_nothing_was_started(yard: Yard) -> None:
    await yard.coordinator.assign(member())
    await yard.until(lambda: is_prepared(yard))
    await yard.coordinator.stop(key(), stop())
    await yard.until(lambda: key() in yard.coordinator.ends)
    assert yard.coordinator.ends[key()]["reason"] == "cancelled"
    await yard.until(lambda: key() in yard.runtime.removed)
    assert yard.runtime.starts == []


@pytest.mark.looptime
@in_yard
async def test_nothing_starts_without_a_lease_although_all_were_let_go(yard: Yard) -> None:
    await yard.coordinator.assign(member())
    await yard.until(lambda: is_prepared(yard))
    yard.coordinator.answers = False
    await asyncio.sleep(40)
    await yard.coordinator.assign(member(may_start=True))
    await asyncio.sleep(5)
    assert yard.runtime.starts == []
    yard.coordinator.answers = True
    await yard.until(lambda: yard.runtime.starts == [key()])


@pytest.mark.looptime
@in_yard
async def test_an_agent_that_restarts_at_the_gate_waits_there_again(yard: Yard) -> None:
    await yard.coordinator.assign(member())
    await yard.until(lambda: is_prepared(yard))
    await yard.restart()
    await yard.until(lambda: is_prepared(yard))
    await yard.coordinator.assign(member(may_start=True))
    await yard.until(lambda: yard.runtime.starts == [key()])


def test_every_member_is_told_where_the_others_are() -> None:
    context = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")
    env = launch_of(member(rank=2), context).env
    told = {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    assert told == {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.7", "29501")
    assert "RANK" not in launch_of(entry(), context).env


def test_on_a_named_network_rank_0_is_met_at_its_node_all_the_same() -> None:
    context = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")
    assert launch_of(member(rank=0, network="overlay"), context).ports == ("29501:29501",)
    assert launch_of(member(rank=1, network="overlay"), context).ports == ()
    assert launch_of(member(rank=0), context).ports == ()


def test_members_on_one_engine_have_different_names() -> None:
    plain = container_name(YARD, key())
    names = {_launch(want).container_name for want in (member(0), member(1), entry())}
    assert names == {plain, f"{plain}-0", f"{plain}-1"}


def _launch(want: WantedEntry) -> Launch:
    context = LaunchContext(yard=YARD, node=NODE, epoch="1.1", gpu_injection="none")
    return launch_of(want, context)


def test_the_address_is_that_from_which_the_bus_is_spoken_to() -> None:
    assert source_address("nats://secret@127.0.0.1:4222") == "127.0.0.1"
    unknown = "nats://no-such-host.invalid:4222"
    assert source_address(unknown) is None
    assert source_address(f"{unknown},nats://127.0.0.1:4222") == "127.0.0.1"
    if socket.has_ipv6:
        assert source_address("nats://[::1]:4222") in ("::1", None)
