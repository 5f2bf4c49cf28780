"""Operating verbs: what they send, as whom, what they print and how they end."""

import asyncio
import json
from typing import Any

from tests.shared.cli.command import OnTerminal, gpuyard, started
from tests.shared.cli.test_render import node
from tests.shared.client.fake_operations import STATUS
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer

SCREEN = """\
Yard    abc123, healthy
Leader  commits 40
Bus     url nats://***@127.0.0.1:4222, version 2.12.1
Nodes   2 ready, 1 lost
GPUs    24: 10 free, 12 used, 1 foreign, 1 ill
Queue   4 waiting: 3 insufficient_gpus, 1 quota_exceeded
"""


def fleet(*, jobs: tuple[str, ...] = (), **more: Any) -> list[dict[str, Any]]:
    first = node(name="n1", jobs=list(jobs), **more)
    first["gpus"] = [gpu | {"uuid": f"GPU-{gpu['index']}{gpu['index']}aa"} for gpu in first["gpus"]]
    return [first]


async def test_cordon_and_uncordon(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet()
        done = await gpuyard(nats_server.url, "cordon", "n1", "--reason", "maintenance")
        assert (done.code, done.out) == (0, b"node n1 cordoned\n")
        body = {"v": 1, "name": "n1", "gpu": None, "reason": "maintenance"}
        assert yard.calls[-1] == ("cordon", body)
        opened = await gpuyard(nats_server.url, "uncordon", "n1", "--json")
        assert json.loads(opened.out)["scheduling"] == "open"
        assert (await gpuyard(nats_server.url, "-q", "uncordon", "n1")).out == b"n1\n"
        assert {tenant for tenant, _ in yard.callers} == {"_"}
        unknown = await gpuyard(nats_server.url, "cordon", "n2")
        assert (unknown.code, unknown.err) == (1, "gpuyard: no node n2\n")


async def test_a_gpu_is_named_by_index_or_uuid(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet()
        for named in ("1", "GPU-11aa", "gpu-11"):
            done = await gpuyard(nats_server.url, "cordon", "n1", "--gpu", named)
            assert done.out == b"GPU-11aa of node n1 cordoned\n"
        several = await gpuyard(nats_server.url, "cordon", "n1", "--gpu", "GPU-")
        assert (several.code, "may mean GPU-00aa, GPU-11aa" in several.err) == (2, True)
        none = await gpuyard(nats_server.url, "cordon", "n1", "--gpu", "7")
        assert (none.code, "node n1 has no such GPU" in none.err) == (2, True)
        shown = (await gpuyard(nats_server.url, "node", "n1")).out.decode()
        assert "healthy, cordoned" in shown
        assert "0/2" in (await gpuyard(nats_server.url, "nodes")).out.decode()


async def test_drain_waits_until_the_node_is_empty(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet(jobs=("job-a", "job-b"))
        async with started(nats_server.url, "drain", "n1", "--deadline", "10m") as drain:
            await called(yard, "drain")
            assert yard.calls[-1][1]["deadline_s"] == 600.0
            await asyncio.sleep(0.5)
            is_waiting = drain.returncode is None
            assert is_waiting
            yard.nodes[0]["jobs"] = []
            # An event wakes it long before its slow look.
            await yard.event(FakeJob({"id": "job-a"}, "team-a", "bob"), "failed")
            out, err = await asyncio.wait_for(drain.communicate(), 10)
        assert (drain.returncode, out, err) == (0, b"node n1 drained\n", b"")


async def test_without_a_deadline_it_says_what_it_waits_for(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet(jobs=("job-a",))
        async with started(nats_server.url, "drain", "n1") as drain:
            assert drain.stderr is not None
            line = await asyncio.wait_for(drain.stderr.readline(), 10)
            assert b"waiting for 1 job to end by itself; --deadline" in line
            yard.nodes[0]["scheduling"] = "open"
            out, err = await asyncio.wait_for(drain.communicate(), 10)
        assert (drain.returncode, out) == (1, b"")
        assert err == b"gpuyard: node n1 is open again: somebody ended the drain\n"


async def test_ctrl_c_leaves_the_drain_on_and_says_so(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet(jobs=("job-a",), state="lost")
        async with OnTerminal(nats_server.url, "drain", "n1") as drain:
            await drain.see("draining n1: 1 job left: job-a (node lost)")
            drain.press(b"\x03")
            assert await drain.end() == 130
        assert "node n1 stays draining; 'gpuyard uncordon n1' ends that" in drain.shown


async def test_forget_asks_and_warns(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet(state="lost", jobs=("j1", "j2"))
        unasked = await gpuyard(nats_server.url, "forget", "n1")
        assert (unasked.code, unasked.out) == (2, b"")
        assert "node n1 would be forgotten; -y says yes" in unasked.err
        async with OnTerminal(nats_server.url, "forget", "n1") as forget:
            await forget.see("Forget node n1? It may still run 2 jobs (j1, j2)")
            forget.press(b"n\n")
            assert await forget.end() == 1
        assert "forget" not in [operation for operation, _ in yard.calls]
        done = await gpuyard(nats_server.url, "forget", "-y", "n1")
        assert (done.code, done.out) == (0, b"node n1 forgotten\n")
        assert done.err == "gpuyard: warning: 2 jobs may still run there\n"
        yard.nodes = fleet()
        refused = await gpuyard(nats_server.url, "forget", "-y", "n1")
        assert (refused.code, "stop its agent first" in refused.err) == (1, True)


async def test_an_unknown_node_is_told_before_anything_is_asked(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        yard.nodes = fleet()
        async with OnTerminal(nats_server.url, "forget", "nope") as forget:
            assert await forget.end() == 1
        assert "no node nope" in forget.shown and "Forget node" not in forget.shown


async def test_status_is_one_screen_and_a_code(nats_server: NatsServer) -> None:
    async with FakeYard(nats_server.url) as yard:
        done = await gpuyard(nats_server.url, "status")
        assert (done.code, done.out.decode()) == (0, SCREEN)
        yard.status = STATUS | {"healthy": False, "queue": {}, "nodes": {}}
        ill = await gpuyard(nats_server.url, "status")
        assert ill.code == 1
        assert "NOT healthy\n" in ill.out.decode() and "Queue   empty" in ill.out.decode()
        yard.status |= {"nodes": {"ready": 2, "lost": 1}, "alarms": ["full", "stuck"]}
        told = (await gpuyard(nats_server.url, "status")).out.decode()
        assert "NOT healthy: 1 node not ready (gpuyard nodes), 2 alarms\n" in told
        quiet = await gpuyard(nats_server.url, "status", "-q")
        assert (quiet.code, quiet.out) == (1, b"")
        assert json.loads((await gpuyard(nats_server.url, "status", "--json")).out) == yard.status


async def called(yard: FakeYard, operation: str) -> None:
    """Waits until the yard was asked that."""
    async with asyncio.timeout(10):
        while operation not in [name for name, _ in yard.calls]:
            await asyncio.sleep(0.02)
