"""`--watch`: on a terminal over the last table, on a pipe below it, as JSON by the line."""

import asyncio
import json
import signal
from typing import Any

import pytest

from tests.shared.cli.command import OnTerminal, started
from tests.shared.cli.test_render import node
from tests.shared.client.fake_operations import tenant_view
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer


def job(id: str, yard: FakeYard) -> FakeJob:
    made = FakeJob({"id": id, "image": "busybox"}, "default", "alice")
    yard.jobs[id] = made
    return made


async def line(stream: asyncio.StreamReader | None, within_s: float = 10) -> bytes:
    assert stream is not None
    return await asyncio.wait_for(stream.readline(), within_s)


async def test_json_has_a_line_for_each_change(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        first = job("first", yard)
        async with started(nats_server.url, "jobs", "--watch", "--json") as watch:
            assert json.loads(await line(watch.stdout))["state"] == "queued"
            await yard.assign(first)
            # Well before the slow look: the event drove it.
            changed = json.loads(await line(watch.stdout, within_s=3))
            assert (changed["id"], changed["state"]) == ("first", "assigned")
            second = job("second", yard)
            await yard.accept(second)
            assert json.loads(await line(watch.stdout))["id"] == "second"
            await yard.end(first, 7)
            gone = json.loads(await line(watch.stdout))
            assert (gone["id"], gone["state"], gone["exit_code"]) == ("first", "failed", 7)
            watch.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(watch.wait(), 10) == 130
            assert watch.stderr is not None
            assert await watch.stderr.read() == b""


async def test_a_pipe_gets_the_table_again(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        first = job("first", yard)
        async with started(nats_server.url, "jobs", "--watch") as watch:
            assert (await line(watch.stdout)).startswith(b"ID ")
            assert b"queued" in await line(watch.stdout)
            await yard.assign(first)
            assert await line(watch.stdout) == b"\n"
            await line(watch.stdout)
            assert b"assigned" in await line(watch.stdout)


async def test_quiet_gives_each_id_once(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        first = job("first", yard)
        async with started(nats_server.url, "-q", "jobs", "--watch") as watch:
            assert await line(watch.stdout) == b"first\n"
            await yard.assign(first)
            await yard.accept(job("second", yard))
            assert await line(watch.stdout) == b"second\n"


async def test_a_terminal_is_redrawn_in_place(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        for number in range(40):
            job(f"job-{number:02d}", yard)
        async with OnTerminal(nats_server.url, "jobs", "--watch", rows=10, columns=40) as watch:
            await watch.see("… 33 more")
            assert watch.shown.count("\n") == 9
            assert max(map(len, watch.shown.split("\r\n"))) <= 44
            watch.shown = ""
            await yard.assign(yard.jobs["job-00"])
            await watch.see("assigned")
            assert watch.shown.startswith("\x1b[9A\r\x1b[J")
            watch.press(b"\x03")
            assert await watch.end() == 130


async def test_an_empty_list_says_so_and_fills(nats_server: NatsServer) -> None:
    async with (
        FakeYard(nats_server.url) as yard,
        OnTerminal(nats_server.url, "jobs", "--watch") as watch,
    ):
        await watch.see("no unfinished jobs")
        await yard.accept(job("first", yard))
        await watch.see("first")


@pytest.mark.parametrize("thing", ["nodes", "tenants"])
async def test_nodes_and_tenants_come_and_go(thing: str, nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        views: Any = [node(name="n1")]
        yard.nodes = views
        yard.tenants = {"team-a": tenant_view("team-a")}
        async with started(nats_server.url, thing, "--watch", "--json") as watch:
            assert "removed" not in json.loads(await line(watch.stdout))
            yard.nodes = [node(name="n1", last_beat_at="2026-01-01T00:00:09Z")]
            await yard.accept(job("wakes", yard))
            await asyncio.sleep(0.5)
            yard.nodes, yard.tenants = [], {}
            await yard.accept(yard.jobs["wakes"])
            assert json.loads(await line(watch.stdout))["removed"] is True


async def test_a_silent_yard_is_told_once_and_waited_for(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        job("first", yard)
        async with started(nats_server.url, "jobs", "--watch") as watch:
            await line(watch.stdout)
            yard.refuses["jobs"] = {"code": "no_leader", "message": "no leader now"}
            await yard.assign(yard.jobs["first"])
            told = await line(watch.stderr, within_s=20)
            assert b"no coordinator answers" in told and b"; still trying\n" in told
            yard.refuses.clear()
            await yard.accept(yard.jobs["first"])
            assert b"answers again" in await line(watch.stderr, within_s=20)


async def test_a_closed_pipe_ends_it_quietly(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        first = job("first", yard)
        async with started(nats_server.url, "jobs", "--watch", "--json") as watch:
            await line(watch.stdout)
            watch._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
            await yard.assign(first)
            assert await asyncio.wait_for(watch.wait(), 10) == 141
            assert watch.stderr is not None
            assert await watch.stderr.read() == b""
