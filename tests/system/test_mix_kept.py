"""What is submitted to a running coordinator becomes the mix that it keeps and goes by."""

import asyncio

from gpuyard import codec, subjects
from gpuyard.bus import connect
from gpuyard_coordinator.core.mix import Mix
from tests.support.running_yard import RunningYard


async def stored_mix(url: str) -> Mix:
    async with await connect(url, name="test", inbox_prefix="_INBOX.x") as bus:
        async with asyncio.timeout(20):
            while True:
                at = subjects.state(subjects.MIX_KEY)
                stored = await bus.jetstream.last(subjects.STATE_STREAM, at)
                if stored is not None:
                    return Mix.from_document(codec.decode(stored.data))
                await asyncio.sleep(0.05)


def test_a_leader_stores_the_mix_once_enough_was_submitted(yard: RunningYard) -> None:
    client = yard.ready(0)
    for number in range(20):
        client.submit({"id": f"j{number}", "image": "busybox", "gpus": 3})

    mix = asyncio.run(stored_mix(yard.server.url))
    assert 16 <= mix.observed <= 20
    assert {request.gpus for request, _ in mix.most_common()} >= {1, 3}
