"""The nats-server of the tests keeps its port and its store through every fault."""

import asyncio

import nats.errors
import pytest
from nats.aio.client import Client

from tests.support.nats_server import MakeNatsServer, NatsServer


async def _connect(url: str) -> Client:
    client = Client()
    try:
        await asyncio.wait_for(client.connect(url, allow_reconnect=False), 5)
    except BaseException:
        await client.close()  # the library leaves the socket of a refused connection open
        raise
    return client


async def test_an_acknowledged_write_survives_kill_and_restart(nats_server: NatsServer) -> None:
    port = nats_server.port
    client = await _connect(nats_server.url)
    await client.jetstream().add_stream(name="S", subjects=["s.>"])
    await client.jetstream().publish("s.1", b"kept")
    nats_server.kill()
    await client.close()

    nats_server.restart()

    assert nats_server.port == port
    client = await _connect(nats_server.url)
    assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
    await client.close()


async def test_a_frozen_server_answers_again_when_thawed(nats_server: NatsServer) -> None:
    client = await _connect(nats_server.url)
    nats_server.freeze()
    with pytest.raises(nats.errors.TimeoutError):
        await client.jetstream(timeout=0.5).account_info()
    nats_server.thaw()
    await client.jetstream(timeout=0.5).account_info()
    await client.close()


async def test_a_token_is_asked_for(make_nats_server: MakeNatsServer) -> None:
    server = make_nats_server(token="s3cret")
    await (await _connect(server.url)).close()
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await _connect(f"nats://127.0.0.1:{server.port}")
