"""Nodes, tenants, why and dry runs through both faces, as the docstrings show them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard import Client, JobSpec
from gpuyard.client.config import load_config
from gpuyard.errors import Conflict, InvalidJob, RemoteProtocolError, Unavailable, UnknownThing
from tests.shared.client.clients import client_of
from tests.shared.client.fake_operations import WHY, tenant_view
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer


def node(name: str = "n1") -> dict[str, object]:
    return {"name": name, "state": "ready", "scheduling": "open", "jobs": [], "gpus": []}


async def test_why_and_dry_run(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        why = await client.why("waits")
        assert why == WHY
        assert why["changes"][0]["text"] == "ask for 2 GPUs or fewer"
        plan = await client.submit({"image": "busybox", "gpus": 8}, dry_run=True)
        assert (plan["fits"], plan["node"], plan["gpus"]) == (True, "a100-0", ["GPU-6a195a81"])
        await client.submit(JobSpec(image="busybox"), dry_run=True)
        assert yard.calls[-1][1] == {"v": 1, "image": "busybox", "dry_run": True}
        assert yard.submissions == [] and yard.jobs == {}
        with pytest.raises(InvalidJob):
            await client.submit(["no", "map"], dry_run=True)
        with pytest.raises(Exception, match="65536 are allowed"):
            await client.submit({"image": "i", "env": {"A": "x" * 70_000}}, dry_run=True)


async def test_operators_verbs_go_out_as_the_operator(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        yard.nodes = [node()]
        assert (await client.cordon("n1", reason="maintenance"))["scheduling"] == "cordoned"
        assert (await client.uncordon("n1"))["scheduling"] == "open"
        assert (await client.drain("n1", "driver", deadline_s=600))["scheduling"] == "draining"
        assert yard.calls[-1][1]["deadline_s"] == 600
        with pytest.raises(Conflict):
            await client.forget("n1")
        yard.nodes[0]["state"] = "lost"
        forgotten = await client.forget("n1")
        assert forgotten == {"node": "n1", "warning": "2 jobs may still run there"}
        with pytest.raises(UnknownThing):
            await client.cordon("n1")
        assert {tenant for tenant, _ in yard.callers} == {"_"}
        await client.nodes()
        assert yard.callers[-1] == ("default", "nodes")


async def test_tenants(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        document = {"tenant": "team-a", "limits": {"gpus": 4}}
        tried = await client.apply(document, dry_run=True)
        assert (tried["changed"], tried["before"], yard.tenants) == (True, None, {})
        assert (await client.apply(document))["tenant"]["limits"]["gpus"] == 4
        assert not (await client.apply(document))["changed"]
        assert [view["tenant"] for view in await client.tenants()] == ["team-a"]
        assert (await client.tenant("team-a"))["exists"]
        assert not (await client.tenant())["exists"]
        assert yard.callers[-1] == ("default", "tenant")
        with pytest.raises(UnknownThing):
            await client.tenant("nobody")
        assert (await client.delete_tenant("team-a"))["tenant"] == "team-a"
        assert yard.tenants == {}


async def test_jobs_and_events_of_all_tenants(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        other = FakeJob({"id": "theirs", "image": "i"}, "team-b", "bob")
        yard.jobs["theirs"] = other
        found = [job.tenant async for job in client.jobs(all_tenants=True)]
        assert (found, yard.callers[-1]) == (["team-b"], ("_", "jobs"))
        events = client.events(all_tenants=True)
        first = asyncio.ensure_future(anext(events))
        while not first.done():
            await yard.accept(other)
            await asyncio.sleep(0.05)
        assert first.result()["tenant"] == "team-b"
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_an_operators_own_client_needs_no_second_connection(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url, "_") as client:
        yard.nodes = [node()]
        await client.cordon("n1")
        assert client._operator is None
        assert (await client.operator_api()).tenant == "_"


async def test_a_closed_client_makes_no_connection(nats_server: NatsServer) -> None:
    async with client_of(nats_server.url) as client:
        await client.close()
        with pytest.raises(Unavailable, match="not connected"):
            await client.cordon("n1")


async def test_an_answer_without_its_part_is_a_fault_of_the_yard(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard, client_of(nats_server.url) as client:
        yard._do_why = lambda body: {}  # type: ignore[method-assign]
        with pytest.raises(RemoteProtocolError, match="has no why"):
            await client.why("x")


@pytest.fixture
def served(nats_server: NatsServer) -> Iterator[tuple[FakeYard, str]]:
    """A fake yard on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yard = FakeYard(nats_server.url)
    asyncio.run_coroutine_threadsafe(yard.__aenter__(), loop).result(10)
    yield yard, nats_server.url
    asyncio.run_coroutine_threadsafe(yard.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_sync_face_has_it_all(served: tuple[FakeYard, str]) -> None:
    yard, url = served
    yard.nodes = [node()]
    config = load_config(url=url, user="alice", environ={}, folder=Path("/"))
    with Client(config=config) as client:
        assert client.why("waits")["verdict"] is not None
        assert client.submit({"image": "busybox"}, dry_run=True)["fits"]
        assert client.cordon("n1", reason="x")["scheduling"] == "cordoned"
        assert client.drain("n1", deadline_s=1)["scheduling"] == "draining"
        assert client.uncordon("n1")["scheduling"] == "open"
        assert client.apply({"tenant": "default"})["changed"]
        assert client.tenant()["tenant"] == "default"
        assert client.tenants() == [tenant_view("default")]
        assert client.delete_tenant("default")["tenant"] == "default"
        assert client.status()["healthy"]
        yard.nodes[0]["state"] = "lost"
        assert client.forget("n1")["warning"]
        with pytest.raises(UnknownThing):
            client.node("n1")
